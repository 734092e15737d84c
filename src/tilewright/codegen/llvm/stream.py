"""Stores past the caches, for outputs that are larger than the last one.

    for i in vectorized 0..32 { streaming = 1 }     y[...] = ...

An ordinary store first reads the line that it writes; of a copy that is a third of the traffic. A streaming store does
not, but wants to be aligned: the kernel asks once whether its output starts at an address for whole vectors, or at one
for pieces of 16 bytes, and chooses at each group of stores. Such stores may be seen late by other threads: a fence
stands before the barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tilewright.codegen.llvm.address import address
from tilewright.codegen.llvm.polynomial import Poly, divisor
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import memory_type, vector_literal
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer

PIECE = 16
"""The least number of bytes of one streaming store; pointers from NumPy are aligned to it."""


def may_stream(s: State, buffer: Buffer, places: Sequence[Poly]) -> bool:
    """Whether vectors that start at the offsets `places` of a buffer can be written by streaming stores."""
    size = buffer.dtype.itemsize
    if not s.streaming or not s.target.isa.streams_stores or s.mask is not None or buffer.dtype.bits < 8 or size > 8:
        return False
    if buffer.dtype.name == "bool" or s.pointer(buffer).elements:
        return False
    widths = s.lanes.widths if s.lanes is not None else ()
    whole = all(w * size % PIECE == 0 for w in widths)
    return whole and all(divisor({m: c * size for m, c in p.items()}, PIECE) % PIECE == 0 for p in places)


def stream(s: State, buffer: Buffer, places: Sequence[Poly], parts: Sequence[str]) -> list[tuple[str, str, str]]:
    """Store the vectors `parts` at the offsets `places` of a buffer by streaming stores: whole vectors if the buffer is
    aligned to them, else pieces, or ordinary stores if it is aligned to neither. Returns (address, type, value) of
    each."""
    assert s.lanes is not None
    out, t = s.out, buffer.dtype
    addresses = [address(s, buffer, p) for p in places]
    join = out.fresh("join")
    vector = s.target.vector_bits // 8
    multiple = gcd(vector, *(divisor({m: c * t.itemsize for m, c in p.items()}, vector) for p in places))
    for size in sorted({PIECE, multiple}, reverse=True):
        past, other = out.fresh("stream"), out.fresh("store")
        out.branch(_is_aligned(s, buffer, size), past, other)
        out.start(past)
        for (where, _), part, width in zip(addresses, parts, s.lanes.widths, strict=True):
            _pieces(s, t, where, part, width, size // t.itemsize)
        out.jump(join)
        out.start(other)
    align = min(align for _, align in addresses)
    for (where, _), part, width in zip(addresses, parts, s.lanes.widths, strict=True):
        out.effect(f"store {memory_type(t, width)} {part}, ptr {where}, align {align}")
    out.jump(join)
    out.start(join)
    s.streamed = True
    types = [memory_type(t, width) for width in s.lanes.widths]
    return [(where, ty, part) for (where, _), ty, part in zip(addresses, types, parts, strict=True)]


def _pieces(s: State, t: DType, where: str, part: str, width: int, most: int) -> None:
    """Write the vector `part` of `width` elements to address `where` by streaming stores of at most `most` elements
    each.

    A piece has the largest power of two of elements that divides the width: twelve elements are written by fours.
    """
    out = s.out
    fewer, note, ty = min(most, width & -width), out.nontemporal(), memory_type(t, width)
    for first in range(0, width, fewer):
        piece, place = part, where
        if width > fewer:
            picks = vector_literal(tuple(range(first, first + fewer)), "i32")
            piece = out.inst(f"shufflevector {ty} {part}, {ty} poison, <{fewer} x i32> {picks}")
            place = out.inst(f"getelementptr {memory_type(t)}, ptr {where}, i64 {first}")
        out.effect(f"store {memory_type(t, fewer)} {piece}, ptr {place}, align {fewer * t.itemsize}{note}")


def _is_aligned(s: State, buffer: Buffer, size: int) -> str:
    """An i1 operand: whether a buffer's address is a multiple of `size` bytes. It is computed once, where the function
    starts."""
    operand = s.pointer(buffer).operand
    name = f"%stream{size}.{operand.strip('%').strip(chr(34))}"
    lines = [
        f"  {name}.address = ptrtoint ptr {operand} to i64",
        f"  {name}.rest = and i64 {name}.address, {size - 1}",
        f"  {name} = icmp eq i64 {name}.rest, 0",
    ]
    if lines[0] not in s.out.entry:
        s.out.entry.extend(lines)
    return name


def fence(s: State) -> None:
    """Emit a fence after streaming stores, so that all threads see their data."""
    if s.streamed:
        symbol = s.out.declare("llvm.x86.sse.sfence", "void", [])
        s.out.effect(f"call void {symbol}()")
        s.streamed = False
