"""Raw weights as one run of bytes: a safetensors image whose layout follows from the parameters alone.

    0      length of the index (u64)
    8      the index: JSON, name -> {dtype, shape, data_offsets}; blanks up to a multiple of 64
    ...    the tensors in the parameters' order, each at a multiple of 64

Tensors named `__pad_N__` fill the gaps, so that the image is a complete safetensors file of which every tensor can be
used in place. Because the layout follows from the parameters, a reader that knows them knows every byte but the values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.interop import Array
from tilewright.runtime.specs import ALIGNMENT, ParamSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import ArtifactError

Buffer = bytes | memoryview | Array

_SAFETENSORS = {
    "f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "bool": "BOOL",
    "i2": "I8", "i4": "I8", "u2": "U8", "u4": "U8",
    "f4e2m1": "U8", "f8e4m3fn": "F8_E4M3", "f8e4m3fnuz": "U8", "f8e5m2": "F8_E5M2", "f8e5m2fnuz": "U8", "f8e8m0": "U8",
    **{f"{sign}{bits}": f"{sign.upper()}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of an image of weights.

    Args:
        head: the index with its length before it.
        starts: offset in bytes of each parameter's values, from the image's begin.
        nbytes: the whole image.
    """

    head: bytes
    starts: tuple[int, ...]
    nbytes: int


def layout(params: Iterable[ParamSpec]) -> Layout:
    """The layout of these parameters' image."""
    params = tuple(params)
    names = {p.name for p in params}
    index: dict[str, Any] = {}
    starts: list[int] = []
    at = 0
    for p in params:
        index[p.name] = {"dtype": _SAFETENSORS[p.dtype], "shape": list(p.shape), "data_offsets": [at, at + p.nbytes]}
        starts.append(at)
        at += p.nbytes
        if padding := -at % ALIGNMENT:
            pad = _pad_name(len(index), names)
            index[pad] = {"dtype": "U8", "shape": [padding], "data_offsets": [at, at + padding]}
            at += padding
    text = json.dumps(index, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    return Layout(head, tuple(len(head) + start for start in starts), len(head) + at)


def pack(params: Iterable[ParamSpec], weights: Mapping[str, Array]) -> Iterator[Buffer]:
    """The bytes of the image of `weights`, in pieces: the header, padding, and the arrays. A contiguous array is not
    copied."""
    params = tuple(params)
    placed = layout(params)
    yield placed.head
    at = len(placed.head)
    for p, start in zip(params, placed.starts, strict=True):
        yield bytes(start - at)
        yield np.ascontiguousarray(weights[p.name]).reshape(-1).view(np.uint8) if p.nbytes else b""
        at = start + p.nbytes
    yield bytes(placed.nbytes - at)


def pack_into(placed: Layout, params: Sequence[ParamSpec], arrays: Sequence[Array], memory: Array) -> None:
    """Write the image of `arrays` into `memory`, which has exactly the size of `placed`: one copy, whatever the arrays'
    strides."""
    memory[: len(placed.head)] = np.frombuffer(placed.head, np.uint8)
    at = len(placed.head)
    for p, start, array in zip(params, placed.starts, arrays, strict=True):
        memory[at:start] = 0
        at = start + p.nbytes
        if p.nbytes:
            np.copyto(memory[start:at].view(BY_NAME[p.dtype].numpy).reshape(p.shape), array)
    memory[at : placed.nbytes] = 0


def unpack(params: Iterable[ParamSpec], data: memoryview) -> dict[str, Array]:
    """The weights in the image `data`, by name, as views. Raises ArtifactError if it is no image of `params`."""
    index, body = indexed(data, "weights")
    weights: dict[str, Array] = {}
    for p in params:
        where = f"weight {p.name!r}"
        entry = index.get(p.name)
        if not isinstance(entry, dict) or entry.get("dtype") != _SAFETENSORS[p.dtype]:
            raise ArtifactError("is missing or of another type than the manifest says", where=where)
        if entry.get("shape") != list(p.shape):
            raise ArtifactError("has another shape than the manifest says", where=where)
        offsets = entry.get("data_offsets")
        if not isinstance(offsets, list) or [type(o) for o in offsets] != [int, int]:
            raise ArtifactError("has no offsets", where=where)
        start, end = offsets
        if start % ALIGNMENT or not 0 <= start <= end <= len(body) or end - start != p.nbytes:
            raise ArtifactError("is out of place", where=where)
        weights[p.name] = np.frombuffer(body[start:end], BY_NAME[p.dtype].numpy).reshape(p.shape)
    return weights


def indexed(data: memoryview, where: str) -> tuple[dict[str, Any], memoryview]:
    """The JSON object at the start of `data`, after its length in 8 bytes, and the bytes that follow it. Raises
    ArtifactError if there is none."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ArtifactError("its index is longer than it", where=where)
    return json_object(bytes(data[8 : 8 + length]), where), data[8 + length :]


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object from bytes. Raises ArtifactError for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ArtifactError("is not JSON", where=where) from None
    if not isinstance(value, dict):
        raise ArtifactError("is not a JSON object", where=where)
    return value


def _pad_name(number: int, used_names: set[str]) -> str:
    name = f"__pad_{number}__"
    while name in used_names:
        name = f"_{name}"
    return name
