"""Tensors of a GGUF file (llama.cpp's): F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K. Format: ggml/docs/gguf.md.

A file is read from outside: every count, length and offset is checked against the file's size before it is used.
Unquantised tensors are views of the file, others become a `CodedWeight`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import field
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.frontend.weights.coded import Array, CodedWeight, paired
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, Problems, UnsupportedError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_RANK = 4
NESTED = 4
"""The deepest nesting of lists in the metadata."""
BLOCK = 256
"""Elements of a block of the kinds whose names end with K."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class Kind:
    """The format of one tensor type: elements and bytes of a block, and a function that decodes blocks, u8[rows,
    blocks, bytes]."""

    name: str
    elements: int
    nbytes: int
    read: Callable[[Array], Array | CodedWeight]


def read_gguf(path: str | Path) -> dict[str, Array | CodedWeight]:
    """All tensors of a file by name: arrays with the outermost dimension first, or quantised matrices.

    Raises ModelError where the file is damaged, UnsupportedError for tensors of a type that is not read.
    """
    where = str(path)
    with Path(path).open("rb") as file:
        try:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:
            raise ModelError("is no GGUF file: it is empty", where=where) from None
    cursor = _Cursor(data, where)
    if bytes(cursor.take(4)) != MAGIC:
        raise ModelError("is no GGUF file", where=where, expected=MAGIC.decode(), got=repr(bytes(data[:4])))
    version = cursor.number("I")
    if version not in VERSIONS:
        raise UnsupportedError("the version of the file is not read", where=where, expected="2 or 3", got=version)
    tensors, entries = cursor.number("Q"), cursor.number("Q")
    alignment = 32
    for _ in range(cursor.count(entries, 12)):
        key, value = cursor.text(), cursor.value(cursor.number("I"))
        if key == "general.alignment":
            alignment = value
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise ModelError("the alignment is no power of two", where=where, got=repr(alignment))
    infos = [_info(cursor) for _ in range(cursor.count(tensors, 24))]
    start = cursor.at + -cursor.at % alignment
    problems, result = Problems(), dict[str, Array | CodedWeight]()
    for name, shape, kind, offset in infos:
        try:
            if name in result:
                raise ModelError("two tensors have one name", where=name)
            result[name] = _tensor(data, name, shape, kind, start + offset)
        except ModelError as error:
            problems.add(error)
    problems.raise_if_any(f"tensors of {where} cannot be read")
    return result


@dataclass(slots=True)
class _Cursor:
    """A reading position in the bytes of a file, which `where` names in messages."""

    data: memoryview
    where: str
    at: int = field(default=0)

    def take(self, count: int) -> memoryview:
        if count < 0 or count > len(self.data) - self.at:
            left = len(self.data) - self.at
            raise ModelError("the file ends early", where=self.where, expected=f"{count} bytes", got=left)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def count(self, number: int, least: int) -> int:
        """`number`, a count of entries of at least `least` bytes each. Raises ModelError if so many do not fit the rest
        of the file."""
        if number > (len(self.data) - self.at) // least:
            left = len(self.data) - self.at
            raise ModelError("the file ends early", where=self.where, expected=f"{number} entries", got=f"{left} bytes")
        return number

    def text(self) -> str:
        return bytes(self.take(self.number("Q"))).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """Read one value of type number `kind` of the file's metadata, inside of `depth` lists: a number or text; a
        list is skipped, which gives None."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth >= NESTED:
            raise ModelError("no such kind of value", where=self.where, got=kind)
        inner, number = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            width = struct.calcsize("<" + _SCALARS[inner])
            self.take(self.count(number, width) * width)
            return None
        for _ in range(self.count(number, 8)):
            self.value(inner, depth + 1)
        return None


def _info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """The name, the shape with the outermost dimension first, the type and the offset of a tensor."""
    name, rank = cursor.text(), cursor.number("I")
    if rank > MAX_RANK:
        raise ModelError("a tensor has too many dimensions", where=name, expected=f"at most {MAX_RANK}", got=rank)
    shape = tuple(cursor.number("Q") for _ in range(rank))[::-1]
    return name, shape, cursor.number("I"), cursor.number("Q")


def _tensor(data: memoryview, name: str, shape: tuple[int, ...], code: int, begin: int) -> Array | CodedWeight:
    kind = KINDS.get(code)
    if kind is None:
        known = " ".join(k.name for k in KINDS.values())
        raise UnsupportedError("the type of the tensor is not read", where=name, expected=known, got=code)
    if 0 in shape:
        raise ModelError("the tensor has no elements", where=name, got=shape)
    width = shape[-1] if shape else 1
    if width % kind.elements:
        raise ModelError("rows are no whole blocks", where=name, expected=f"a multiple of {kind.elements}", got=width)
    nbytes = prod(shape) // kind.elements * kind.nbytes
    if begin + nbytes > len(data):
        raise ModelError("the tensor ends after the file", where=name, expected=begin + nbytes, got=len(data))
    blocks = np.frombuffer(data, np.uint8, nbytes, begin)
    lines = prod(shape[:-1])
    if kind.elements == 1:
        numbers = kind.read(blocks)
        assert isinstance(numbers, np.ndarray)
        return numbers.reshape(shape)
    coded = kind.read(blocks.reshape(lines, width // kind.elements, kind.nbytes))
    return coded if isinstance(coded, CodedWeight) and len(shape) == 2 else _whole(coded, shape)


def _whole(coded: Array | CodedWeight, shape: tuple[int, ...]) -> Array:
    return (coded.numpy() if isinstance(coded, CodedWeight) else coded).reshape(shape)


# -- the blocks of each type: ggml/src/ggml-common.h -------------------------------------------------------------------


def _float16(blocks: Array, at: int) -> Array:
    """The f16 number at byte `at` of each block, as f32[rows, blocks]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _unpaired(codes: Array) -> Array:
    """The 4-bit codes of each block, one a byte: the low halves of all bytes, then the high halves."""
    return np.concatenate((codes & 15, codes >> 4), axis=-1)


def _q8_0(blocks: Array) -> CodedWeight:
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return CodedWeight(codes, _float16(blocks, 0))


def _q4_0(blocks: Array) -> CodedWeight:
    return CodedWeight(paired(_unpaired(blocks[..., 2:])), _float16(blocks, 0), zero=8.0, paired=True)


def _q4_1(blocks: Array) -> CodedWeight:
    codes = paired(_unpaired(blocks[..., 4:]))
    return CodedWeight(codes, _float16(blocks, 0), offsets=-_float16(blocks, 2), paired=True)


def _q4_k(blocks: Array) -> CodedWeight:
    """Decode blocks [rows, count, bytes] of GGUF's format Q4_K: codes of 4 bits in eight groups of 32, whose scales and
    offsets have 6 bits."""
    low, high, mixed = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate((low & 63, (mixed & 15) | (low >> 2 & 48)), axis=-1).astype(np.float32)
    mins = np.concatenate((high & 63, (mixed >> 4) | (high >> 2 & 48)), axis=-1).astype(np.float32)
    rows, count, _ = blocks.shape
    codes = _unpaired(blocks[..., 16:].reshape(rows, count, 4, 32)).reshape(rows, count * 8, 32)
    scales, mins = _float16(blocks, 0)[..., None] * scales, _float16(blocks, 2)[..., None] * mins
    groups = (rows, count * 8)
    return CodedWeight(paired(codes), scales.reshape(groups), offsets=mins.reshape(groups), paired=True)


def _q6_k(blocks: Array) -> CodedWeight:
    """Decode blocks [rows, count, bytes] of GGUF's format Q6_K: sixteen groups of 16 with scales of 8 bits; codes of 6
    bits become bytes."""
    rows, count, _ = blocks.shape
    low = _unpaired(blocks[..., :128].reshape(rows, count, 2, 64))
    shifts = np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1)
    high = blocks[..., 128:192].reshape(rows, count, 2, 1, 32) >> shifts & 3
    codes = (low | high.reshape(low.shape) << 4).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    whole = scales * _float16(blocks, 208)[..., None]
    return CodedWeight(codes.reshape(rows, count * 16, 16), whole.reshape(rows, count * 16))


KINDS = {
    0: Kind("F32", 1, 4, lambda b: b.view(np.float32)),
    1: Kind("F16", 1, 2, lambda b: b.view(np.float16)),
    2: Kind("Q4_0", 32, 18, _q4_0),
    3: Kind("Q4_1", 32, 20, _q4_1),
    8: Kind("Q8_0", 32, 34, _q8_0),
    12: Kind("Q4_K", BLOCK, 144, _q4_k),
    14: Kind("Q6_K", BLOCK, 210, _q6_k),
    30: Kind("BF16", 1, 2, lambda b: b.view(ml_dtypes.bfloat16)),
}
"""The supported tensor types, by their number in files."""
