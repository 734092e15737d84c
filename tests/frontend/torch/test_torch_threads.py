"""Threads that compile PyTorch modules at once: each gets its own program, and no thread sees another's trace; run by
`make torch`."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")

import tilewright as tw  # noqa: E402
from tilewright.train import SGD, hooks  # noqa: E402


def _module(width: int) -> Any:
    torch.manual_seed(width)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.GELU(), torch.nn.Linear(width, 2))


def _as_eager(width: int) -> None:
    module, x = _module(width).eval(), torch.randn(3, 8)
    np.testing.assert_allclose(tw.compile(module, x)(x.numpy()), module(x).detach(), rtol=1e-5, atol=1e-6)


def _learns(width: int) -> None:
    module, x, y = _module(width), torch.randn(6, 8), torch.randint(0, 2, (6,))
    step = tw.compile_step(module, torch.nn.CrossEntropyLoss(), SGD(lr=0.1), (x, y))
    expected = torch.nn.functional.cross_entropy(module(x), y).item()
    assert step(x, y)["loss"] == pytest.approx(expected, rel=1e-5)


def _all_at_once(works: list[Callable[[], None]]) -> list[BaseException]:
    """The errors of functions that run in a thread each and start together."""
    start, errors = threading.Barrier(len(works)), list[BaseException]()

    def run(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:  # an assertion in a thread fails no test by itself
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_compile_modules_and_steps_at_once() -> None:
    works = [lambda w=w, f=f: f(w) for w in range(3, 7) for f in (_as_eager, _learns)]
    assert _all_at_once(works) == []


def test_context_managers_of_other_threads_are_no_hooks_of_a_loss() -> None:
    def infer() -> None:
        with torch.inference_mode():
            torch.ones(1)

    with hooks.watched() as seen:
        assert _all_at_once([infer]) == []
    assert seen == []


def test_patched_functions_are_restored_whatever_threads_do() -> None:
    before = torch.inference_mode.__enter__

    def watch() -> None:
        for _ in range(50):
            with hooks.watched():
                torch.ones(1)

    assert _all_at_once([watch] * 4) == []
    assert torch.inference_mode.__enter__ is before


FORKED = """
import os, threading, time
from tilewright.frontend.torch.alone import tracing_alone

def trace():
    with tracing_alone():
        started.set()
        time.sleep(0.2)

started = threading.Event()
threading.Thread(target=trace).start()
started.wait()
child = os.fork()
with tracing_alone():
    if not child:
        os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_child_forked_while_another_thread_traces_can_trace() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "0\n"
