"""Weights in as few bytes as their values need: what `save(compressed=True)` writes in place of their image.

    for each parameter, in the manifest's order:
        kind (u8)
        0  the values
        1  distinct values (u32 their number, then they), and for each element the index of its own, u8
        2  the same with indices of u16
        3  the values, first all lowest bytes, then all second ones, ...
    all of it coded by LZMA, as an .xz stream

Reading bounds what comes out by what the manifest says, and gives the same bits.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.interop import Array
from tilewright.runtime.specs import ParamSpec
from tilewright.support.errors import ArtifactError

MEMORY = 256 << 20
"""Bytes that a decoder may take for its dictionary."""
_RAW, _BYTES, _WORDS, _PLANES = range(4)
_INDICES: dict[int, Any] = {_BYTES: np.dtype("<u1"), _WORDS: np.dtype("<u2")}


def squeeze(data: bytes) -> bytes:
    """Bytes by LZMA."""
    return lzma.compress(data, check=lzma.CHECK_CRC32, preset=6)


def expand(data: bytes | memoryview, most: int, where: str) -> bytes:
    """What `squeeze` was given. ArtifactError if it is no such stream or holds more than `most` bytes."""
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        out = decoder.decompress(bytes(data), max_length=most + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise ArtifactError(f"cannot be unpacked: {error}", where=where) from None
    if not decoder.eof or decoder.unused_data or len(out) > most:
        raise ArtifactError("cannot be unpacked: it is cut off, or holds more than it says", where=where)
    return out


def encode(params: Iterable[ParamSpec], weights: Mapping[str, Array]) -> bytes:
    """The weights of these parameters."""
    return squeeze(b"".join(_encoded(np.ascontiguousarray(weights[p.name]), p) for p in params))


def decode(params: Iterable[ParamSpec], data: memoryview) -> dict[str, Array]:
    """The weights by name. ArtifactError where the bytes are no weights of these parameters."""
    params = tuple(params)
    stream = expand(data, sum(p.nbytes + 5 for p in params), "weights")
    weights: dict[str, Array] = {}
    at = 0
    for p in params:
        weights[p.name], at = _decoded(stream, at, p)
    if at != len(stream):
        raise ArtifactError("hold more than the parameters", where="weights", expected=at, got=len(stream))
    return weights


def _encoded(array: Array, p: ParamSpec) -> bytes:
    """One tensor in the smallest of the kinds."""
    bits = array.reshape(-1).view(np.dtype(f"<u{BY_NAME[p.dtype].numpy.itemsize}"))
    if bits.itemsize == 1 or not bits.size:
        return bytes([_RAW]) + bits.tobytes()
    distinct, indices = np.unique(bits, return_inverse=True)
    for kind, index in _INDICES.items():
        size = distinct.nbytes + bits.size * index.itemsize
        if len(distinct) <= np.iinfo(index).max + 1 and size < bits.nbytes:
            return (
                bytes([kind])
                + len(distinct).to_bytes(4, "little")
                + distinct.tobytes()
                + indices.astype(index).tobytes()
            )
    planes = bits.view(np.uint8).reshape(-1, bits.itemsize).T
    return bytes([_PLANES]) + np.ascontiguousarray(planes).tobytes()


def _decoded(stream: bytes, at: int, p: ParamSpec) -> tuple[Array, int]:
    """The tensor that begins at a byte, and where it ends."""
    where, t = f"weight {p.name!r}", np.dtype(BY_NAME[p.dtype].numpy)
    count = p.nbytes // t.itemsize

    def take(nbytes: int) -> bytes:
        nonlocal at
        if nbytes > len(stream) - at:
            raise ArtifactError("is cut off", where=where)
        part = stream[at : at + nbytes]
        at += nbytes
        return part

    kind = take(1)[0]
    if kind == _RAW:
        flat = np.frombuffer(bytearray(take(p.nbytes)), t)
    elif kind == _PLANES:
        planes = np.frombuffer(take(p.nbytes), np.uint8).reshape(t.itemsize, count)
        flat = np.ascontiguousarray(planes.T).reshape(-1).view(t)
    elif kind in _INDICES:
        number = int.from_bytes(take(4), "little")
        if number > count:
            raise ArtifactError("has more distinct values than elements", where=where, got=number)
        distinct = np.frombuffer(take(number * t.itemsize), t)
        indices = np.frombuffer(take(count * _INDICES[kind].itemsize), _INDICES[kind])
        if count and (not number or int(indices.max()) >= number):
            raise ArtifactError("has an index beyond its values", where=where)
        flat = distinct[indices]
    else:
        raise ArtifactError("is of no known kind", where=where, got=kind)
    return flat.reshape(p.shape), at
