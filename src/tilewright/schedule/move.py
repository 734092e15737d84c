"""Primitives that move a block under a loop of its neighbour: compute_at and reverse_compute_at.

The block gets new loops over exactly the part of its domain that one iteration of the target loop needs (or can
finish). The part is found from the neighbours' index expressions with the loops inside the target relaxed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.arith import prove, prove_equal, simplify
from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int, const
from tilewright.ir.loops import TRUE, Block, BlockIter, For, PrimFunc, Seq, Stmt, seq
from tilewright.ir.notes import InOrder
from tilewright.ir.notes import find as find_note
from tilewright.ir.rewrite import fresh_name, substitute, variables
from tilewright.ir.scopes import sharing
from tilewright.schedule.affine import Range, inside, intersect, outside, solve_ranges
from tilewright.schedule.boxes import clip, covered, needed, reads_within, written_box
from tilewright.schedule.dependence import check_kinds, injective, reduce_iters_using
from tilewright.schedule.state import (
    block_path,
    blocks_in,
    conjoin,
    conjuncts,
    extents_of,
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
    refuse_external,
    replace_at,
    stores_in,
    used_names_of,
    writers_of,
    written_buffers,
)


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
    with its init. Conditions of the readers count: what a tile that overhangs does not read is not computed where it is
    another iteration's. An output moves where a reader makes another one of it, element by element, so that all of it
    is computed. Refuses other blocks that write an output, consumers outside of the loop, producers that would come too
    late, and reductions that were decomposed.

    What the threads of a block have in common (scope "shared", and "warp" for those of a warp) is computed for all of
    them, although the loop is inside of a bound one; before `compute_at("B", "k")` to the loop of C, and after it::

        for i in 0..64:  # threadIdx.x                for i in 0..64:  # threadIdx.x
            for k in 0..4:                                for k in 0..4:
                block C(vi = i, reduce vk = k)                for i2 in 0..64:
                                                                  block B(vi2 = i2, vk2 = k)
                                                              block C(vi = i, reduce vk = k)

    `bind` shares the new loops among the same threads.
    """
    path = block_path(func, block)
    source = last_block(path)
    target_path = loop_path(func, loop)
    target = last_loop(target_path)
    what = f"cannot compute {block!r} at {loop!r}"
    refuse_external(func, source, what)
    written = written_buffers(source)
    consumers = [b for b in blocks_in(func.body) if b.name != block and set(written) & set(read_buffers(b))]
    for buffer in written:
        if buffer in func.params and not any(_reads_all(func, b, buffer) for b in consumers):
            raise refuse(func, f"{what}: it writes {buffer.name!r}, a parameter of the function")
        if len(writers_of(func, buffer)) > 1:
            raise refuse(
                func,
                f"{what}: other blocks write {buffer.name!r} too",
                hint="decompose_reduction comes after compute_at",
            )
    within = {b.name for b in blocks_in(target.body)}
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
    enclosing, common = extents_of(outer), extents_of(shared_by(written, outer))
    enclosing = {v: n for v, n in enclosing.items() if v not in common}
    reads = {b: reads_within(target.body, consumers, b, enclosing, common) for b in written_buffers(source.body)}
    domain = needed(source, {b: [read.box for read in candidate] for b, candidate in reads.items()})
    limits: dict[Var, Expr] = {}
    if not _copies(func, source) and any(
        read.clipped != read.box for candidate in reads.values() for read in candidate
    ):
        clipped = needed(source, {b: [read.clipped for read in candidate] for b, candidate in reads.items()})
        limits = {v: clipped[v][1] for v in domain if clipped[v] != domain[v]}
    placed = _nest_over(source, domain, outer, used_names_of(smaller), limits=limits)
    body = seq((*children[:position], placed, *children[position:]))
    return replace_at(smaller, target_path, replace(target, body=body))


def shared_by(buffers: Sequence[Buffer], loops: Sequence[For]) -> tuple[For, ...]:
    """The loops among `loops` that are bound to threads which share all of `buffers`."""
    return tuple(x for x in loops if buffers and all(x.thread in sharing(b.scope) for b in buffers))


def _reads_all(func: PrimFunc, reader: Block, buffer: Buffer) -> bool:
    """Whether `reader` computes each element of an output from the element of `buffer` at the same indices, so that it
    reads every element of the buffer once."""
    point = tuple(it.var for it in reader.iters if it.kind == "spatial")
    created = [s for s in stores_in(reader.body) if s.buffer in func.params and s.indices == point]
    read = [x for x in loads_in(reader) if x.buffer == buffer and x.indices == point]
    return bool(read) and any(len(point) == len(s.buffer.shape) and s.buffer.shape == buffer.shape for s in created)


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
    created = _created_within(func, source, before, what)
    smaller = replace_at(func, path, None)
    target_path = loop_path(smaller, loop)
    target = last_loop(target_path)
    outer = loops_on(target_path)
    _require_complete(func, created, outer, what)
    _require_all_rows(func, created, before, what)
    children = target.body.stmts if isinstance(target.body, Seq) else (target.body,)
    producers = {w.name for w, _ in created}
    position = max(k for k, child in enumerate(children) if any(b.name in producers for b in blocks_in(child)))
    domain = _finished(func, source, target.body, created, outer, what)
    # An iteration that skips the producers has nothing new to read.
    idle = {x.var for x in loops_in(target.body)}
    conditions = dict.fromkeys(c for w, _ in created for c in conjuncts(w.predicate) if not idle & set(variables(c)))
    placed = _nest_over(source, domain, outer, used_names_of(smaller), tuple(conditions))
    _require_once(func, placed, outer, what)
    body = seq((*children[: position + 1], placed, *children[position + 1 :]))
    result = replace_at(smaller, target_path, replace(target, body=body))
    check_kinds(func, result, (*loops_on(path), *outer), what)
    return result


def _created_within(func: PrimFunc, source: Block, loop: For, what: str) -> list[tuple[Block, Buffer]]:
    """The blocks under `loop` that compute inputs of `source`, each with the buffer that it computes. Raises
    ScheduleError, whose text begins with `what`, unless the other inputs of `source` are written before the loop, and
    nothing uses its outputs before it."""
    within = {b.name: b for b in blocks_in(loop.body)}
    if source.name in within:
        raise refuse(func, f"{what}: it is inside this loop already")
    refuse_external(func, source, what)
    if intrinsics_in(source):
        raise refuse(func, f"{what}: it is an intrinsic", hint="tensorize comes last")
    order = [b.name for b in blocks_in(func.body)]
    first = order.index(next(iter(within)))
    result: list[tuple[Block, Buffer]] = []
    for buffer in read_buffers(source):
        for writer in writers_of(func, buffer):
            if writer.name in within:
                result.append((writer, buffer))
            elif writer.name != source.name and order.index(writer.name) > first:
                raise refuse(func, f"{what}: block {writer.name!r} computes its input {buffer.name!r} too late")
    if not result:
        raise refuse(func, f"{what}: no block under this loop computes what it reads")
    place = order.index(source.name)
    if place < first:
        raise refuse(func, f"{what}: it stands before this loop")
    for buffer in written_buffers(source):
        others = [b.name for b in (*writers_of(func, buffer), *readers_of(func, buffer)) if b.name != source.name]
        early = [name for name in others if order.index(name) < place]
        if early:
            raise refuse(func, f"{what}: block {early[0]!r} uses {buffer.name!r} before it")
    return result


def _require_complete(func: PrimFunc, created: Sequence[tuple[Block, Buffer]], outer: Sequence[For], what: str) -> None:
    """Raise ScheduleError, whose text begins with `what`, if a loop of `outer` drives a reduction of one of the blocks
    `created`, or if such a block does not store single elements."""
    for writer, buffer in created:
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


def _require_all_rows(func: PrimFunc, created: Sequence[tuple[Block, Buffer]], loop: For, what: str) -> None:
    """Raise ScheduleError, whose text begins with `what`, if `loop` is a recurrence that starts from rows which no step
    computes: a block that reads all rows cannot move into a step."""
    for writer, buffer in created:
        path = block_path(func, writer.name)
        within = {b.name for b in blocks_in(loop.body)}
        others = [b.name for b in writers_of(func, buffer) if b.name not in within]
        if others and any(find_note(x.notes, InOrder) is not None for x in loops_on(path)):
            raise refuse(
                func, f"{what}: block {others[0]!r} makes the first rows of {buffer.name!r} outside of this loop"
            )


def _require_inputs_before(func: PrimFunc, smaller: PrimFunc, source: Block, later: Sequence[Stmt], what: str) -> None:
    """Raise ScheduleError unless the inputs of `source` are written before its new place, and not overwritten between
    its old and new places. `later`: what comes after the new place."""
    order = [b.name for b in blocks_in(func.body)]
    deferred = {b.name for child in later for b in blocks_in(child)}
    for buffer in read_buffers(source):
        for writer in writers_of(smaller, buffer):
            if _of_another_step(func, source, writer, buffer):
                continue
            if writer.name in deferred or order.index(writer.name) > order.index(source.name):
                raise refuse(func, f"{what}: block {writer.name!r} writes its input {buffer.name!r} after that place")


def _of_another_step(func: PrimFunc, reader: Block, writer: Block, buffer: Buffer) -> bool:
    """Whether `reader` and `writer`, in a step of a recurrence, access different rows of `buffer`, so that the rows
    read are complete."""
    enclosing = [
        {x.var for x in loops_on(block_path(func, b.name)) if find_note(x.notes, InOrder)} for b in (reader, writer)
    ]
    if not enclosing[0] & enclosing[1]:
        return False
    stores = [s.indices for s in stores_in(writer) if s.buffer == buffer]
    reads = [load.indices for load in loads_in(reader) if load.buffer == buffer]

    def bound(block: Block, indices: Sequence[Expr]) -> list[Expr]:
        binding = {it.var: it.binding for it in block.iters}
        return [substitute(i, binding) for i in indices]

    return all(
        any(as_int(simplify(a - b)) for a, b in zip(bound(writer, s), bound(reader, r), strict=True))
        for s in stores
        for r in reads
    )


def _copies(func: PrimFunc, block: Block) -> bool:
    """Whether a block only copies elements of parameters: then copying a few elements too many costs no more than a
    condition."""
    return all(isinstance(s.value, Load) and s.value.buffer in func.params for s in stores_in(block.body))


def _nest_over(
    block: Block,
    domain: Mapping[Var, Range],
    outer: Sequence[For],
    used_names: set[str],
    shape: Sequence[Expr] = (),
    limits: Mapping[Var, Expr] | None = None,
) -> Stmt:
    """`block` with new loops, inside the loops `outer`, over `domain` (iterators that it lacks run over their whole
    extent). A predicate clips the loops, contains the conditions `shape` and keeps iterators at or below their
    `limits`. New names are added to `used_names`."""
    enclosing = extents_of(outer)
    loops: list[For] = []
    iters: list[BlockIter] = []
    conditions: list[Expr] = list(shape)
    for it in block.iters:
        low, extent = clip(domain.get(it.var), it.extent, enclosing)
        var = Var(fresh_name(loop_name(it.var), used_names))
        value = simplify(low + var, {**enclosing, var: extent})
        spans = {**enclosing, var: extent}
        limit = simplify(value <= limits[it.var], spans) if limits and it.var in limits else TRUE
        beyond = [c for c in outside(value, it.extent, spans) if limit is TRUE or not prove(c, spans, (limit,))]
        conditions += [c for c in (*conjuncts(limit), *beyond) if c not in conditions]
        loops.append(For(var, extent, block.body))
        iters.append(replace(it, binding=value))
    return nest(loops, replace(block, iters=tuple(iters), predicate=conjoin(conditions)))


def loop_name(var: Var) -> str:
    """The name of the loop that drives a block's iterator: `vi` is driven by `i`."""
    return var.name[1:].lstrip("_") or var.name if var.name.startswith("v") else var.name


def _finished(
    func: PrimFunc, source: Block, root: Stmt, created: Sequence[tuple[Block, Buffer]], outer: Sequence[For], what: str
) -> dict[Var, Range]:
    """The range of each iterator of `source` for which the inputs, which the blocks `created` compute in `root`, are
    complete after one iteration of the loops `outer`. Raises ScheduleError, whose text begins with `what`, if it is not
    known."""
    enclosing = extents_of(outer)
    extents = {it.var: it.extent for it in source.iters}
    domain: dict[Var, Range] = {}
    parts: list[dict[Var, Range]] = []
    boxes = [(buffer, written_box(root, writer, buffer, enclosing)) for writer, buffer in created]
    for buffer, box in boxes:
        for load in loads_in(source):
            if load.buffer == buffer:
                if not inside(load.indices, buffer.shape, extents):
                    raise refuse(func, f"{what}: some of its points lie outside of {buffer.name!r}, which it reads")
                parts.append(solve_ranges(load.indices, box, extents))
                for v, r in parts[-1].items():
                    domain[v] = intersect(domain[v], r) if v in domain else r
    full = {v: domain.get(v, (const(0), simplify(x - 1))) for v, x in extents.items()}
    for buffer, box in boxes:
        for load in loads_in(source):
            if load.buffer == buffer and not covered(load.indices, box, full, buffer, enclosing):
                raise refuse(
                    func,
                    f"{what}: an iteration of this loop does not complete the part of {buffer.name!r} that it reads",
                )
    _require_common_parts(func, parts, extents, enclosing, what)
    return domain


def _require_common_parts(
    func: PrimFunc,
    parts: Sequence[Mapping[Var, Range]],
    extents: Mapping[Var, Expr],
    enclosing: Mapping[Var, Expr],
    what: str,
) -> None:
    """Raise ScheduleError, whose text begins with `what`, if different reads become complete for different `parts` of
    the domain in an iteration: a point whose inputs are completed by different iterations would be computed by none.
    `extents` and `enclosing` are the extents of the block's iterators and of the loops around."""
    moving = [
        {v: r for v, r in part.items() if {*variables(r[0]), *variables(r[1])} & enclosing.keys()} for part in parts
    ]
    for k, part in enumerate(moving):
        for other in moving[:k]:
            driven, others = _drivers(part, enclosing), _drivers(other, enclosing)
            common = part.keys() & other.keys()
            same = all(_same_range(part[v], other[v], extents[v], enclosing) for v in common)
            if not same or (driven & others and part.keys() != other.keys()):
                raise refuse(func, f"{what}: different iterations complete what one point of it reads")


def _drivers(part: Mapping[Var, Range], enclosing: Mapping[Var, Expr]) -> set[Var]:
    return {v for r in part.values() for end in r for v in variables(end) if v in enclosing}


def _same_range(a: Range, b: Range, extent: Expr, enclosing: Mapping[Var, Expr]) -> bool:
    """Whether `a` and `b` are known to be the same range when cut to 0..extent."""
    low = prove_equal(a[0], b[0], enclosing) or (prove(a[0] <= 0, enclosing) and prove(b[0] <= 0, enclosing))
    high = prove_equal(a[1], b[1], enclosing) or all(prove(r[1] >= extent - 1, enclosing) for r in (a, b))
    return low and high


def _require_once(func: PrimFunc, placed: Stmt, outer: Sequence[For], what: str) -> None:
    """Raise ScheduleError, whose text begins with `what`, if a loop of `outer` around the reduction `placed` would
    repeat its steps: each iteration of an enclosing loop must compute other points."""
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
