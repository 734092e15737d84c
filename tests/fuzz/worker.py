"""One fuzzing process: runs the cases whose seeds it reads, one JSON line for each; a limit on memory, none on trust.

    python -m tests.fuzz.worker onnx 17      one case by hand: what became of it, with the traceback

The parent (`tests.fuzz.farm`) watches the time and sees when the process dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import mmap
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz import artifacts, corpus, huge, huge_modules, mutate, texts
from tilewright.frontend.read import import_model
from tilewright.ir.dtype import BY_NAME
from tilewright.parts.composite import Composite
from tilewright.runtime import artifact
from tilewright.runtime.specs import InputSpec
from tilewright.support.errors import ArtifactError

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


def run_parts(seed: int, mark: Mark) -> str:
    """Cut the mutant into parts where it cannot be compiled whole, and call these twice."""
    data = mutate.mutant(corpus.corpus(), seed)
    mark("compile")
    try:
        model = tw.compile(data)
        if not isinstance(model, Composite):
            return "whole"
        model.max_iterations, model.time_limit = 1000, 5.0  # a mutant's count of iterations is a number like any other
        mark("call")
        for size in (1, 3):
            arrays = [_small(spec, size, np.random.default_rng(seed)) for spec in model.inputs]
            if any(a is None for a in arrays):
                return "not called"
            model(*arrays)
    except tw.Error as error:
        return refusal(error)
    return "ran"


def _small(spec: InputSpec, size: int, rng: np.random.Generator) -> np.ndarray | None:
    """An array for an input, a symbolic dimension `size` long; None for one that is large, or no array."""
    shape = [d if isinstance(d, int) else size for d in spec.shape]
    if spec.dtype not in BY_NAME or "..." in spec.shape or int(np.prod(shape, dtype=object)) > 1 << 16:
        return None
    return hostile(spec, shape, rng)


def refusal(error: tw.Error) -> str:
    """The class, and whether the message says anything."""
    text = str(error)
    if not text.strip():
        raise AssertionError("an error without a message")
    kind = "malformed" if "malformed" in text else type(error).__name__
    return f"refused: {kind}"


def call(model: Any, seed: int) -> str:
    """Call with hostile values in memory that ends where the process may not read."""
    symbols = model.manifest.symbols
    outcomes = [
        _call(model, seed, {s.name: size * s.multiple for s in symbols}) for size in ((1, 3) if symbols else (1,))
    ]
    return max(outcomes, key=["compiled", "call refused: CallError", "ran"].index)


def _call(model: Any, seed: int, dims: dict[str, int]) -> str:
    rng = np.random.default_rng(seed)
    shapes = [[dims.get(d, d) for d in spec.shape] for spec in model.inputs]
    sizes = [int(np.prod(shape, dtype=object)) * 8 for shape in shapes]
    try:
        report = model.memory(**dims)
    except tw.Error as error:
        return f"call {refusal(error)}"
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


def run_text(seed: int, mark: Mark) -> str:
    """Parsers of graphs, loop programs and traces."""
    mark("read")
    try:
        return texts.read_damaged(_texts(), seed)
    except tw.Error as error:
        return refusal(error)


@functools.cache
def _texts() -> Any:
    return texts.sources()


def run_artifact(seed: int, mark: Mark) -> str:
    """The reader of `.tw` files: damage is found by the digests, sealed nonsense by what reads the sections."""
    rng = random.Random(seed)
    data = _artifact()
    sealed = rng.random() < 0.5
    changed = artifacts.resealed_damage(data, rng) if sealed else artifacts.damage(data, rng)
    mark("read")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.tw"
        path.write_bytes(changed)
        try:
            artifact.read(path)
        except ArtifactError as error:
            if "m.tw" not in str(error):
                raise AssertionError(f"the file is not named: {error}") from error
            return "sealed, refused" if sealed else "refused"
    if changed != data and not sealed:
        raise AssertionError("damage is not found")
    return "sealed, read" if sealed else "unchanged"


@functools.cache
def _artifact() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.tw"
        tw.compile(import_model(corpus.corpus()["image"])).save(path)
        return path.read_bytes()


def run_self(seed: int, mark: Mark) -> str:
    """A case of each outcome that the farm must be able to see."""
    match seed:
        case 1:
            ctypes.string_at(8)
        case 2:
            raise ZeroDivisionError
        case 3:
            np.ones(8 * MEMORY, np.uint8)
        case 4:
            time.sleep(1000)
    return "fine"


def run_module(seed: int, mark: Mark, bytecode: bool) -> str:
    """StableHLO from outside: read by a process that may die, then imported."""
    from tests.fuzz import modules
    from tilewright.frontend.stablehlo.importer import import_module

    data = modules.damaged(seed, bytecode)
    mark("read")
    try:
        module = modules.read_forked(data)
    except tw.Error as error:
        died = "died" if "status" in str(error.got) else "refused"
        return f"reader {died}"
    mark("import")
    try:
        import_module(module)
    except tw.Error as error:
        if not str(error).strip():
            raise AssertionError("the error says nothing") from error
        return "refused"
    return "imported"


KINDS: dict[str, Callable[[int, Mark], str]] = {
    "onnx": run_onnx,
    "parts": run_parts,
    "text": run_text,
    "artifact": run_artifact,
    "stablehlo": functools.partial(run_module, bytecode=False),
    "bytecode": functools.partial(run_module, bytecode=True),
    "huge": huge.run,
    "huge modules": huge_modules.run,
    "self": run_self,
}


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
