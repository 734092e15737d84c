"""Boxes: the part of a buffer that one iteration of a loop reads or writes, and the part of a block's domain for it.

Index expressions are relaxed over the loops inside; the ends of a box are over the loops around and symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.arith import bounds, linear, prove, simplify, symbolic_bounds, symbolic_limits
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, as_int, ceildiv, const
from tilewright.ir.loops import Block, For, Stmt
from tilewright.ir.rewrite import substitute, variables, walk, walk_expr
from tilewright.schedule.affine import Range, solve_ranges, union
from tilewright.schedule.state import conjuncts, extents_of, find, intrinsics_in, loads_in, loops_on, stores_in
from tilewright.support.classes import dataclass

Box = tuple[Range | None, ...]
"""A range for each index of a buffer; None: the whole dimension."""


@dataclass(frozen=True, slots=True)
class Read:
    """The part of a buffer that a load reads in one iteration of the outer loops, over all inner loops: as the whole
    `box`, and as `clipped`, cut at the upper ends that the reader's conditions state (a last tile that overhangs reads
    no further)."""

    box: Box
    clipped: Box


def needed(source: Block, boxes: Mapping[Buffer, Sequence[Box]]) -> dict[Var, Range]:
    """The range of each iterator of the block `source` for which it writes the elements in `boxes`, given for the
    buffers that it writes."""
    extents = {it.var: it.extent for it in source.iters}
    domain: dict[Var, Range] = {}
    for buffer, (first, *others) in ((b, candidate) for b, candidate in boxes.items() if candidate):
        box = first
        for other in others:
            box = _join(box, other)
        # A block that stores several elements runs for each of them that is needed.
        parts = _parts_written(source, buffer)
        solved = [solve_ranges(start, _starts(box, sizes), extents) for start, sizes in parts]
        for v in extents:
            if solved and all(v in ranges for ranges in solved):
                for ranges in solved:
                    domain[v] = union(domain[v], ranges[v]) if v in domain else ranges[v]
    return domain


def _parts_written(source: Block, buffer: Buffer) -> list[tuple[tuple[Expr, ...], tuple[Expr, ...]]]:
    """(starts, sizes) of each part of `buffer` that one instance of the block `source` writes; sizes are 1 for stores
    of an element."""
    elements = dict.fromkeys(s.indices for s in stores_in(source.body) if s.buffer == buffer)
    regions = [r for call in intrinsics_in(source) for r in call.outputs if r.buffer == buffer]
    return [(point, (const(1),) * len(point)) for point in elements] + [
        (tuple(start for start, _ in r.ranges), tuple(size for _, size in r.ranges)) for r in regions
    ]


def _starts(box: Box, sizes: Sequence[Expr]) -> Box:
    """The box of all starts from which a part of `sizes` elements has at least one element in `box`; None stays
    None."""
    return tuple(None if r is None else (r[0] - (size - 1), r[1]) for r, size in zip(box, sizes, strict=True))


def reads_within(
    root: Stmt,
    consumers: Iterable[Block],
    buffer: Buffer,
    enclosing: Mapping[Var, Expr],
    common: Mapping[Var, Expr] | None = None,
) -> list[Read]:
    """The boxes of `buffer` that the loads of the `consumers` read in one iteration of the loops `enclosing`. `common`:
    those of the enclosing loops whose iterations share the buffer, so that the reads of all of them count."""
    return [read for consumer in consumers for read in _reads_of(root, consumer, buffer, enclosing, common or {})]


def _reads_of(
    root: Stmt, consumer: Block, buffer: Buffer, enclosing: Mapping[Var, Expr], common: Mapping[Var, Expr]
) -> list[Read]:
    inner, binding = _inner_extents(root, consumer)
    inner |= common
    conditions = conjuncts(consumer.predicate)

    def read(low: Iterable[Expr], high: Iterable[Expr]) -> Read:
        ends = [(substitute(a, binding), substitute(b, binding)) for a, b in zip(low, high, strict=True)]
        box = tuple(_between(a, b, inner, enclosing, conditions) for a, b in ends)
        if not conditions:
            return Read(box, box)
        highest = (_limit(b, inner, enclosing, conditions) for _, b in ends)
        clipped = tuple(r if r is None or h is None else (r[0], h) for r, h in zip(box, highest, strict=True))
        return Read(box, clipped)

    results = [read(load.indices, load.indices) for load in loads_in(consumer) if load.buffer == buffer]
    for call in intrinsics_in(consumer):
        for r in (*call.outputs, *call.inputs):
            if r.buffer == buffer:
                results.append(read((a for a, _ in r.ranges), (a + n - 1 for a, n in r.ranges)))
    return results


def _between(
    low: Expr, high: Expr, inner: Mapping[Var, Expr], enclosing: Mapping[Var, Expr], assumptions: tuple[Expr, ...]
) -> Range | None:
    """The inclusive range, over the loops `inner`, from the least `low` to the greatest `high`, in terms of `enclosing`
    loops and symbols, where the conditions `assumptions` hold; None if it is not known."""
    first = _range_of(low, inner, enclosing, assumptions)
    last = first if high is low else _range_of(high, inner, enclosing, assumptions)
    if first is None or last is None:
        return None
    limit = _limit(high, inner, enclosing, assumptions)
    return first[0], limit if limit is not None and prove(limit <= last[1], enclosing) else last[1]


def _limit(
    index: Expr, inner: Mapping[Var, Expr], enclosing: Mapping[Var, Expr], assumptions: tuple[Expr, ...]
) -> Expr | None:
    """The upper end of an index that follows, over the loops `inner`, from the conditions `assumptions`, if it depends
    on enclosing loops; else None. Elements past an end that depends on enclosing loops are computed by another
    iteration. Past a fixed end are only elements that a last tile overhangs, and computing whole tiles is faster than
    testing conditions."""
    result = symbolic_limits(index, inner, enclosing, assumptions) if assumptions else ()
    moving = [
        e for e in result if _is_known(e, enclosing) and any(c > 0 and v in enclosing for v, c in linear(e).terms)
    ]
    return next((e for e in moving if all(prove(e <= other, enclosing) for other in moving)), next(iter(moving), None))


def _join(a: Box, b: Box) -> Box:
    return tuple(None if x is None or y is None else union(x, y) for x, y in zip(a, b, strict=True))


def _inner_extents(root: Stmt, block: Block) -> tuple[dict[Var, Expr], dict[Var, Expr]]:
    """(extents of the loops between `root` and the block's statements, the block's bindings)."""
    inner = extents_of(loops_on(find(root, lambda s: isinstance(s, Block) and s.name == block.name) or ()))
    inner |= extents_of(s for s in walk(block) if isinstance(s, For))
    return inner, {it.var: it.binding for it in block.iters}


def _range_of(
    index: Expr, inner: Mapping[Var, Expr], enclosing: Mapping[Var, Expr], assumptions: tuple[Expr, ...] = ()
) -> Range | None:
    """The inclusive range of `index` over the loops `inner`, where the conditions `assumptions` hold, as expressions of
    the `enclosing` loops and symbols; None if it is not known."""
    result = symbolic_bounds(index, inner, enclosing, assumptions)
    return result if result is not None and all(_is_known(e, enclosing) for e in result) else None


def _is_known(end: Expr, enclosing: Mapping[Var, Expr]) -> bool:
    """Whether `end`, an end of a range, depends on enclosing loops and symbols only."""
    if any(isinstance(n, Load) for n in walk_expr(end)):
        # An index that is itself loaded: where it leads is not known, and it may not be loaded everywhere.
        return False
    return all(v in enclosing or v.lo is not None for v in variables(end))


def clip(box: Range | None, whole: Expr, enclosing: Mapping[Var, Expr]) -> Range:
    """(start, extent) of the range `box`, inside the loops `enclosing`; the whole dimension, of extent `whole`, if the
    range is not known or not smaller."""
    if box is None:
        return const(0), whole
    extent = simplify(box[1] - box[0] + 1, enclosing)
    if any(v in enclosing for v in variables(extent)):
        limit = _most(extent, enclosing)
        if limit is None:
            return const(0), whole
        extent = const(limit)
    # A tile that is as long as a symbol can be stays a tile: loops of a known extent can be unrolled.
    if prove(extent >= whole) and (as_int(extent) is None or as_int(whole) is not None):
        return const(0), whole
    return box[0], extent


def _most(extent: Expr, enclosing: Mapping[Var, Expr]) -> int | None:
    """An upper bound of `extent` over the loops `enclosing`, None if there is none. `p // d - q // d` is at most `(p -
    q) / d` rounded up, which is tighter than the difference of the bounds of both."""
    limits = [bounds(extent, enclosing).hi]
    quotients = [(e, c) for e, c in linear(extent).terms if isinstance(e, Op) and e.name == "floordiv"]
    for a, positive in quotients:
        for b, negative in quotients:
            if positive == 1 and negative == -1 and a.args[1] is b.args[1] and prove(a.args[1] > 0, enclosing):
                difference = ceildiv(simplify(a.args[0] - b.args[0], enclosing), a.args[1])
                limits.append(bounds(simplify(extent - a + b + difference, enclosing), enclosing).hi)
    return min((x for x in limits if x is not None), default=None)


def written_box(root: Stmt, writer: Block, buffer: Buffer, enclosing: Mapping[Var, Expr]) -> Box:
    inner, binding = _inner_extents(root, writer)
    stores = [s for s in stores_in(writer.body) if s.buffer == buffer]
    if not stores:
        return (None,) * len(buffer.shape)
    return tuple(_range_of(substitute(i, binding), inner, enclosing) for i in stores[0].indices)


def covered(
    indices: Sequence[Expr], box: Box, domain: Mapping[Var, Range], buffer: Buffer, enclosing: Mapping[Var, Expr]
) -> bool:
    """Whether `indices` of a buffer, for all values of their variables in `domain` and of the loops `enclosing`, are
    known to lie in `box`; at an end of the buffer, beyond which there are no elements, they may be outside of it."""
    offsets = {v: Var(f"{v.name}.offset") for v in domain}
    spans = {offsets[v]: simplify(high - low + 1, enclosing) for v, (low, high) in domain.items()}
    point = {v: domain[v][0] + offsets[v] for v in domain}
    for index, part, size in zip(indices, box, buffer.shape, strict=True):
        if part is None:
            return False
        reach = _range_of(substitute(index, point), spans, enclosing)
        if reach is None:
            return False
        low_fits = prove(reach[0] >= part[0], enclosing) or prove(part[0] <= 0, enclosing)
        high_fits = prove(reach[1] <= part[1], enclosing) or prove(part[1] >= size - 1, enclosing)
        if not (low_fits and high_fits):
            return False
    return True
