"""Prefetching: the hints of loops with the notes `Prefetch`, `PrefetchTile` and `PrefetchShare` (`ir/notes.py`).

    for k in 0..128 @prefetch(buffers=[w], nbytes=4096)     each step: the lines of its part of w, 4096 bytes on

They are hints without meaning for the program; addresses past a buffer do no harm. Hardware follows streams of its own
accord but stops at the end of a page and sees a stream late; weights that come from memory gain up to a fifth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import dropwhile

from tilewright.arith import bounds, simplify
from tilewright.codegen.llvm.address import address, buffer_offset
from tilewright.codegen.llvm.polynomial import Poly, add, constant, multiply
from tilewright.codegen.llvm.state import State
from tilewright.ir.dtype import u8
from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int, const, maximum, minimum, select
from tilewright.ir.loops import For, Stmt, Store
from tilewright.ir.notes import Prefetch, PrefetchShare, PrefetchTile, find
from tilewright.ir.rewrite import exprs_of, loads, substitute, variables, walk

MAX_LINES = 8
"""The largest number of lines that an iteration prefetches, if the note does not state it."""


def before_prefetch(s: State, stmt: For) -> None:
    """Compute before a loop the parts of its prefetch addresses that no iteration changes: the few passes of LLVM that
    run here would leave them in the loop."""
    if s.lanes is not None:
        return
    for atom in atoms_of(s, stmt):
        s.scalar(atom)


def atoms_of(s: State, stmt: For) -> list[Expr]:
    """The atoms in the addresses of a loop's prefetch hints that can be computed before the loop begins."""
    shares = [shift(s, stmt, note, load) or {} for note, load in _prefetched(stmt)]
    atoms = dict.fromkeys(s.atoms.exprs[n] for share in shares for monomial in share for n in monomial)
    return [e for e in atoms if all(v is not stmt.var and (v in s.env or v in s.constants) for v in variables(e))]


def _prefetched(stmt: For) -> Iterator[tuple[Prefetch, Load]]:
    """(the loop's note, the first load of an iteration) for each buffer that the note names and the loop reads."""
    note = find(stmt.notes, Prefetch)
    for load in (first_read(stmt, source) for source in (note.buffers if note is not None else ())):
        if note is not None and load is not None:
            yield note, load


def emit_prefetch(s: State, stmt: For) -> None:
    """Emit the prefetches that one iteration of a loop makes at its start."""
    if s.lanes is not None:
        return
    tile = find(stmt.notes, PrefetchTile)
    for note, load in _prefetched(stmt):
        _following(s, stmt, note, load)
    _share(s, stmt)
    for source in tile.buffers if tile is not None else ():
        for access in tile_of(stmt, source, s.target.caches.line):
            _line(s, access.buffer, buffer_offset(s, access.buffer, access.indices), locality=2)


def _line(s: State, buffer: Buffer, offset: Poly, locality: int) -> None:
    """Emit a prefetch of the cache line that contains a buffer's element at `offset`. `locality` is LLVM's: 0 (none) to
    3 (into all levels)."""
    symbol = s.out.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    place, _ = address(s, buffer, offset)
    s.out.effect(f"call void {symbol}(ptr {place}, i32 0, i32 {locality}, i32 1)")


def _share(s: State, stmt: For) -> None:
    """Emit the prefetches of an iteration's share of the buffer in the loop's note. Of two neighbouring lines only one
    is prefetched, as hardware loads the other as well."""
    result = share_of(s, stmt)
    if result is not None:
        buffer, start, each = result
        for prefetch in range(0, each, 2 * s.target.caches.line):
            _line(s, buffer, add(start, constant(prefetch)), locality=2)


def share_of(s: State, stmt: For) -> tuple[Buffer, Poly, int] | None:
    """(buffer, offset of the share, bytes of the share) that an iteration prefetches, by the loop's note
    `PrefetchShare`. The number of the iteration among all those of the enclosing loops gives the offset. None without
    the note."""
    note = find(stmt.notes, PrefetchShare)
    if note is None:
        return None
    rank: Expr = const(0)
    count = 1
    for loop, extent in most_iterations((*s.enclosing, stmt)):
        if extent is None:
            return None
        rank, count = rank * extent + loop.var, count * extent
    each = -(-note.nbytes // count)
    return Buffer(note.source, u8, (const(note.nbytes),)), multiply(s.converter.poly(rank), constant(each)), each


def _following(s: State, stmt: For, note: Prefetch, load: Load) -> None:
    """Emit the prefetches of one buffer: of `note.nbytes` bytes after the first element that an iteration loads."""
    locality = 3 if note.level == 1 else 2
    size = load.buffer.dtype.itemsize
    moved = shift(s, stmt, note, load)
    if moved is None:
        return
    start = add(buffer_offset(s, load.buffer, load.indices), moved)
    for line in range(lines_of(s, stmt, note, start, size)):
        _line(s, load.buffer, add(start, constant((note.nbytes + line * s.target.caches.line) // size)), locality)


def lines_of(s: State, stmt: For, note: Prefetch, start: Poly, itemsize: int) -> int:
    """The number of lines that an iteration prefetches from offset `start` on: as many as lie between it and the next
    iteration's."""
    if note.lines is not None:
        return note.lines
    stride = start.get((s.atoms.number(stmt.var),), 0) * itemsize
    return min(max(1, stride // s.target.caches.line), MAX_LINES)


def shift(s: State, stmt: For, note: Prefetch, load: Load) -> Poly | None:
    """The distance, in elements, from an iteration's load to the lines that it is to prefetch: how far ahead the note
    says, and which share of the lines belongs to the row or tile of this run of the loop. None if it has no share.

    Shares are rounded up: the last of them reaches a few lines further.
    """
    if note.turn is not None:
        return _turn(s, stmt, note, load)
    steps, sharing, rows = as_int(stmt.extent), note.rows, _rows(stmt, load)
    if note.tiles is not None:
        rank, sharing = _rank(s, load, note.tiles), note.tiles
        if rank is None:
            return None
        rows = rank, 1, const(sharing)
    if sharing is None or steps is None or rows is None:
        return {}
    first, count, extent = rows
    if note.strip is not None:
        first = first % note.strip
    step = (s.atoms.number(stmt.var),)
    stride = s.converter.offset(load.buffer, load.indices).get(step, 0)
    line = s.target.caches.line // load.buffer.dtype.itemsize
    if note.strip is None or ((known := as_int(extent)) is not None and known >= sharing):
        part = -(-count * stride // sharing)
        start, each = first * (steps * stride) // sharing, _whole(const(part), line) if part > line else const(part)
    else:
        # Fewer rows than share have larger parts. Very few have none: each prefetches its own panel. Where that is of
        # no use, as memory is busy and a hint takes the place of a load, their hints are for what they just read.
        share = const(steps * stride) // minimum(maximum(extent, 1), sharing)
        start, each = first * share, _whole(-(-(share * count) // steps), line)
        if note.fewer_than is not None and count < note.fewer_than:
            moved = ((note.distance or 0) - note.nbytes) // load.buffer.dtype.itemsize
            start = select(extent < note.fewer_than, moved, start)
            each = select(extent < note.fewer_than, stride, each)
    return add(s.converter.poly(simplify(start + stmt.var * simplify(each))), {step: -stride})


def _whole(elements: Expr, line: int) -> Expr:
    """`elements` rounded up to a multiple of `line`, the elements of a cache line: a share that ended within a line
    would leave out the lines that follow."""
    return -(-elements // line) * line


def _turn(s: State, stmt: For, note: Prefetch, load: Load) -> Poly:
    """The offset, in elements, from which a run of the loop prefetches if runs take turns: run k of `note.turns` begins
    `k * note.lines` cache lines on. Zero if they do not."""
    other = None if note.turn is None else first_read(stmt, note.turn)
    if other is None or note.turns is None:
        return {}
    each = (note.lines or 1) * s.target.caches.line // load.buffer.dtype.itemsize
    return multiply(s.converter.poly(other.indices[0] % note.turns), constant(each))


def _rows(stmt: For, load: Load) -> tuple[Expr, int, Expr] | None:
    """(first row, number of rows, number of all rows) that a run of the loop works on; None if there are no rows. Rows
    are indices into another buffer that is only read, by an inner loop whose variable is not an index of `load`."""
    body = tuple(walk(stmt.body))
    written = {x.buffer for x in body if isinstance(x, Store)}
    others = [e for x in body for part in exprs_of(x) for e in loads(part) if e.buffer not in (load.buffer, *written)]
    mine = {
        v for x in body for part in exprs_of(x) for e in loads(part) if e.buffer is load.buffer for v in variables(e)
    }
    for inner in body:
        extent = as_int(inner.extent) if isinstance(inner, For) else None
        if not isinstance(inner, For) or extent is None or inner.var in mine:
            continue
        places = ((i, d) for e in others for i, d in zip(e.indices, e.buffer.shape, strict=True))
        for index, rows in places:
            if inner.var in variables(index):
                return substitute(index, {inner.var: const(0)}), extent, rows
    return None


def _rank(s: State, load: Load, tiles: int) -> Expr | None:
    """The number of this run of the loop among `tiles` runs that read the same elements: the place in the enclosing
    loops whose variables `load` does not use. None if these make fewer runs. Directly enclosing loops that `load` uses,
    as those of a reduction, do not count."""
    moving = {v for index in load.indices for v in variables(index)}
    rank: Expr = const(0)
    count = 1
    loops = reversed(most_iterations(s.enclosing))
    for outer, extent in dropwhile(lambda entry: entry[0].var in moving, loops):
        if outer.var in moving or extent is None:
            break
        rank, count = rank + outer.var * count, count * extent
    return rank if count == tiles else None


def most_iterations(nest: Sequence[For]) -> list[tuple[For, int | None]]:
    """Each loop of a nest, the outermost first, with an upper bound on its number of iterations; None if symbols decide
    it."""
    extents = {loop.var: loop.extent for loop in nest}
    return [
        (loop, bounds(loop.extent, extents).hi if extents.keys() >= set(variables(loop.extent)) else None)
        for loop in nest
    ]


def first_read(stmt: For, name: str) -> Load | None:
    """The first element of the buffer that an iteration reads."""
    first = {inner.var: const(0) for inner in walk(stmt.body) if isinstance(inner, For)}
    for inner in walk(stmt.body):
        for e in exprs_of(inner):
            for load in loads(e):
                if load.buffer.name == name:
                    return Load(load.buffer, tuple(substitute(i, first) for i in load.indices))
    return None


def tile_of(stmt: For, name: str, line: int) -> list[Load]:
    """One access for each cache line of `line` bytes that an iteration of `stmt` touches of buffer `name` in unrolled
    and vectorized loops. Variables of other loops are 0."""
    result = _first_access(stmt.body, name, ())
    if result is None:
        return []
    access, enclosing = result
    places: list[dict[Var, Expr]] = [{}]
    for loop in enclosing:
        extent = as_int(loop.extent)
        step = max(1, line // access.buffer.dtype.itemsize) if loop.kind == "vectorized" else 1
        spread = extent is not None and loop.kind in ("unrolled", "vectorized")
        values = range(0, extent, step) if spread and extent is not None else (0,)
        places = [{**place, loop.var: const(v)} for place in places for v in values]
    return [Load(access.buffer, tuple(substitute(i, place) for i in access.indices)) for place in places]


def _first_access(stmt: Stmt, name: str, enclosing: tuple[For, ...]) -> tuple[Load, tuple[For, ...]] | None:
    """The first access to buffer `name` in `stmt`, as a load, and the loops inside `stmt` around it."""
    if isinstance(stmt, For):
        enclosing = (*enclosing, stmt)
    if isinstance(stmt, Store) and stmt.buffer.name == name:
        return Load(stmt.buffer, stmt.indices), enclosing
    for e in exprs_of(stmt):
        for load in loads(e):
            if load.buffer.name == name:
                return load, enclosing
    return next((x for child in stmt.children if (x := _first_access(child, name, enclosing)) is not None), None)
