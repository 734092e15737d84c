"""Primitives that move a block under a loop of its neighbour: compute_at and reverse_compute_at.

The block gets new loops over exactly the part of its domain that one iteration of the target loop needs (or can
finish). The part is found from the neighbours' index expressions with the loops inside the target relaxed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.arith import bounds, prove, simplify, symbolic_bounds
from tilewright.ir.expr import Buffer, Expr, Load, Var, const
from tilewright.ir.loops import Block, BlockIter, For, PrimFunc, Seq, Stmt, seq
from tilewright.ir.rewrite import fresh_name, substitute, variables, walk, walk_expr
from tilewright.schedule.affine import Range, inside, intersect, outside, solve_ranges, union
from tilewright.schedule.dependence import check_kinds, injective, reduce_iters_using
from tilewright.schedule.state import (
    block_path,
    blocks_in,
    conjoin,
    conjuncts,
    extents_of,
    find,
    intrinsics_in,
    last_block,
    last_loop,
    loads_in,
    loop_path,
    loops_in,
    loops_on,
    nest,
    read_buffers,
    readers_of,
    refuse,
    replace_at,
    stores_in,
    taken_names,
    writers_of,
    written_buffers,
)

Box = tuple[Range | None, ...]
"""Where each index of a buffer may lie; None: anywhere in the dimension."""


def compute_at(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Compute what an iteration of `loop` needs of a block inside that iteration, right before it is read.

    Before::

        for i in 0..n:
            block B(vi = i): B[vi] = A[vi] + 1
        for i_0 in 0..(n + 7) // 8:
            for i_1 in 0..8:
                block C(vi2 = i_0 * 8 + i_1) where i_0 * 8 + i_1 < n: C[vi2] = B[vi2] * 2

    After `compute_at("B", "i_0")`; the condition is left out where it is known to hold::

        for i_0 in 0..(n + 7) // 8:
            for i in 0..8:
                block B(vi = i_0 * 8 + i) where i_0 * 8 + i < n: B[vi] = A[vi] + 1
            for i_1 in 0..8:
                block C(vi2 = i_0 * 8 + i_1) where i_0 * 8 + i_1 < n: C[vi2] = B[vi2] * 2

    The new loops stand in the order of the block's iterators, one for each, and are named after them. A reduction moves
    with its init. Refuses blocks that write an output, consumers outside of the loop, producers that would come too
    late, and reductions that were decomposed.
    """
    path = block_path(func, block)
    source = last_block(path)
    target_path = loop_path(func, loop)
    target = last_loop(target_path)
    what = f"cannot compute {block!r} at {loop!r}"
    written = written_buffers(source)
    for buffer in written:
        if buffer in func.params:
            raise refuse(func, f"{what}: it writes {buffer.name!r}, a parameter of the function")
        if len(writers_of(func, buffer)) > 1:
            raise refuse(
                func,
                f"{what}: other blocks write {buffer.name!r} too",
                hint="decompose_reduction comes after compute_at",
            )
    within = {b.name for b in blocks_in(target.body)}
    consumers = [b for b in blocks_in(func.body) if b.name != block and set(written) & set(read_buffers(b))]
    if not consumers:
        raise refuse(func, f"{what}: no block reads what it writes")
    elsewhere = [b.name for b in consumers if b.name not in within]
    if elsewhere:
        raise refuse(func, f"{what}: block {elsewhere[0]!r} reads it outside of this loop")
    smaller = replace_at(func, path, None)
    target_path = loop_path(smaller, loop)
    target = last_loop(target_path)
    outer = loops_on(target_path)
    children = target.body.stmts if isinstance(target.body, Seq) else (target.body,)
    names = {b.name for b in consumers}
    position = next(k for k, child in enumerate(children) if any(b.name in names for b in blocks_in(child)))
    _require_inputs_before(func, smaller, source, children[position:], what)
    domain = _needed(source, target.body, consumers, outer)
    placed = _nest_over(source, domain, outer, taken_names(smaller))
    body = seq((*children[:position], placed, *children[position:]))
    return replace_at(smaller, target_path, replace(target, body=body))


def reverse_compute_at(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Compute a consumer inside the loop that produces what it reads, right after it is written.

    Before::

        for i_0 in 0..8:
            for i_1 in 0..8:
                block B(vi = i_0 * 8 + i_1): B[vi] = A[vi] + 1
        for i in 0..64:
            block C(vi2 = i): C[vi2] = B[vi2] * 2

    After `reverse_compute_at("C", "i_0")`::

        for i_0 in 0..8:
            for i_1 in 0..8:
                block B(vi = i_0 * 8 + i_1): B[vi] = A[vi] + 1
            for i2 in 0..8:
                block C(vi2 = i_0 * 8 + i2): C[vi2] = B[vi2] * 2

    Refuses when an iteration of the loop does not finish what the block reads: reductions not complete there, reads
    beyond the iteration's part, other inputs computed later, a reduction over iterations that run at the same time.
    """
    path = block_path(func, block)
    source = last_block(path)
    what = f"cannot reverse_compute {block!r} at {loop!r}"
    before = last_loop(loop_path(func, loop))
    made = _made_within(func, source, before, what)
    smaller = replace_at(func, path, None)
    target_path = loop_path(smaller, loop)
    target = last_loop(target_path)
    outer = loops_on(target_path)
    _require_complete(func, made, outer, what)
    children = target.body.stmts if isinstance(target.body, Seq) else (target.body,)
    producers = {w.name for w, _ in made}
    position = max(k for k, child in enumerate(children) if any(b.name in producers for b in blocks_in(child)))
    domain = _finished(func, source, target.body, made, outer, what)
    # An iteration that skips the producers has nothing new to read.
    idle = {x.var for x in loops_in(target.body)}
    conditions = dict.fromkeys(c for w, _ in made for c in conjuncts(w.predicate) if not idle & set(variables(c)))
    placed = _nest_over(source, domain, outer, taken_names(smaller), tuple(conditions))
    _require_once(func, placed, outer, what)
    body = seq((*children[: position + 1], placed, *children[position + 1 :]))
    result = replace_at(smaller, target_path, replace(target, body=body))
    check_kinds(func, result, (*loops_on(path), *outer), what)
    return result


def _made_within(func: PrimFunc, source: Block, loop: For, what: str) -> list[tuple[Block, Buffer]]:
    """The blocks under a loop that compute what `source` reads, with the buffers. `source` must be movable there: its
    other inputs are written before the loop, and nothing uses its outputs before it."""
    within = {b.name: b for b in blocks_in(loop.body)}
    if source.name in within:
        raise refuse(func, f"{what}: it is inside this loop already")
    if intrinsics_in(source):
        raise refuse(func, f"{what}: it is an intrinsic", hint="tensorize comes last")
    order = [b.name for b in blocks_in(func.body)]
    first = order.index(next(iter(within)))
    made: list[tuple[Block, Buffer]] = []
    for buffer in read_buffers(source):
        for writer in writers_of(func, buffer):
            if writer.name in within:
                made.append((writer, buffer))
            elif writer.name != source.name and order.index(writer.name) > first:
                raise refuse(func, f"{what}: block {writer.name!r} computes its input {buffer.name!r} too late")
    if not made:
        raise refuse(func, f"{what}: no block under this loop computes what it reads")
    place = order.index(source.name)
    if place < first:
        raise refuse(func, f"{what}: it stands before this loop")
    for buffer in written_buffers(source):
        others = [b.name for b in (*writers_of(func, buffer), *readers_of(func, buffer)) if b.name != source.name]
        early = [name for name in others if order.index(name) < place]
        if early:
            raise refuse(func, f"{what}: block {early[0]!r} uses {buffer.name!r} before it")
    return made


def _require_complete(func: PrimFunc, made: Sequence[tuple[Block, Buffer]], outer: Sequence[For], what: str) -> None:
    """No loop of `outer` drives a reduction of the blocks `made`, and each stores one element at a time."""
    for writer, buffer in made:
        if len({s.indices for s in stores_in(writer.body) if s.buffer == buffer}) > 1:
            raise refuse(
                func,
                f"{what}: block {writer.name!r} stores several elements of {buffer.name!r} at once",
                hint="expand comes after reverse_compute_at",
            )
        for above in outer:
            if reduce_iters_using(writer, above.var):
                raise refuse(
                    func,
                    f"{what}: {buffer.name!r} is not complete there, loop {above.var.name!r} drives the reduction of "
                    f"{writer.name!r}",
                )


def _require_inputs_before(func: PrimFunc, smaller: PrimFunc, source: Block, later: Sequence[Stmt], what: str) -> None:
    """The inputs of `source` must be written before its new place, and not be overwritten between the two places."""
    order = [b.name for b in blocks_in(func.body)]
    late = {b.name for child in later for b in blocks_in(child)}
    for buffer in read_buffers(source):
        for writer in writers_of(smaller, buffer):
            if writer.name in late or order.index(writer.name) > order.index(source.name):
                raise refuse(func, f"{what}: block {writer.name!r} writes its input {buffer.name!r} after that place")


def _needed(source: Block, root: Stmt, consumers: Iterable[Block], outer: Sequence[For]) -> dict[Var, Range]:
    """The part of the domain of `source` that the consumers under `root` read, for fixed outer loops."""
    around = extents_of(outer)
    extents = {it.var: it.extent for it in source.iters}
    domain: dict[Var, Range] = {}
    for buffer in written_buffers(source.body):
        boxes = [box for consumer in consumers for box in _read_boxes(root, consumer, buffer, around)]
        if not boxes:
            continue
        box = boxes[0]
        for other in boxes[1:]:
            box = _join(box, other)
        # A block that stores several elements runs for each of them that is needed.
        points = dict.fromkeys(s.indices for s in stores_in(source.body) if s.buffer == buffer)
        solved = [solve_ranges(point, box, extents) for point in points]
        for v in extents:
            if solved and all(v in ranges for ranges in solved):
                for ranges in solved:
                    domain[v] = union(domain[v], ranges[v]) if v in domain else ranges[v]
    return domain


def _read_boxes(root: Stmt, consumer: Block, buffer: Buffer, around: Mapping[Var, Expr]) -> list[Box]:
    """Where each load of `consumer` reads `buffer` in one iteration of the outer loops."""
    inner, binding = _inner_extents(root, consumer)

    def box(low: Iterable[Expr], high: Iterable[Expr]) -> Box:
        ends = zip(low, high, strict=True)
        return tuple(_between(substitute(a, binding), substitute(b, binding), inner, around) for a, b in ends)

    found = [box(load.indices, load.indices) for load in loads_in(consumer) if load.buffer == buffer]
    for call in intrinsics_in(consumer):
        for r in (*call.outputs, *call.inputs):
            if r.buffer == buffer:
                found.append(box((a for a, _ in r.ranges), (a + n - 1 for a, n in r.ranges)))
    return found


def _between(low: Expr, high: Expr, inner: Mapping[Var, Expr], around: Mapping[Var, Expr]) -> Range | None:
    """The inclusive range from the least `low` to the greatest `high`."""
    first = _range_of(low, inner, around)
    last = first if high is low else _range_of(high, inner, around)
    return None if first is None or last is None else (first[0], last[1])


def _join(a: Box, b: Box) -> Box:
    return tuple(None if x is None or y is None else union(x, y) for x, y in zip(a, b, strict=True))


def _inner_extents(root: Stmt, block: Block) -> tuple[dict[Var, Expr], dict[Var, Expr]]:
    """The loops between `root` and the block's statements, and the block's bindings."""
    inner = extents_of(loops_on(find(root, lambda s: isinstance(s, Block) and s.name == block.name) or ()))
    inner |= extents_of(s for s in walk(block) if isinstance(s, For))
    return inner, {it.var: it.binding for it in block.iters}


def _range_of(index: Expr, inner: Mapping[Var, Expr], around: Mapping[Var, Expr]) -> Range | None:
    """The inclusive range of an index over the inner loops, in outer loops and symbols; None if it is not known."""
    found = symbolic_bounds(index, inner, around)
    if found is None:
        return None
    low, high = found
    if any(isinstance(n, Load) for e in found for n in walk_expr(e)):
        # An index that is itself loaded: where it leads is not known, and it may not be loaded everywhere.
        return None
    if any(v not in around and v.lo is None for e in found for v in variables(e)):
        return None
    return low, high


def _nest_over(
    block: Block,
    domain: Mapping[Var, Range],
    outer: Sequence[For],
    taken: set[str],
    given: Sequence[Expr] = (),
) -> Stmt:
    """`block` with new loops over `domain` (whole extents where nothing is said), clipped by a predicate that also
    holds the `given` conditions."""
    around = extents_of(outer)
    loops: list[For] = []
    iters: list[BlockIter] = []
    conditions: list[Expr] = list(given)
    for it in block.iters:
        low, extent = _clip(domain.get(it.var), it.extent, around)
        var = Var(fresh_name(loop_name(it.var), taken))
        value = simplify(low + var, {**around, var: extent})
        conditions += [c for c in outside(value, it.extent, {**around, var: extent}) if c not in conditions]
        loops.append(For(var, extent, block.body))
        iters.append(replace(it, binding=value))
    return nest(loops, replace(block, iters=tuple(iters), predicate=conjoin(conditions)))


def loop_name(var: Var) -> str:
    """The name of the loop that drives a block's iterator: `vi` is driven by `i`."""
    return var.name[1:].lstrip("_") or var.name if var.name.startswith("v") else var.name


def _clip(box: Range | None, whole: Expr, around: Mapping[Var, Expr]) -> Range:
    """(start, extent) of a range; the whole dimension if the range is not known or not smaller."""
    if box is None:
        return const(0), whole
    extent = simplify(box[1] - box[0] + 1, around)
    if any(v in around for v in variables(extent)):
        limit = bounds(extent, around).hi
        if limit is None:
            return const(0), whole
        extent = const(limit)
    if prove(extent >= whole):
        return const(0), whole
    return box[0], extent


def _finished(
    func: PrimFunc, source: Block, root: Stmt, made: Sequence[tuple[Block, Buffer]], outer: Sequence[For], what: str
) -> dict[Var, Range]:
    """The part of the domain of `source` whose inputs one iteration of the outer loops completes."""
    around = extents_of(outer)
    extents = {it.var: it.extent for it in source.iters}
    domain: dict[Var, Range] = {}
    boxes = [(buffer, _written_box(root, writer, buffer, around)) for writer, buffer in made]
    for buffer, box in boxes:
        for load in loads_in(source):
            if load.buffer == buffer:
                if not inside(load.indices, buffer.shape, extents):
                    raise refuse(func, f"{what}: some of its points lie outside of {buffer.name!r}, which it reads")
                for v, r in solve_ranges(load.indices, box, extents).items():
                    domain[v] = intersect(domain[v], r) if v in domain else r
    full = {v: domain.get(v, (const(0), simplify(x - 1))) for v, x in extents.items()}
    for buffer, box in boxes:
        for load in loads_in(source):
            if load.buffer == buffer and not _covered(load.indices, box, full, buffer, around):
                raise refuse(
                    func,
                    f"{what}: an iteration of this loop does not complete the part of {buffer.name!r} that it reads",
                )
    return domain


def _written_box(root: Stmt, writer: Block, buffer: Buffer, around: Mapping[Var, Expr]) -> Box:
    inner, binding = _inner_extents(root, writer)
    stores = [s for s in stores_in(writer.body) if s.buffer == buffer]
    if not stores:
        return (None,) * len(buffer.shape)
    return tuple(_range_of(substitute(i, binding), inner, around) for i in stores[0].indices)


def _covered(
    indices: Sequence[Expr], box: Box, domain: Mapping[Var, Range], buffer: Buffer, around: Mapping[Var, Expr]
) -> bool:
    """True if the indices, over `domain`, are known to lie in `box` (or nowhere, where the box ends the buffer)."""
    offsets = {v: Var(f"{v.name}.offset") for v in domain}
    spans = {offsets[v]: simplify(high - low + 1, around) for v, (low, high) in domain.items()}
    point = {v: domain[v][0] + offsets[v] for v in domain}
    for index, part, size in zip(indices, box, buffer.shape, strict=True):
        if part is None:
            return False
        reach = _range_of(substitute(index, point), spans, around)
        if reach is None:
            return False
        low_fits = prove(reach[0] >= part[0], around) or prove(part[0] <= 0, around)
        high_fits = prove(reach[1] <= part[1], around) or prove(part[1] >= size - 1, around)
        if not (low_fits and high_fits):
            return False
    return True


def _require_once(func: PrimFunc, placed: Stmt, outer: Sequence[For], what: str) -> None:
    """A reduction must not see a step twice: every loop around must lead to other points."""
    loops = []
    stmt = placed
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    assert isinstance(stmt, Block)
    if not stmt.is_reduction:
        return
    extents = extents_of((*outer, *loops))
    for loop in outer:
        if loop.extent is not const(1) and not injective([it.binding for it in stmt.iters], loop.var, extents):
            raise refuse(func, f"{what}: iterations of {loop.var.name!r} would add the same steps to its reduction")
