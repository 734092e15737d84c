"""Loads and stores: the cheapest way to move the lanes of an access, by what `address` says of where they lie.

One address is a scalar, neighbours are one vector, lanes near each other or in a few runs some loads and a shuffle,
strides scalar moves, anything else a gather or scatter. Masked accesses use the masked forms, or none where all lanes
lie in memory of our own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.llvm.address import (
    Access,
    address,
    buffer_offset,
    classify,
    is_contiguous,
    is_own,
    lane_pointers,
)
from tilewright.codegen.llvm.avx512 import byte_entries, literal_table, permuted, permuted_by_eights
from tilewright.codegen.llvm.lookups import looked_up
from tilewright.codegen.llvm.masks import place_bits, places_within, step_of
from tilewright.codegen.llvm.ops import suffix
from tilewright.codegen.llvm.polynomial import Poly, add, as_constant, constant
from tilewright.codegen.llvm.runs import joined
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.stream import may_stream, stream
from tilewright.codegen.llvm.transpose import SIZES, column, fenced
from tilewright.codegen.llvm.values import (
    Span,
    Value,
    literal,
    memory_type,
    register_type,
    splat_literal,
    vector_literal,
)
from tilewright.ir.dtype import DType, boolean, f32, i64, u8
from tilewright.ir.expr import Buffer, Const, Expr, as_int

ENTRIES = 1 << u8.bits
"""The number of entries of a table with a byte for each 8-bit number."""
PART = 64
"""The number of bytes of a table that one vector holds."""

PIECES = 3
"""The least number of pieces in which a vector of a width that is no power of two would be loaded, for which a masked
load replaces them: with two pieces some small reductions took 1.1 times as long under a mask (Zen 5, 27 November
2026)."""

# loads


def load(s: State, buffer: Buffer, indices: Sequence[Expr]) -> Value:
    """The value of `buffer[indices]`: scalar if it is the same for all lanes."""
    t = buffer.dtype
    access = classify(s, buffer_offset(s, buffer, indices))
    if s.lanes is None or (access.steps is not None and not any(access.steps)):
        return Value(t, (_load_scalar(s, buffer, access.base),))
    on = s.on if access.steps is not None else None
    own = access
    if on is not None and access.steps is not None:
        access = Access(access.base, _where_on(access.steps, on))
    parts = []
    start = 0
    for k, width in enumerate(s.lanes.widths):
        mask = None if s.mask is None or on is not None else s.parts(s.mask)[k]
        column = None if on is None else _column_on(s, buffer, own, start, on[start : start + width])
        if column is not None:
            parts.append(column)
        elif mask is None:
            parts.append(_load_vector(s, buffer, access, k, start, width))
        else:
            parts.append(_load_masked(s, buffer, access, k, start, width, mask))
        start += width
    return Value(t, tuple(parts), True)


def is_table(s: State, buffer: Buffer, number: Expr) -> bool:
    """Whether a buffer is a table with a byte for each 8-bit number, and lanes read it at different indices."""
    size = as_int(buffer.shape[0]) if len(buffer.shape) == 1 else None
    return (
        number.dtype is u8 and size == ENTRIES and buffer.dtype.bits == 8 and s.lanes is not None and s.varies(number)
    )


def load_entries(s: State, table: Buffer, numbers: Value) -> Value:
    """The entry of a table of 256 bytes for each lane, at 8-bit numbers, so that no lane reads outside of it: by
    permutations of registers if the machine has them, else one lane after another, as gathers of bytes would take
    longer."""
    assert s.lanes is not None
    t, picks = table.dtype, s.target.isa.byte_tables >= ENTRIES
    vectors = []
    if picks:
        starts = [address(s, table, constant(k)) for k in range(0, ENTRIES, PART)]
        vectors = [s.load(table, where, memory_type(t, PART), align) for where, align in starts]
    parts = []
    for part, width in zip(numbers.parts, s.lanes.widths, strict=True):
        parts.append(byte_entries(s.out, part, vectors, width) if picks else _each_entry(s, table, part, width))
    return Value(t, tuple(parts), True)


def _each_entry(s: State, table: Buffer, numbers: str, width: int) -> str:
    where, _ = address(s, table, constant(0))
    ty, result = memory_type(table.dtype, width), "poison"
    for k in range(width):
        number = s.out.inst(f"extractelement {register_type(u8, width)} {numbers}, i64 {k}")
        place = s.out.inst(f"zext i8 {number} to i64")
        pointer = s.out.inst(f"getelementptr inbounds i8, ptr {where}, i64 {place}")
        entry = s.load(table, pointer, memory_type(table.dtype), 1)
        result = s.out.inst(f"insertelement {ty} {result}, {memory_type(table.dtype)} {entry}, i64 {k}")
    return result


def _where_on(steps: tuple[int, ...], on: tuple[bool, ...]) -> tuple[int, ...]:
    """The lanes' offsets `steps`, in which each lane that is off has the offset of the nearest lane that is on."""
    lanes = [k for k, x in enumerate(on) if x]
    return tuple(steps[min(lanes, key=lambda m: abs(m - k))] for k in range(len(steps)))


def lookup_lanes(s: State, index: Expr, table: Sequence[Const]) -> Value | None:
    """The entries of a table for all lanes as literals, if each lane's index is a known number; else None."""
    access = classify(s, s.converter.poly(index))
    first = as_constant(access.base)
    if s.lanes is None or access.steps is None or first is None:
        return None
    t, last = table[0].dtype, len(table) - 1
    element = register_type(t)
    entries = [f"{element} {literal(table[min(max(first + step, 0), last)].value, t)}" for step in access.steps]
    ends = zip(s.lanes.offsets, s.lanes.widths, strict=True)
    return Value(t, tuple(f"<{', '.join(entries[start : start + width])}>" for start, width in ends), True)


def lookup_register(s: State, index: Value, table: Sequence[Const]) -> Value:
    """For each lane the entry of a table of sixteen f32 at the low bits of the i32 in `index`."""
    assert s.lanes is not None
    entries, half = [literal(entry.value, f32) for entry in table], len(table) // 2
    ends = list(zip(index.parts, s.lanes.widths, strict=True))
    if s.target.isa.tables >= len(table):
        whole = literal_table(entries)
        return Value(f32, tuple(permuted(s.out, part, whole, width) for part, width in ends), True)
    low, high = literal_table(entries[:half]), literal_table(entries[half:])
    return Value(f32, tuple(permuted_by_eights(s.out, part, low, high, width) for part, width in ends), True)


def lookup(s: State, index: Value, table: Sequence[Const]) -> Value:
    """An entry of a table of literals. The index is clamped to the table, so that lanes which are off read no
    other memory."""
    t = table[0].dtype
    # Memory holds a bool as a byte, a 4-bit integer as its low bits.
    entries = [str(int(entry.value)) if t is boolean or t.bits < 8 else literal(entry.value, t) for entry in table]
    symbol = s.out.table(memory_type(t), entries)
    inside = s.elementwise("min", [index, Value(i64, (str(len(table) - 1),))], i64)
    inside = s.elementwise("max", [inside, Value(i64, ("0",))], i64)
    parts = []
    for k, operand in enumerate(inside.parts):
        width = s.lanes.widths[k] if inside.vector and s.lanes else 0
        pointer = s.out.inst(
            f"getelementptr inbounds {memory_type(t)}, ptr {symbol}, {register_type(i64, width)} {operand}"
        )
        if width:
            parts.append(_gather(s, t, pointer, width, "splat (i1 true)"))
        else:
            raw = s.out.inst(f"load {memory_type(t)}, ptr {pointer}, align {t.itemsize}")
            parts.append(from_memory(s, raw, t, 0))
    return Value(t, tuple(parts), inside.vector)


def _load_scalar(s: State, buffer: Buffer, p: Poly) -> str:
    where, align = address(s, buffer, p)
    return from_memory(s, s.load(buffer, where, memory_type(buffer.dtype), align), buffer.dtype, 0)


def _load_contiguous(s: State, buffer: Buffer, p: Poly, width: int) -> str:
    where, align = address(s, buffer, p)
    t = buffer.dtype
    whole = 1 << (width - 1).bit_length()
    own, aligned = s.pointer(buffer).elements > 0, align >= whole * t.itemsize
    masked = own if aligned else width.bit_count() >= PIECES
    if masked and width < whole and as_constant(p) is None and _calculates(s, t):
        read = s.read_once(buffer, where, memory_type(t, width), lambda: _load_first(s, t, where, align, width, whole))
        return from_memory(s, read, t, width)
    return from_memory(s, s.load(buffer, where, memory_type(t, width), align), t, width)


def _calculates(s: State, t: DType) -> bool:
    """Whether vectors of type `t` are loaded under masks and used in arithmetic as loaded. Floats of 16 bits are
    converted to f32 first, where a denormal is an ordinary number."""
    return t.is_float and t.itemsize >= 4 and s.target.isa.masked_reads


def _load_first(s: State, t: DType, where: str, align: int, width: int, whole: int) -> str:
    """The first `width` lanes of a vector of `whole`, loaded under a mask.

    Without a mask LLVM loads an unaligned vector whose width is no power of two in pieces, 15 elements as 8, 4, 2 and
    1, and joins them. An aligned one it loads whole, as this may be read, and computes with all lanes. In an unwritten
    allocation these hold denormals by chance, each of which may cost a processor a hundred cycles
    (docs/decisions/idle-lanes.md). Allocations with constant indices alone are excepted: they become registers, in
    which unwritten lanes are zero, and LLVM does so with ordinary loads only.
    """
    mask = vector_literal(tuple(int(lane < width) for lane in range(whole)), "i1")
    result, lanes = _masked_load(s, t, where, align, whole, mask), vector_literal(tuple(range(width)), "i32")
    ty = memory_type(t, whole)
    return s.out.inst(f"shufflevector {ty} {result}, {ty} poison, <{width} x i32> {lanes}")


def _load_vector(s: State, buffer: Buffer, access: Access, k: int, start: int, width: int) -> str:
    t = buffer.dtype
    if access.steps is not None:
        tile = _tile_column(s, buffer, access, start, width)
        if tile is not None:
            return tile
        steps = access.steps[start : start + width]
        low, high = min(steps), max(steps)
        first = add(access.base, constant(low))
        if low == high:
            return s.splat(_load_scalar(s, buffer, first), t, width)
        picks = tuple(x - low for x in steps)
        if high - low < width:  # no more is read than from the first to the last element that a lane reads
            whole = _load_contiguous(s, buffer, first, high - low + 1)
            return whole if picks == tuple(range(width)) else _shuffle(s, whole, None, t, high - low + 1, picks)
        if high - low < 2 * width and width > 2:
            # Two loads that lie inside the touched range, one at each end, cover it: of as many lanes as are loaded in
            # one piece (docs/decisions/idle-lanes.md).
            touched = high - low + 1
            lanes = width if width & (width - 1) == 0 else 1 << touched.bit_length() - 1
            head = _load_contiguous(s, buffer, first, lanes)
            tail = _load_contiguous(s, buffer, add(access.base, constant(high - lanes + 1)), lanes)
            where = tuple(x if x < lanes else 2 * lanes + x - touched for x in picks)
            return _shuffle(s, head, tail, t, lanes, where)
        result = joined(
            steps,
            lambda first, length: _load_contiguous(s, buffer, add(access.base, constant(first)), length),
            lambda lanes: lambda a, b, picks: _shuffle(s, a, b, t, lanes, picks),
        )
        return result or _collect(s, buffer, [add(access.base, constant(x)) for x in steps], width)
    if access.stride is not None:
        offsets = [add(access.base, access.stride, start + lane) for lane in range(width)]
        return _collect(s, buffer, offsets, width)
    picked = looked_up(s, buffer, access, k, width)
    if picked:
        return picked
    pointers = lane_pointers(s, buffer, access, k, start, width)
    return _gather(s, t, pointers, width, splat_literal("true", "i1"))


def _column_on(s: State, buffer: Buffer, access: Access, start: int, on: tuple[bool, ...]) -> str | None:
    """The lanes `start` to `start + len(on)` of an access that goes down a column of a tile some of whose rows have not
    been written: those of lanes that are not `on`, whose elements are arbitrary. None for other accesses, and for
    integers, since a division by an arbitrary one is undefined."""
    if sum(on) < 2 or buffer.dtype.kind != "float":
        return None
    return _tile_column(s, buffer, access, start, len(on), on=on)


def _tile_column(
    s: State,
    buffer: Buffer,
    access: Access,
    start: int,
    width: int,
    *,
    whole: bool = True,
    on: tuple[bool, ...] | None = None,
) -> str | None:
    """The lanes `start` to `start + width` of an access that goes down a column of a square tile in an allocation of
    this function, shuffled from the tile's rows; None for other accesses. If not `whole`, only the rows of lanes that
    are on need to have been written; with `on`, those of the lanes that are on in it."""
    pointer, base = s.pointer(buffer), as_constant(access.base)
    assert access.steps is not None
    steps = access.steps[start : start + width]
    itemsize = buffer.dtype.itemsize
    if pointer.copies > 1 or base is None or width < 2:
        return None
    n = steps[1] - steps[0]
    if n not in SIZES.get(itemsize, ()) or steps != tuple(range(steps[0], steps[0] + n * width, n)):
        return None
    row, j = divmod(base + steps[0], n)
    top = row - row % n
    there = min(n, pointer.elements // n - top)
    least = n if whole else 1
    if on is not None:
        least = row % n + max(k for k, x in enumerate(on) if x) + 1
    if row % n + width > n or there < least:
        return None
    as_bytes = _is_part_of_a_byte(buffer.dtype)
    t = u8 if as_bytes else buffer.dtype
    read = range(there) if on is None else [row % n + k for k, x in enumerate(on) if x]
    rows = [_load_row(s, buffer, constant((top + r) * n), n) if r in read else "poison" for r in range(n)]
    known = s.places[-1].shuffles

    def shuffle(a: str, b: str, picks: tuple[int, ...]) -> str:
        """The elements `picks` of the concatenated vectors `a` and `b`. Equal shuffles are emitted once: neighbouring
        columns have most shuffles in common, and LLVM would take a third of the kernel's compile time to discover
        that."""
        if a == b == "poison":
            return a
        if (a, b, picks) not in known:
            known[a, b, picks] = _shuffle(s, a, b, t, n, picks)
        return known[a, b, picks]

    def fence(a: str) -> str:
        if (a, a, ()) not in known:
            known[a, a, ()] = a if a == "poison" else fenced(s.out, s.target, t, n)(a)
        return known[a, a, ()]

    result = column(rows, j, shuffle, itemsize, fence)
    if width < n:
        result = _shuffle(s, result, None, t, n, tuple(range(row % n, row % n + width)))
    return from_memory(s, result, buffer.dtype, width) if as_bytes else result


def _load_row(s: State, buffer: Buffer, p: Poly, width: int) -> str:
    """Emit the load of a tile's row, `width` elements from offset `p` on, in its type in memory; elements of less than
    8 bits take a byte each."""
    if not _is_part_of_a_byte(buffer.dtype):
        return _load_contiguous(s, buffer, p, width)
    where, align = address(s, buffer, p)
    return s.load(buffer, where, memory_type(buffer.dtype, width), align)


def _is_part_of_a_byte(t: DType) -> bool:
    return t is boolean or t.bits < 8


def _collect(s: State, buffer: Buffer, offsets: Sequence[Poly], width: int) -> str:
    """Emit the load of a buffer's elements at `offsets`, one for each of `width` lanes, as scalars put into a vector:
    on most CPUs this is faster than a gather."""
    ty, element = register_type(buffer.dtype, width), register_type(buffer.dtype)
    vector = "poison"
    for lane, p in enumerate(offsets):
        vector = s.out.inst(f"insertelement {ty} {vector}, {element} {_load_scalar(s, buffer, p)}, i64 {lane}")
    return vector


def _shuffle(s: State, a: str, b: str | None, t: DType, width: int, picks: tuple[int, ...]) -> str:
    ty = register_type(t, width)
    return s.out.inst(
        f"shufflevector {ty} {a}, {ty} {b or 'poison'}, <{len(picks)} x i32> {vector_literal(picks, 'i32')}"
    )


def _gather(s: State, t: DType, pointers: str, width: int, mask: str) -> str:
    ty = memory_type(t, width)
    name = f"llvm.masked.gather.{_memory_suffix(t, width)}.v{width}p0"
    symbol = s.out.declare(name, ty, [f"<{width} x ptr>", f"<{width} x i1>", ty])
    where = f"<{width} x ptr> align {t.itemsize} {pointers}"
    raw = s.out.inst(f"call {ty} {symbol}({where}, <{width} x i1> {mask}, {ty} zeroinitializer)")
    return from_memory(s, raw, t, width)


def _load_masked(s: State, buffer: Buffer, access: Access, k: int, start: int, width: int, mask: str) -> str:
    t = buffer.dtype
    if is_own(s, buffer, access, start, width):
        return _load_vector(s, buffer, access, k, start, width)
    if access.steps is not None and (tile := _tile_column(s, buffer, access, start, width, whole=False)) is not None:
        return tile  # It is all ours: lanes that are off may be read.
    if is_contiguous(access, start, width):
        assert access.steps is not None
        return _load_lanes_on(s, buffer, add(access.base, constant(access.steps[start])), width, mask)
    if access.steps is not None:
        steps = access.steps[start : start + width]
        if max(steps) - min(steps) < MAX_MASKED_LOADS * width:
            return _load_unbroadcast(s, buffer, access.base, steps, mask, _elements_between(s, access.steps))
    return _gather(s, t, lane_pointers(s, buffer, access, k, start, width), width, mask)


MAX_MASKED_LOADS = 4
"""The largest number of masked vector loads that replace a gather, which loads each lane separately."""


def _load_lanes_on(s: State, buffer: Buffer, p: Poly, width: int, mask: str) -> str:
    """A load of `width` neighbouring elements under `mask`: elements of lanes that are off are not read."""
    where, align = address(s, buffer, p)
    return from_memory(s, _masked_load(s, buffer.dtype, where, align, width, mask), buffer.dtype, width)


def _masked_load(s: State, t: DType, where: str, align: int, width: int, mask: str) -> str:
    """Emit a masked load of `width` elements of type `t` from address `where`, which is a multiple of `align` bytes,
    and return its name: a vector of their type in memory, in which lanes that are off are zero."""
    ty = memory_type(t, width)
    name = f"llvm.masked.load.{_memory_suffix(t, width)}.p0"
    symbol = s.out.declare(name, ty, ["ptr", f"<{width} x i1>", ty])
    return s.out.inst(f"call {ty} {symbol}(ptr align {align} {where}, <{width} x i1> {mask}, {ty} zeroinitializer)")


def _elements_between(s: State, steps: tuple[int, ...]) -> Span | None:
    """The range of elements that lanes at the offsets `steps` read, from the first lane that is on to the last. It is
    known only if the lanes that are on follow each other and the offsets grow by one stride; else None. All elements in
    the range may be read."""
    span = s.mask.span if s.mask else None
    stride = steps[1] - steps[0]
    if span is None or stride <= 0 or steps != tuple(range(steps[0], steps[0] + stride * len(steps), stride)):
        return None
    return Span(step_of(s, span.low, stride, steps[0]), step_of(s, span.high, stride, steps[0] - stride + 1))


def _load_unbroadcast(
    s: State, buffer: Buffer, base: Poly, steps: tuple[int, ...], mask: str, between: Span | None
) -> str:
    """A load of lanes at the offsets `steps` that are close together, some lanes off: masked loads of the vectors of
    neighbours that contain these elements, then shuffles. Only elements that some lane reads are loaded, or all in the
    range `between`."""
    width, low = len(steps), min(steps)
    result, bits = "poison", place_bits(s, width, max(map(abs, steps)) + 2 * width)
    for first in range(low, max(steps) + 1, width):
        if not any(first <= x < first + width for x in steps):
            continue
        if between is None:
            on = _read(s, steps, first, mask)
        else:
            on = places_within(s, range(first, first + width), between, bits)
        vector = _load_lanes_on(s, buffer, add(base, constant(first)), width, on)
        picks = tuple(width + x - first if first <= x < first + width else lane for lane, x in enumerate(steps))
        result = _shuffled(s, result, vector, register_type(buffer.dtype), width, picks)
    return result


def _read(s: State, steps: tuple[int, ...], first: int, mask: str) -> str:
    """The mask of the elements `first` to `first + len(steps)` that a lane reads which is on in `mask`; lane k reads
    element `steps[k]`."""
    width = len(steps)
    readers = [[lane for lane, step in enumerate(steps) if step == first + k] for k in range(width)]
    turns = [tuple(r[turn] if turn < len(r) else width for r in readers) for turn in range(max(map(len, readers)))]
    on, *others = (_shuffled(s, mask, "zeroinitializer", "i1", width, turn) for turn in turns)
    for other in others:
        on = s.out.inst(f"or <{width} x i1> {on}, {other}")
    return on


def _shuffled(s: State, a: str, b: str, element: str, width: int, picks: tuple[int, ...]) -> str:
    ty = f"<{width} x {element}>"
    return s.out.inst(f"shufflevector {ty} {a}, {ty} {b}, <{width} x i32> {vector_literal(picks, 'i32')}")


def _memory_suffix(t: DType, width: int) -> str:
    if t is boolean or t.bits < 8:
        return f"v{width}i8"
    return f"v{width}i16" if t.name == "bf16" else suffix(t, width)


def from_memory(s: State, raw: str, t: DType, width: int) -> str:
    """Emit the conversion of `raw`, one element (`width` 0) or a vector of `width` elements of type `t`, from its type
    in memory to its type in registers; returns the result's name."""
    ty = memory_type(t, width)
    if t is boolean:
        return s.out.inst(f"icmp ne {ty} {raw}, {'zeroinitializer' if width else '0'}")
    if t.bits < 8:
        return s.out.inst(f"trunc {ty} {raw} to {register_type(t, width)}")
    return raw


def to_memory(s: State, value: str, t: DType, width: int) -> str:
    """Emit the conversion of `value`, one element (`width` 0) or a vector of `width` elements of type `t`, from its
    type in registers to its type in memory; returns the result's name."""
    if t is boolean or t.bits < 8:
        extend = "sext" if t.kind == "int" else "zext"
        return s.out.inst(f"{extend} {register_type(t, width)} {value} to {memory_type(t, width)}")
    return value


# stores


def store_scalar(s: State, buffer: Buffer, p: Poly, value: str) -> None:
    where, align = address(s, buffer, p)
    raw = to_memory(s, value, buffer.dtype, 0)
    s.out.effect(f"store {memory_type(buffer.dtype)} {raw}, ptr {where}, align {align}")


def _only_lane(s: State, start: int, width: int) -> int | None:
    """The only active lane of the vector of `width` lanes from `start` on, if it is known that there is only one; else
    None. LLVM 22 emits one 32-bit store of narrowed elements under such a mask, which overwrites the bytes after the
    element."""
    span = None if s.mask is None else s.mask.span
    if s.on is not None:
        lanes = [k for k in range(width) if s.on[start + k]]
    elif span is not None and not (span.low.startswith("%") or span.high.startswith("%")):
        lanes = [k for k in range(width) if int(span.low) <= start + k < int(span.high)]
    else:
        return None
    return lanes[0] if len(lanes) == 1 else None


def store(s: State, buffer: Buffer, indices: Sequence[Expr], value: Value) -> list[tuple[str, str, str]]:
    """Store `value` to `buffer[indices]` for all lanes. If all lanes store to one element, it gets the last lane's
    value. Returns (address, type, value) of each streaming store."""
    access = classify(s, buffer_offset(s, buffer, indices))
    if s.lanes is None or (access.steps is not None and not any(access.steps) and not value.vector):
        store_scalar(s, buffer, access.base, value.scalar)
        return []
    places = _vector_places(s, access)
    if places and may_stream(s, buffer, places):
        parts = [to_memory(s, part, buffer.dtype, w) for part, w in zip(s.parts(value), s.lanes.widths, strict=True)]
        return stream(s, buffer, places, parts)
    start = 0
    for k, width in enumerate(s.lanes.widths):
        part = s.parts(value)[k]
        mask = None if s.mask is None else s.parts(s.mask)[k]
        _store_part(s, buffer, access, k, start, width, part, mask)
        start += width
    return []


def _vector_places(s: State, access: Access) -> list[Poly]:
    """The offset of each vector of a contiguous access; an empty list for other accesses."""
    assert s.lanes is not None
    if access.steps is None:
        return []
    if not all(is_contiguous(access, k, width) for k, width in zip(s.lanes.offsets, s.lanes.widths, strict=True)):
        return []
    return [add(access.base, constant(access.steps[k])) for k in s.lanes.offsets]


def _store_part(
    s: State, buffer: Buffer, access: Access, k: int, start: int, width: int, part: str, mask: str | None
) -> None:
    t = buffer.dtype
    ty = memory_type(t, width)
    if mask is not None and is_own(s, buffer, access, start, width):
        old = _load_vector(s, buffer, access, k, start, width)
        part, mask = s.ops.select(mask, width, part, old, t, width), None
    if is_contiguous(access, start, width):
        assert access.steps is not None
        where, align = address(s, buffer, add(access.base, constant(access.steps[start])))
        alone = None if mask is None or t.itemsize >= 4 else _only_lane(s, start, width)
        if alone is not None:
            single = s.out.inst(f"extractelement {register_type(t, width)} {part}, i64 {alone}")
            store_scalar(s, buffer, add(access.base, constant(access.steps[start + alone])), single)
            return
        raw = to_memory(s, part, t, width)
        if mask is None:
            s.out.effect(f"store {ty} {raw}, ptr {where}, align {align}")
        else:
            name = f"llvm.masked.store.{_memory_suffix(t, width)}.p0"
            symbol = s.out.declare(name, "void", [ty, "ptr", f"<{width} x i1>"])
            s.out.effect(f"call void {symbol}({ty} {raw}, ptr align {align} {where}, <{width} x i1> {mask})")
        return
    if mask is None and access.varying is None:
        for lane in range(width):
            if access.steps is not None:
                p = add(access.base, constant(access.steps[start + lane]))
            else:
                assert access.stride is not None
                p = add(access.base, access.stride, start + lane)
            single = s.out.inst(f"extractelement {register_type(t, width)} {part}, i64 {lane}")
            store_scalar(s, buffer, p, single)
        return
    pointers = lane_pointers(s, buffer, access, k, start, width)
    name = f"llvm.masked.scatter.{_memory_suffix(t, width)}.v{width}p0"
    symbol = s.out.declare(name, "void", [ty, f"<{width} x ptr>", f"<{width} x i1>"])
    raw = to_memory(s, part, t, width)
    lanes = mask or splat_literal("true", "i1")
    s.out.effect(
        f"call void {symbol}({ty} {raw}, <{width} x ptr> align {t.itemsize} {pointers}, <{width} x i1> {lanes})"
    )
