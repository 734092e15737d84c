"""One fuzzing process: runs the cases whose seeds it reads, one JSON line for each; a limit on memory, none on trust.

    python -m tests.fuzz.worker onnx 17      one case by hand: what became of it, with the traceback

The parent (`tests.fuzz.farm`) watches the time and sees when the process dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz import corpus, mutate
from tilewright.compiler import import_model
from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.manifest import InputSpec

MEMORY = 3 << 30
LARGEST = 1 << 24
"""Bytes of inputs, outputs and arena above which a mutant is compiled, but not run."""


class Mark:
    """Says on the output which stage the case is in, so that the parent knows what a silent worker was doing."""

    def __init__(self, emit: Callable[[dict[str, Any]], None]) -> None:
        self.emit = emit

    def __call__(self, stage: str) -> None:
        self.emit({"stage": stage})


def run_onnx(seed: int, mark: Mark) -> str:
    """Compile the mutant and call it. "ran", "compiled" (too large to run) or "refused: <class>"."""
    data = mutate.mutant(corpus.corpus(), seed)
    mark("import")
    try:
        graph = import_model(data)
        mark("compile")
        model = tw.compile(graph)
    except tw.Error as error:
        return refusal(error)
    mark("call")
    return call(model, seed)


def refusal(error: tw.Error) -> str:
    """The class, and whether the message says anything."""
    text = str(error)
    if not text.strip():
        raise AssertionError("an error without a message")
    kind = "malformed" if "malformed" in text else type(error).__name__
    return f"refused: {kind}"


def call(model: Any, seed: int) -> str:
    """Call with hostile values in memory that ends where the process may not read."""
    rng = np.random.default_rng(seed)
    dims = {s.name: max(s.lo, 1) * s.multiple for s in model.manifest.symbols}
    shapes = [[dims.get(d, d) for d in spec.shape] for spec in model.inputs]
    sizes = [int(np.prod(shape, dtype=object)) * 8 for shape in shapes]
    report = model.memory(**dims)
    if max([*sizes, report.arena, report.temporary_bytes]) > LARGEST:
        return "compiled"
    arrays = [hostile(spec, shape, rng) for spec, shape in zip(model.inputs, shapes, strict=True)]
    try:
        outputs = model.empty_outputs(*arrays)
        if sum(o.nbytes for o in outputs.values()) > LARGEST:
            return "compiled"
        guarded = {name: guard(array) for name, array in outputs.items()}
        model.run(dict(zip([i.name for i in model.inputs], arrays, strict=True)), out=guarded)
    except tw.Error as error:
        return f"call {refusal(error)}"
    return "ran"


def hostile(spec: InputSpec, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    """Ordinary values, with some that no index and no exponent should have."""
    dtype = BY_NAME[spec.dtype].numpy
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        values = rng.integers(-3, 5, shape)
        extremes = np.array([limits.min, limits.max, -1, 1 << 20], object)
        array = np.where(rng.random(shape) < 0.2, rng.choice(extremes, shape), values)
        return guard(np.array(array, object).astype(np.int64 if limits.min < 0 else np.uint64, copy=False).astype(dtype)
                     if limits.min < 0 else np.abs(values).astype(dtype))  # fmt: skip
    array = rng.standard_normal(shape)
    array = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf, 1e30], shape), array)
    with np.errstate(all="ignore"):
        return guard(np.asarray(array).astype(dtype))


_LIBC = ctypes.CDLL(None, use_errno=True)


def guard(array: np.ndarray) -> np.ndarray:
    """A copy that ends at a page which may be neither read nor written: one step outside is a crash."""
    page = mmap.PAGESIZE
    room = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, room + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _LIBC.mprotect(ctypes.c_void_p(address + room), ctypes.c_size_t(page), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    view = np.frombuffer(memory, np.uint8, array.nbytes, room - array.nbytes)
    result = view.view(array.dtype).reshape(array.shape) if array.nbytes else array
    np.copyto(result, array)
    return result


KINDS: dict[str, Callable[[int, Mark], str]] = {"onnx": run_onnx}


def main(kind: str, seeds: list[int]) -> None:
    limit = MEMORY + _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ImportError):
        import warnings

        warnings.simplefilter("ignore")
    output = sys.stdout

    def emit(line: dict[str, Any]) -> None:
        output.write(json.dumps(line) + "\n")
        output.flush()

    for seed in seeds or map(int, sys.stdin):
        start = time.perf_counter()
        emit({"seed": seed})
        try:
            outcome = KINDS[kind](seed, Mark(emit))
            emit({"seed": seed, "outcome": outcome, "seconds": time.perf_counter() - start})
        except BaseException as error:
            detail = traceback.format_exc(limit=-8)
            emit({"seed": seed, "failure": f"{type(error).__name__}: {error}"[:500], "detail": detail[-3000:]})
            if seeds:
                traceback.print_exc()


def _address_space() -> int:
    """Bytes of address space that the process has already."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[0]) * mmap.PAGESIZE if pages.exists() else 0


if __name__ == "__main__":
    main(sys.argv[1], [int(s) for s in sys.argv[2:]])
