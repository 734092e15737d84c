"""Parts that the tests of the store share: models whose outputs tell the version, a board, and workers that may be
killed.

The *telling* model is y = x @ w with all of w equal to `value(version)` and x all ones: each output is DEPTH times the
value, exactly, so an output that mixes two versions cannot look like one.

Workers are forked by a *nursery*, a process of one thread that has everything imported and linked: a worker costs
milliseconds, may die in any way, and inherits nothing from pytest.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np

from tilewright.runtime.model import Model

DEPTH = 256
WIDTHS = 1024, 512
"""Widths of the telling model and of its second structure."""
INITIAL = 5000
"""The value of all weights of a fresh telling model; no version has this value. A publisher of a new structure
publishes them under whatever version is next."""
ROOT = Path(__file__).resolve().parents[3]


def value(version: int) -> int:
    """The value of all weights of a version; times DEPTH it is exact in f32."""
    return version % 4093 + 1


def telling_weights(version: int, width: int = WIDTHS[0]) -> dict[str, np.ndarray]:
    return {"w": np.full((DEPTH, width), value(version), np.float32)}


def telling_model(width: int = WIDTHS[0]) -> Model:
    """y[n, width] = x[n, DEPTH] @ w."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    import tilewright as tw

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "telling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(np.full((DEPTH, width), INITIAL, np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(proto)
    return tw.compile(proto)


def is_whole(y: np.ndarray, version: int) -> bool:
    """Whether these are the telling model's outputs under this version and no other, or its initial ones."""
    first = y.flat[0]
    return bool((y == first).all()) and first in (DEPTH * value(version), DEPTH * INITIAL)


ONES = np.ones((1, DEPTH), np.float32)


# -- the board ---------------------------------------------------------------------------------------------------------

CALLS, VERSION, TORN, BACK, FAILED, PUBLISHED = range(6)
_COLUMNS = 8


class Board:
    """Words in a mapped file that all workers write, a row for each: what a killed worker had seen stays readable."""

    def __init__(self, path: Path, rows: int) -> None:
        with open(path, "a+b") as file:
            if os.fstat(file.fileno()).st_size < rows * _COLUMNS * 8:
                os.posix_fallocate(file.fileno(), 0, rows * _COLUMNS * 8)
            self._map = mmap.mmap(file.fileno(), rows * _COLUMNS * 8)
        self.words = np.frombuffer(self._map, np.int64).reshape(rows, _COLUMNS)
        self.path, self.rows = path, rows

    def __getitem__(self, at: tuple[int, int]) -> int:
        return int(self.words[at])

    def __setitem__(self, at: tuple[int, int], number: int) -> None:
        self.words[at] = number


# -- the nursery -------------------------------------------------------------------------------------------------------


class Nursery:
    """A process that forks workers: `start("reader", ...)` gives a process id, which may be killed like any other."""

    def __init__(self, store: Path) -> None:
        environment = {**os.environ, "TILEWRIGHT_STORE_DIR": str(store), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.live.store.lab"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment, cwd=ROOT,
        )  # fmt: skip
        self._workers: set[int] = set()

    def start(self, task: str, **arguments: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([task, arguments]) + "\n")
        pid = int(self._process.stdout.readline())
        self._workers.add(pid)
        return pid

    def kill(self, pid: int, how: int = signal.SIGKILL) -> None:
        """Kill a worker and wait until it is gone."""
        os.kill(pid, how)
        assert self.wait(pid, 60.0), f"worker {pid} does not die of signal {how}"

    def wait(self, pid: int, timeout: float) -> bool:
        """Whether a worker ends within this time."""
        if wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout):
            self._workers.discard(pid)
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._workers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.kill()
        self._process.wait()


def wait_until(condition: Callable[[], bool], timeout: float = 60.0) -> bool:
    """Poll until it holds; False if it does not in time."""
    deadline = time.monotonic() + timeout
    pause = 0.0005
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    return True


# -- tasks of workers --------------------------------------------------------------------------------------------------


def read_for_ever(board: Board, row: int, name: str, calls: int = 0, pause: float = 0.0) -> None:
    """Call and check. Stops after `calls` if that is not 0."""
    import tilewright as tw

    actor = tw.attach(name, timeout=30.0)
    last, done = -1, 0
    while not calls or done < calls:
        y, version = actor.versioned(ONES)
        if not is_whole(y, version):
            board[row, TORN] += 1
        if version < last:
            board[row, BACK] += 1
        last = version
        board[row, VERSION] = version
        board[row, CALLS] += 1
        done += 1
        if pause:
            time.sleep(pause)


def publish_for_ever(
    board: Board, row: int, name: str, model: str, publishes: int = 0, pause: float = 0.0, wait: float = 0.0
) -> None:
    """Go on publishing after whatever version the store has; the board says which ones are surely published."""
    import tilewright as tw

    loaded = tw.load(model)
    width = loaded.params[0].shape[1]
    with tw.Publisher(name, loaded, wait=wait) as publisher:
        board[row, VERSION] = publisher.version
        board[row, PUBLISHED] = max(board[row, PUBLISHED], publisher.version)
        done = 0
        while not publishes or done < publishes:
            version = publisher.version + 1
            inputs = publisher.publish(telling_weights(version, width), version=version)
            if inputs != version:
                board[row, FAILED] += 1
            board[row, PUBLISHED] = version
            board[row, CALLS] += 1
            done += 1
            if pause:
                time.sleep(pause)


TASKS = {"read": read_for_ever, "publish": publish_for_ever}


def main() -> None:
    """The nursery: reads [task, arguments] lines, forks, answers with process ids."""
    from tilewright.runtime.native import native

    native()
    import tilewright as tw

    assert tw.attach and tw.Publisher  # imported now, so that workers need not
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        task, arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _work(task, arguments)
        print(pid, flush=True)


def _work(task: str, arguments: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    random.seed()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    status = 1
    try:
        path, rows = arguments.pop("board")
        TASKS[task](Board(Path(path), rows), **arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
        with open(f"{path}.failures", "a") as file:
            file.write(traceback.format_exc())
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
