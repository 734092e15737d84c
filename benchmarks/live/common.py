"""Parts that the measurements of the weight store share: policies as files, weights that differ, child processes."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx

import tilewright as tw
from benchmarks import models
from benchmarks.onnx_builder import BATCH, Builder

FOLDER = models.ROOT / "build" / "live"
WIDE = "w16"
"""A policy of 16.8 MB of weights: 2048 features, one hidden layer of 2048, six actions."""

Arrays = dict[str, np.ndarray]


def wide() -> onnx.ModelProto:
    """obs[batch, 2048] -> relu FC 2048 -> action[batch, 6]."""
    b = Builder(WIDE, seed=16)
    x = b.relu(b.linear(b.input("obs", [BATCH, 2048]), "fc", 2048, 2048))
    b.output(b.linear(x, "action_net", 2048, 6), "action", [BATCH, 6])
    return b.build()


def program(name: str) -> Path:
    """The compiled file of a policy, made anew where what generates its code is newer."""
    path = FOLDER / f"{name}.tw"
    source = models.ROOT / "src" / "tilewright"
    folders = ("arith", "codegen", "ir", "ops", "plans", "schedule", "transform")
    newest = max(p.stat().st_mtime for folder in folders for p in (source / folder).rglob("*.py"))
    if path.exists() and path.stat().st_mtime > newest:
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    tw.compile(wide() if name == WIDE else str(models.load(name)), threads=1).save(path)
    return path


def other_weights(model: tw.Model, seed: int) -> Arrays:
    """Weights of the model's own scale that no other seed has: each is the model's times something near 1."""
    source = np.random.default_rng(seed)
    created = {}
    for name, array in model.weights.items():
        created[name] = _aligned(array)
        if array.dtype.kind == "f":
            created[name] *= source.uniform(0.9, 1.1, array.shape).astype(array.dtype)
    return created


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 64 bytes, as PyTorch's CPU tensors are."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def inputs(model: Any, batch: int = 1, seed: int = 0) -> Arrays:
    """Random inputs by name for a model or an actor."""
    from tilewright.runtime.examples import random_inputs

    return random_inputs(model.inputs, {s.name: batch for s in model.manifest.symbols}, seed)


@contextmanager
def store_folder() -> Iterator[Path]:
    """A folder for stores in shared memory, which this process and its children use; gone afterwards."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="tilewright-bench-", dir=shm if shm.is_dir() else None))
    before = os.environ.get("TILEWRIGHT_STORE_DIR")
    os.environ["TILEWRIGHT_STORE_DIR"] = str(folder)
    try:
        yield folder
    finally:
        if before is None:
            os.environ.pop("TILEWRIGHT_STORE_DIR")
        else:
            os.environ["TILEWRIGHT_STORE_DIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


class Child:
    """A fresh Python process that runs `benchmarks.live.agents`: one line of JSON in, one line of JSON out.

    Args:
        task: a function of that module.
        cpu: the processor that it stays on, any if None.
        keep: descriptors that it inherits.
        arguments: of the function, as data for JSON.
    """

    def __init__(self, task: str, *, cpu: int | None = None, keep: tuple[int, ...] = (), **arguments: Any) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{models.ROOT / 'src'}:{models.ROOT}", "OMP_NUM_THREADS": "1"}
        environment["OPENBLAS_NUM_THREADS"] = "1"
        command = [sys.executable, "-m", "benchmarks.live.agents", task, json.dumps(arguments), str(cpu)]
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment, cwd=models.ROOT,
            pass_fds=keep,
        )  # fmt: skip
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, value: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")

    def receive(self, timeout: float = 120.0) -> Any:
        """The next message of the child; an error if it ends or says nothing in time."""
        assert self._process.stdout is not None
        handle, deadline = self._process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._rest:
            if not select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"agent {self.pid} says nothing for {timeout:g} s")
            data = os.read(handle, 1 << 16)
            if not data:
                raise RuntimeError(f"agent {self.pid} ended with status {self._process.wait()}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def ask(self, value: object, timeout: float = 120.0) -> Any:
        self.send(value)
        return self.receive(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def proportional_set(pid: int) -> dict[str, float]:
    """MB of a process by kind, each page divided by the number of processes that map it (smaps_rollup)."""
    wanted = {"Pss": "all", "Pss_Anon": "own", "Pss_File": "files", "Pss_Shmem": "store"}
    result = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        key, _, rest = line.partition(":")
        if key in wanted:
            result[wanted[key]] = int(rest.split()[0]) * 1024 / 1e6
    return result


def summary(seconds: Mapping[str, float] | np.ndarray) -> dict[str, float]:
    """Median, p90, p99, largest of times in seconds."""
    values = np.asarray(seconds, float)
    names = ("p50", "p90", "p99", "max")
    return dict(zip(names, map(float, np.quantile(values, [0.5, 0.9, 0.99, 1.0])), strict=True))
