"""Files of recorded streams: programs with their initial memory, final memory and counters.

The format is NumPy's `.npz` with the arrays of `_ARRAYS`, which docs/vta.md describes. Files come from outside: nothing
is unpickled, and sizes, types and positions are checked before anything is read.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, ParseError, Problems
from tilewright.targets.vta.config import DEFAULT, Config
from tilewright.targets.vta.native import COUNTERS
from tilewright.targets.vta.simulator import Machine, SimulationError

Array = np.ndarray[Any, Any]

LARGEST = 1 << 31
"""The most bytes of all arrays of a file."""
_ARRAYS: dict[str, tuple[str, int]] = {
    "name": ("U", 1), "insn": ("u1", 2), "insn_start": ("i8", 1), "dram": ("u1", 1), "dram_start": ("i8", 1),
    "delta": ("u1", 1), "dram_base": ("u4", 1), "counters": ("u8", 2), "counter_names": ("U", 1),
}  # fmt: skip
"""The arrays that are read, with type and number of dimensions."""
_UNREADABLE: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
    EOFError,
)
_UNREADABLE += (SyntaxError, tokenize.TokenError, MemoryError)  # NumPy's parser of headers


@dataclass(frozen=True, slots=True)
class Stream:
    """One recorded program: words, first and last image of DRAM from address `base` on, and counters by name."""

    name: str
    words: Array
    base: int
    before: Array
    after: Array
    counters: dict[str, int]


def read(path: str | Path) -> Iterator[Stream]:
    """The streams of a file. Raises ParseError, which names the array, for a file that is not of this format."""
    stored = arrays(Path(path), _ARRAYS)
    where = str(path)
    count = len(stored["name"])
    for key, parts in (("insn_start", "insn"), ("dram_start", "dram")):
        start = stored[key]
        if len(start) != count + 1 or start[0] != 0 or start[-1] != len(stored[parts]) or (np.diff(start) < 0).any():
            expected = f"{count + 1} growing numbers from 0 to {len(stored[parts])}"
            raise ParseError("the places of streams are wrong", where=f"{where}: {key}", expected=expected)
    names = [str(n) for n in stored["counter_names"]]
    sizes = {
        "insn": (len(stored["insn"]), 16),
        "delta": stored["dram"].shape,
        "dram_base": (count,),
        "counters": (count, len(names)),
    }
    for key, shape in sizes.items():
        if stored[key].shape != shape:
            raise ParseError("wrong shape", where=f"{where}: {key}", expected=shape, got=stored[key].shape)
    if sorted(names) != sorted(COUNTERS):
        expected = ", ".join(COUNTERS)
        raise ParseError("wrong counters", where=f"{where}: counter_names", expected=expected, got=", ".join(names))
    for k in range(count):
        words = slice(*stored["insn_start"][k : k + 2].tolist())
        image = slice(*stored["dram_start"][k : k + 2].tolist())
        before = stored["dram"][image]
        counters = dict(zip(names, stored["counters"][k].tolist(), strict=True))
        base = int(stored["dram_base"][k])
        yield Stream(
            str(stored["name"][k]), stored["insn"][words], base, before, before ^ stored["delta"][image], counters
        )


def write(path: str | Path, streams: list[Stream]) -> None:
    """Write streams to the file `path` in the format that `read` reads."""

    def joined(parts: list[Array], shape: tuple[int, ...]) -> tuple[Array, Array]:
        whole = np.concatenate(parts) if parts else np.zeros(shape, np.uint8)
        return whole, np.cumsum([0, *map(len, parts)]).astype(np.int64)

    insn, insn_start = joined([s.words for s in streams], (0, 16))
    dram, dram_start = joined([s.before for s in streams], (0,))
    after, _ = joined([s.after for s in streams], (0,))
    np.savez_compressed(
        path,
        name=np.array([s.name for s in streams], np.str_),
        insn=insn, insn_start=insn_start, dram=dram, dram_start=dram_start, delta=dram ^ after,
        dram_base=np.array([s.base for s in streams], np.uint32),
        counters=np.array([[s.counters[n] for n in COUNTERS] for s in streams], np.uint64).reshape(-1, len(COUNTERS)),
        counter_names=np.array(COUNTERS),
    )  # fmt: skip


def differences(stream: Stream, config: Config = DEFAULT) -> list[str]:
    """The differences of a run from a recorded stream, in each of the three orders in which the queues may start."""
    results: list[str] = []
    for first in range(3):
        machine, image = Machine(config), stream.before.copy()
        try:
            machine.run(stream.words, {stream.base: image}, first)
        except SimulationError as error:
            results.append(error.headline())
            continue
        wrong = np.flatnonzero(image != stream.after)
        if len(wrong):
            at = int(wrong[0])
            got = f"at address {stream.base + at}, expected {stream.after[at]}, got {image[at]}"
            results.append(f"memory differs in {len(wrong)} bytes, first {got}")
        for name, value in machine.counters.items():
            if value != stream.counters[name]:
                results.append(f"counter {name}: expected {stream.counters[name]}, got {value}")
    return list(dict.fromkeys(results))


def arrays(path: Path, wanted: Mapping[str, tuple[str, int]]) -> dict[str, Array]:
    """The arrays of the .npz file at `path` that `wanted` names; each must have the type and number of dimensions
    stated there. Raises ParseError."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {i.filename: i.file_size for i in archive.infolist()}
            if any(i.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for i in archive.infolist()):
                raise ParseError("an unknown compression", where=str(path))
            if sum(sizes.values()) > LARGEST:
                got = sum(sizes.values())
                raise ParseError("the file is too large", where=str(path), expected=f"{LARGEST} bytes at most", got=got)
            problems, result = Problems(), {}
            for name, kind in wanted.items():
                try:
                    result[name] = _array(archive, path, name, kind, sizes)
                except Error as error:
                    problems.add(error)
            problems.raise_if_any(where=str(path), kind=ParseError)
            return result
    except OSError as error:
        raise ParseError(f"the file cannot be read: {error.strerror or error}", where=str(path)) from error
    except _UNREADABLE as error:
        raise ParseError(f"this is no file of recorded streams: {error}", where=str(path)) from error


def _array(archive: zipfile.ZipFile, path: Path, name: str, wanted: tuple[str, int], sizes: dict[str, int]) -> Array:
    member, where = f"{name}.npy", f"{path}: {name}"
    if member not in sizes:
        raise ParseError("an array is missing", where=where)
    kind, rank = wanted
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if header is None:
            raise ParseError("an unknown version of NumPy's format", where=where, got=version)
        shape, fortran, dtype = header(file, max_header_size=10_000)
        fits = dtype.kind == "U" if kind == "U" else dtype == np.dtype(f"<{kind}")
        if not fits or fortran or len(shape) != rank:
            expected = f"{kind} of {rank} dimensions, row by row"
            raise ParseError("wrong type", where=where, expected=expected, got=f"{dtype.str}{list(shape)}")
        count = 1
        for extent in shape:
            count *= extent
        if min(shape, default=0) < 0 or count * dtype.itemsize > sizes[member]:
            raise ParseError("the array is longer than the file", where=where, got=list(shape))
        data = file.read(count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise ParseError("the array ends too early", where=where)
    return np.frombuffer(data, dtype).reshape(shape)
