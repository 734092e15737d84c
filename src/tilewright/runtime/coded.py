"""Lossless compression of weights, for `save(compressed=True)`.

    for each parameter, in the manifest's order:
        kind (u8)
        0  the values
        1  distinct values (u32 their number, then they), and for each element the index of its own, u8
        2  the same with indices of u16
        3  the values, first all lowest bytes, then all second ones, ...
        4  distinct values as in 1, and the indices by Huffman's code
        5  distinct values; the index of the commonest one and how many elements have another value (u32 both); how many
           gaps there are (u32), and these by Huffman's code: as many elements as lie between one with another value and
           the next, 255 for 255 elements and none after them; the indices of the other values by Huffman's code
    all of it coded by LZMA, as an .xz stream

Reading limits the size of its output by the manifest, and restores the same bits.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime import huffman
from tilewright.runtime.interop import Array
from tilewright.runtime.specs import ParamSpec
from tilewright.support.errors import ArtifactError

MEMORY = 256 << 20
"""The most bytes of a decoder's dictionary."""
_RAW, _BYTES, _WORDS, _PLANES, _HUFFMAN, _GAPS = range(6)
_STEP = 255
"""The most elements that a gap spans, in weights of which nearly all elements have one value."""
_INDICES: dict[int, Any] = {_BYTES: np.dtype("<u1"), _WORDS: np.dtype("<u2")}


def squeeze(data: bytes) -> bytes:
    """Bytes compressed by LZMA."""
    return lzma.compress(data, check=lzma.CHECK_CRC32, preset=6)


def expand(data: bytes | memoryview, most: int, where: str) -> bytes:
    """The bytes that `squeeze` compressed to `data`. Raises ArtifactError, about `where`, if it is no such stream or
    holds more than `most` bytes."""
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        out = decoder.decompress(bytes(data), max_length=most + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise ArtifactError(f"cannot be unpacked: {error}", where=where) from None
    if not decoder.eof or decoder.unused_data or len(out) > most:
        raise ArtifactError("cannot be unpacked: it is cut off, or holds more than it says", where=where)
    return out


def encode(params: Iterable[ParamSpec], weights: Mapping[str, Array]) -> bytes:
    """The arrays `weights` of the parameters `params`, compressed to bytes that `decode` reads."""
    return squeeze(b"".join(_encoded(np.ascontiguousarray(weights[p.name]), p) for p in params))


def decode(params: Iterable[ParamSpec], data: memoryview) -> dict[str, Array]:
    """The weights by name. Raises ArtifactError if the bytes do not encode weights of these parameters."""
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
    """The bytes of one weight in the encoding that compresses best: raw, planes of bytes, or distinct values with
    indices."""
    bits = array.reshape(-1).view(np.dtype(f"<u{BY_NAME[p.dtype].numpy.itemsize}"))
    if bits.itemsize == 1 or not bits.size:
        return bytes([_RAW]) + bits.tobytes()
    distinct, indices = np.unique(bits, return_inverse=True)
    head = len(distinct).to_bytes(4, "little") + distinct.tobytes()
    kinds: list[bytes] = []
    for kind, index in _INDICES.items():
        size = distinct.nbytes + bits.size * index.itemsize
        if len(distinct) <= np.iinfo(index).max + 1 and size < bits.nbytes:
            kinds = [bytes([kind]) + head + indices.astype(index).tobytes()]
            kinds.append(bytes([_HUFFMAN]) + head + huffman.encode(indices, len(distinct)))
            kinds.append(bytes([_GAPS]) + head + _gaps(indices, len(distinct)))
            break
    planes = bits.view(np.uint8).reshape(-1, bits.itemsize).T
    kinds = kinds or [bytes([_PLANES]) + np.ascontiguousarray(planes).tobytes()]
    return (
        min((k for k in kinds if len(k) <= p.nbytes + 5), key=lambda k: len(squeeze(k))) if len(kinds) > 1 else kinds[0]
    )


def _gaps(indices: Array, count: int) -> bytes:
    """`indices` below `count`, most of which are equal, encoded as the most common one, then the gaps between the other
    ones, and their values."""
    common = int(np.argmax(np.bincount(indices, minlength=count)))
    others = np.flatnonzero(indices != common)
    spans = np.diff(others, prepend=-1)
    gaps = np.full(int(np.sum((spans - 1) // _STEP + 1)), _STEP)
    gaps[np.cumsum((spans - 1) // _STEP + 1) - 1] = (spans - 1) % _STEP
    numbers = b"".join(n.to_bytes(4, "little") for n in (common, len(others), len(gaps)))
    return numbers + huffman.encode(gaps, _STEP + 1) + huffman.encode(indices[others], count)


def _decoded(stream: bytes, at: int, p: ParamSpec) -> tuple[Array, int]:
    """(the weight `p`, whose code begins at byte `at` of `stream`; the position after it). Raises ArtifactError for
    invalid codes."""
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
    elif kind in (*_INDICES, _HUFFMAN, _GAPS):
        number = int.from_bytes(take(4), "little")
        if number > count:
            raise ArtifactError("has more distinct values than elements", where=where, got=number)
        distinct = np.frombuffer(take(number * t.itemsize), t)
        if kind in _INDICES:
            indices = np.frombuffer(take(count * _INDICES[kind].itemsize), _INDICES[kind])
        elif kind == _HUFFMAN:
            indices, used = huffman.decode(stream[at:], count, where)
            at += used
        else:
            numbers = np.frombuffer(take(12), "<u4").tolist()
            indices, used = _from_gaps(stream[at:], count, numbers, where)
            at += used
        if count and (not number or int(indices.max()) >= number):
            raise ArtifactError("has an index beyond its values", where=where)
        flat = distinct[indices]
    else:
        raise ArtifactError("is of no known kind", where=where, got=kind)
    return flat.reshape(p.shape), at


def _from_gaps(stream: bytes, count: int, numbers: list[int], where: str) -> tuple[Array, int]:
    """(the `count` indices that `_gaps` encoded in `stream`, the number of bytes that they take); `numbers` are the
    three at the beginning. Raises ArtifactError, about `where`, if they do not fit."""
    common, others, gaps = numbers
    if others > count or gaps > others + count // _STEP:
        raise ArtifactError("has more elements than it says", where=where, expected=count, got=max(others, gaps))
    spans, first = huffman.decode(stream, gaps, where)
    values, second = huffman.decode(stream[first:], others, where)
    ends = np.flatnonzero(spans < _STEP)
    places = np.cumsum(np.where(spans < _STEP, spans + 1, _STEP))[ends] - 1
    if len(ends) != others or (others and (places[-1] >= count or spans.max() > _STEP)):
        raise ArtifactError("has gaps that do not fit its elements", where=where)
    indices = np.full(count, common, np.int64)
    indices[places] = values
    return indices, first + second
