"""The policy suite end to end: right outputs at every batch, live weights, files, threads, one compile for all."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from benchmarks import harness
from tests.models import cases
from tests.models.cases import SUITE, Case
from tests.models.cases import bytes_of as _bytes

pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=SUITE)
def case(request: pytest.FixtureRequest) -> Case:
    return cases.load(request.param)


@pytest.mark.costly(2)
@pytest.mark.parametrize("batch", [1, 2, 5, 8, 33])
def test_one_compile_is_right_at_every_batch(case: Case, batch: int) -> None:
    inputs = case.inputs(batch, seed=batch)
    # One number that happens to be near zero says nothing of the sum that it comes from: the scale is a batch's.
    scales = {name: float(np.abs(value).max()) for name, value in case.expected(case.inputs(33, seed=33)).items()}
    assert harness.relative_error(case.model.run(inputs), case.expected(inputs), scales) < TOLERANCE


def test_outputs_into_the_callers_buffers(case: Case) -> None:
    inputs = case.inputs(3)
    expected = case.model.run(inputs)
    buffers = {name: np.full_like(value, np.nan) for name, value in expected.items()}
    case.model.run(inputs, out=buffers)
    assert _bytes(buffers) == _bytes(expected)


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("compiled", [1, 2])
def test_results_do_not_depend_on_the_number_of_threads(case: Case, compiled: int, tmp_path: Path) -> None:
    """Threads share loops over outputs, never a sum: not even rounding differs, whatever number a file was made for."""
    feeds = [case.inputs(1), case.inputs(7, seed=1)]
    model = tw.compile(case.proto, threads=compiled)
    model.save(tmp_path / "model.tw")
    expected = [_bytes(model.run(f)) for f in feeds]
    for threads in (1, 2, 4):
        loaded = tw.load(tmp_path / "model.tw", threads=threads)
        assert [_bytes(loaded.run(f)) for f in feeds] == expected


@pytest.mark.parametrize("batch", [1, 8])
def test_arena_is_close_to_its_lower_bound(case: Case, batch: int) -> None:
    report = case.model.memory(**{s.name: batch for s in case.model.manifest.symbols})
    assert report.lower_bound <= report.arena <= 1.10 * report.lower_bound
    assert report.process_peak > report.raw_weights


def test_update_equals_a_fresh_compile(case: Case) -> None:
    weights = case.other_weights(seed=1)
    inputs = case.inputs(2)
    model = tw.compile(case.proto, threads=1)
    before = _bytes(model.run(inputs))
    model.update(weights)
    after = _bytes(model.run(inputs))
    assert after == _bytes(tw.compile(case.with_weights(weights), threads=1).run(inputs))
    assert after != before


_LOAD = """
import hashlib, sys, numpy as np, tilewright as tw
outputs = tw.load(sys.argv[1]).run(dict(np.load(sys.argv[2])))
print(hashlib.sha256(b"".join(np.asarray(outputs[k]).tobytes() for k in sorted(outputs))).hexdigest())
"""


def test_saved_model_gives_the_same_bytes_in_a_fresh_process(case: Case, tmp_path: Path) -> None:
    inputs = case.inputs(2)
    case.model.save(tmp_path / "model.tw")
    np.savez(tmp_path / "inputs.npz", **inputs)
    outputs = case.model.run(inputs)
    digest = hashlib.sha256(b"".join(np.asarray(outputs[k]).tobytes() for k in sorted(outputs))).hexdigest()
    arguments = [sys.executable, "-c", _LOAD, str(tmp_path / "model.tw"), str(tmp_path / "inputs.npz")]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == digest


def test_eight_python_threads_at_once(case: Case) -> None:
    feeds = [case.inputs(batch=1 + i % 3, seed=i) for i in range(8)]
    expected = [_bytes(case.model.run(f)) for f in feeds]

    def work(i: int) -> bool:
        return all(_bytes(case.model.run(feeds[i])) == expected[i] for _ in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_calls_while_weights_change_see_whole_versions(case: Case) -> None:
    model = tw.compile(case.proto, threads=1)
    versions = [case.other_weights(seed=k) for k in (1, 2)]
    feeds = [case.inputs(batch) for batch in (1, 2, 3)]
    allowed: list[list[dict[str, bytes]]] = [[] for _ in feeds]
    for weights in versions:
        model.update(weights)
        for seen, feed in zip(allowed, feeds, strict=True):
            seen.append(_bytes(model.run(feed)))
    stop = threading.Event()

    def call(k: int) -> list[bool]:
        right = []
        while not stop.is_set():
            right.append(_bytes(model.run(feeds[k])) in allowed[k])
        return right

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, k) for k in range(3)]
        for k in range(6):
            model.update(versions[k % 2])
        stop.set()
        assert all(all(c.result()) for c in calls)
    assert model.version == 8
