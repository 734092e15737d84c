"""Huffman coding (1952) of small integers, vectorised with NumPy: runs of the sequence are processed side by side.

    size of the alphabet (u32), the length of each symbol's code in bits (u8 each; 0: it does not occur)
    for each run of 256 symbols (the last may be shorter): its bytes (u16)
    the runs: codes, the highest bit first, then zeros up to a byte

Codes are canonical: in order of their lengths, then of their symbols. Reading checks every length.
"""

from __future__ import annotations

import heapq

import numpy as np

from tilewright.runtime.interop import Array
from tilewright.support.errors import ArtifactError

RUN = 256
"""Symbols of a run; each run is decoded sequentially, all runs side by side."""
LONGEST = 16
"""The most bits of a code."""
PORTION = 1 << 20
"""Symbols that are encoded at a time."""


def encode(symbols: Array, alphabet: int) -> bytes:
    """Encode an integer array [n] of symbols from 0 to `alphabet - 1`."""
    lengths = _lengths(np.bincount(symbols, minlength=alphabet))
    codes = _codes(lengths)
    head = alphabet.to_bytes(4, "little") + lengths.tobytes()
    sizes, parts = [], []
    for at in range(0, symbols.size, PORTION):
        nbytes, data = _runs(symbols[at : at + PORTION], lengths, codes)
        sizes.append(nbytes.astype("<u2").tobytes())
        parts.append(data)
    return head + b"".join(sizes) + b"".join(parts)


def decode(data: bytes, count: int, where: str) -> tuple[Array, int]:
    """(`count` symbols, i64[count], decoded from the beginning of `data`; the number of bytes read). Raises
    ArtifactError, about `where`, for an invalid code."""
    alphabet, at = int.from_bytes(data[:4], "little"), 4
    runs = -(-count // RUN)
    if len(data) < 4 or alphabet > len(data) - 4 or 2 * runs > len(data) - 4 - alphabet:
        raise ArtifactError("is cut off", where=where)
    table, used, width = _table(np.frombuffer(data, np.uint8, alphabet, at), where)
    at += alphabet
    sizes = np.frombuffer(data, "<u2", runs, at).astype(np.int64)
    at += 2 * runs
    ends = at + np.cumsum(sizes)
    whole = int(ends[-1]) if runs else at
    if whole > len(data):
        raise ArtifactError("is cut off", where=where)
    stream = np.frombuffer(data[:whole] + bytes(3), np.uint8).astype(np.int64)
    words = stream[:-2] << 16 | stream[1:-1] << 8 | stream[2:]
    symbols = np.empty((min(RUN, count), runs), np.int64)
    bits, last = 8 * (ends - sizes), 8 * ends
    full = count // RUN if count % RUN else runs  # runs that are as long as they can be
    for step in range(len(symbols)):
        now = bits[: full if step >= count % RUN else runs]
        code = words[np.minimum(now >> 3, whole)] >> (24 - width - (now & 7)) & ((1 << width) - 1)
        symbols[step, : len(now)] = table[code]
        now += used[code]
    symbols = symbols.T.reshape(-1)[:count]
    if not ((bits <= last) & (last - bits < 8)).all() or (symbols < 0).any():
        raise ArtifactError("has codes of other lengths than it says", where=where)
    return symbols, whole


def _lengths(counts: Array) -> Array:
    """The number of bits of each symbol's code, u8[alphabet], by the symbols' frequencies `counts`. Frequencies are
    halved until no code is longer than LONGEST."""
    counts = counts.astype(np.int64)
    while True:
        lengths = _huffman(counts)
        if lengths.max(initial=0) <= LONGEST:
            return lengths
        counts = np.where(counts > 0, (counts + 1) // 2, 0)


def _huffman(counts: Array) -> Array:
    """The bits of each code by Huffman's method; a single symbol gets one bit."""
    lengths = np.zeros(len(counts), np.uint8)
    heap = [(int(counts[k]), int(k)) for k in np.flatnonzero(counts)]
    if len(heap) == 1:
        lengths[heap[0][1]] = 1
    heapq.heapify(heap)
    parents: dict[int, int] = {}
    following = len(counts)
    while len(heap) > 1:
        (a, first), (b, second) = heapq.heappop(heap), heapq.heappop(heap)
        parents[first] = parents[second] = following
        heapq.heappush(heap, (a + b, following))
        following += 1
    depths = {following - 1: 0}
    for node in sorted(parents, reverse=True):  # parents have greater numbers
        depths[node] = depths[parents[node]] + 1
        if node < len(counts):
            lengths[node] = min(depths[node], 255)
    return lengths


def _codes(lengths: Array) -> Array:
    """The canonical code of each symbol, u32, by their lengths."""
    codes = np.zeros(len(lengths), np.uint32)
    code = before = 0
    for symbol in np.lexsort((np.arange(len(lengths)), lengths)):
        length = int(lengths[symbol])
        if length:
            code <<= length - before
            codes[symbol], before = code, length
            code += 1
    return codes


def _table(lengths: Array, where: str) -> tuple[Array, Array, int]:
    """(for each pattern of as many bits as the longest code the symbol whose code begins it, -1 if none; the length of
    that code; the number of bits): a decoding table for codes of `lengths` bits. Raises ArtifactError, about `where`,
    if these are no code."""
    width = max(int(lengths.max(initial=0)), 1)
    if width > LONGEST:
        raise ArtifactError("has a code that is too long", where=where, expected=LONGEST, got=width)
    occurring = np.flatnonzero(lengths)
    order = occurring[np.lexsort((occurring, lengths[occurring]))]
    spans = 1 << (width - lengths[order].astype(np.int64))
    filled = int(spans.sum())
    if filled != 1 << width and not (len(order) <= 1 and width == 1):
        raise ArtifactError("has lengths of no code", where=where)
    table, used = np.full(1 << width, -1, np.int64), np.zeros(1 << width, np.int64)
    table[:filled], used[:filled] = np.repeat(order, spans), np.repeat(lengths[order].astype(np.int64), spans)
    return table, used, width


def _runs(symbols: Array, lengths: Array, codes: Array) -> tuple[Array, bytes]:
    """(bytes of each run of RUN symbols, the encoded runs one after another) for symbols with codes of `lengths`
    bits."""
    sizes = lengths[symbols].astype(np.int64)
    begins = np.arange(0, symbols.size, RUN)
    nbytes = (np.add.reduceat(sizes, begins) + 7) // 8
    before = np.cumsum(sizes) - sizes
    within = before - np.repeat(before[begins], np.diff(np.append(begins, symbols.size)))
    start = 8 * np.repeat(np.cumsum(nbytes) - nbytes, np.diff(np.append(begins, symbols.size))) + within
    bits = np.zeros(8 * int(nbytes.sum()), np.uint8)
    for k in range(int(sizes.max(initial=0))):
        long = sizes > k
        bits[start[long] + k] = codes[symbols[long]] >> (sizes[long] - 1 - k).astype(np.uint32) & 1
    return nbytes, np.packbits(bits).tobytes()
