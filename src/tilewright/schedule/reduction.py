"""Primitives on reductions: decompose_reduction and rfactor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.combine import combine
from tilewright.ir.expr import Buffer, Expr, Load, Var, is_const, select
from tilewright.ir.loops import Block, BlockIter, For, If, PrimFunc, Stmt, Store, seq
from tilewright.ir.rewrite import fresh_name, substitute, substitute_stmt, variables
from tilewright.schedule.affine import outside
from tilewright.schedule.combination import Combination, combination
from tilewright.schedule.dependence import injective, reduce_iters_using
from tilewright.schedule.primitive import on_block_in_loop
from tilewright.schedule.state import (
    block_names,
    block_path,
    conjoin,
    conjuncts,
    depends_on,
    extents_of,
    last_block,
    loop_path,
    loops_on,
    nest,
    own_loops,
    refuse,
    replace_at,
    replace_on,
    used_names_of,
)


@on_block_in_loop
def decompose_reduction(func: PrimFunc, block: str, loop: str) -> tuple[PrimFunc, str]:
    """Make the start of a reduction a block of its own, right before `loop`.

    Before::

        for i in 0..64:
            for k in 0..64:
                block C(vi = i, reduce vk = k): init C[vi] = 0; C[vi] = C[vi] + A[vi, vk]

    After `decompose_reduction("C", "k")`::

        for i in 0..64:
            block C_init(vi_init = i): C[vi_init] = 0
            for k in 0..64:
                block C(vi = i, reduce vk = k): C[vi] = C[vi] + A[vi, vk]

    The loops from `loop` inwards that drive spatial iterators are copied around the new block, whose name is returned.
    Refuses blocks without init, and loops inside of a loop that drives the reduction.
    """
    path = block_path(func, block)
    source = last_block(path)
    if source.init is None:
        why = "it was decomposed already" if source.is_reduction else "it is not a reduction"
        raise refuse(func, f"cannot decompose block {block!r}: {why}")
    target_path = loop_path(func, loop)
    loops = loops_on(path)
    names = [x.var.name for x in loops]
    if loop not in names:
        raise refuse(func, f"cannot decompose block {block!r} at {loop!r}: the loop is not around the block")
    position = names.index(loop)
    _require_one_start(func, source, loops, position, f"cannot decompose block {block!r} at {loop!r}")
    news, init = _start_of(func, source, loops, position)
    update = replace_on(path[len(target_path) - 1 :], replace(source, init=None))
    assert update is not None
    return replace_at(func, target_path, seq((nest(news, init), update))), init.name


def _require_one_start(func: PrimFunc, source: Block, loops: Sequence[For], position: int, what: str) -> None:
    """Raise ScheduleError, whose text begins with `what`, unless an init before loop number `position` of `loops` would
    run once for each point: no loop outside of that drives the reduction, and no loop inside repeats a point."""
    for above in loops[:position]:
        if reduce_iters_using(source, above.var):
            raise refuse(
                func,
                f"{what}: loop {above.var.name!r} outside of it drives the reduction, which would start again at each "
                "of its iterations",
            )
    spatial = [it.binding for it in source.iters if it.kind == "spatial"]
    below = loops[position:]
    within = extents_of(below)
    for x in below:
        reduces = bool(reduce_iters_using(source, x.var))
        if reduces and any(depends_on(binding, x.var) for binding in spatial):
            raise refuse(func, f"{what}: {x.var.name!r} drives spatial and reduction iterators")
        if not (reduces or injective(spatial, x.var, within)):
            raise refuse(
                func,
                f"{what}: iterations of {x.var.name!r} compute the same points, each starting the reduction again",
            )


def _start_of(func: PrimFunc, source: Block, loops: Sequence[For], position: int) -> tuple[list[For], Block]:
    """(the loops to put around it, the block that starts the reduction of the block `source`): the loops are copies,
    with other variables, of those of `loops` from number `position` on that drive spatial iterators."""
    spatial = [it for it in source.iters if it.kind == "spatial"]
    below = loops[position:]
    copied = [x for x in below if any(depends_on(it.binding, x.var) for it in spatial)]
    used_names = used_names_of(func)
    renamed: dict[Var, Expr] = {}
    news: list[For] = []
    for x in copied:
        var = Var(fresh_name(f"{x.var.name}_init", used_names))
        renamed[x.var] = var
        news.append(replace(x, var=var))
    inner: dict[Var, Expr] = {}
    iters: list[BlockIter] = []
    for it in spatial:
        var = Var(fresh_name(f"{it.var.name}_init", used_names))
        inner[it.var] = var
        iters.append(BlockIter(var, it.extent, it.kind, substitute(it.binding, renamed)))
    dropped = {x.var for x in below} - set(renamed)
    retained = [c for c in conjuncts(source.predicate) if not dropped & set(variables(c))]
    if len(retained) < len(conjuncts(source.predicate)):
        enclosing = extents_of(loops)
        retained += [c for it in spatial for c in outside(it.binding, it.extent, enclosing) if c not in retained]
    assert source.init is not None
    init = Block(
        fresh_name(f"{source.name}_init", block_names(func)),
        tuple(iters),
        substitute_stmt(source.init, inner),
        predicate=conjoin(substitute(c, renamed) for c in retained),
        notes=source.notes,
    )
    return news, init


@on_block_in_loop
def rfactor(func: PrimFunc, block: str, loop: str, factor_axis: int = 0) -> tuple[PrimFunc, str]:
    """Let each iteration of a reduction loop reduce into its own element, and reduce those in a second block.

    Before::

        for i in 0..64:
            for k_0 in 0..8:
                for k_1 in 0..16:
                    block C(vi = i, reduce vk = k_0 * 16 + k_1): init C[vi] = 0; C[vi] = C[vi] + A[vi, vk]

    After `rfactor("C", "k_1")`; `k_1` is spatial in the first block, so it can be vectorized or made parallel::

        for i in 0..64:
            for k_0 in 0..8:
                for k_1 in 0..16:
                    block C_rf(vk_1 = k_1, vi_rf = i, reduce vk_0 = k_0):
                        init C_rf[vk_1, vi_rf] = 0; C_rf[vk_1, vi_rf] = C_rf[vk_1, vi_rf] + A[vi_rf, vk_0 * 16 + vk_1]
        for i_1 in 0..64:
            for k_1_1 in 0..16:
                block C(vi = i_1, reduce vk_1_1 = k_1_1): init C[vi] = 0; C[vi] = C[vi] + C_rf[vk_1_1, vi]

    `factor_axis` is the place of the new dimension; negative ones count from the end. Returns the first block. Any
    reducer will do, of several values as well (the largest element and where it is): reducers are associative and
    commute.
    Refuses loops that drive spatial iterators, and reduction loops shared with other blocks.
    """
    path = block_path(func, block)
    source = last_block(path)
    what = f"cannot rfactor block {block!r} over {loop!r}"
    update = combination(source)
    if update is None:
        raise refuse(func, f"{what}: it is no reduction with its init")
    own = own_loops(path)
    factored = next((x for x in own if x.var.name == loop), None)
    if factored is None:
        raise refuse(func, f"{what}: the loop is not around this block alone")
    if factored.kind != "serial":
        raise refuse(func, f"{what}: the loop is already {factored.kind}")
    spatial = [it for it in source.iters if it.kind == "spatial"]
    if not reduce_iters_using(source, factored.var) or any(depends_on(it.binding, factored.var) for it in spatial):
        raise refuse(func, f"{what}: the loop does not drive reduction iterators alone")
    for x in loops_on(path)[: -len(own)]:
        if reduce_iters_using(source, x.var):
            raise refuse(func, f"{what}: loop {x.var.name!r}, shared with other blocks, drives the reduction")
    rank = len(update.targets[0].indices)
    axis = factor_axis + rank + 1 if factor_axis < 0 else factor_axis
    if not 0 <= axis <= rank:
        raise refuse(func, f"{what}: factor_axis {factor_axis} is outside of -{rank + 1}..{rank}")
    used_names = used_names_of(func)
    partial = tuple(
        Buffer(fresh_name(f"{b.name}_rf", used_names), b.dtype, _insert(b.shape, axis, factored.extent))
        for b in (t.buffer for t in update.targets)
    )
    name = fresh_name(f"{block}_rf", block_names(func))
    first = _partial_block(func, source, update, partial, factored, own, (name, axis, what), used_names)
    second = _final_nest(source, update, partial, factored, own, axis, used_names)
    start = path[len(path) - 1 - len(own)]
    result = replace_at(func, (*path[: path.index(start)], start), seq((nest(own, first), second)))
    return replace(result, buffers=(*result.buffers, *partial)), name


def _insert(items: tuple[Expr, ...], position: int, item: Expr) -> tuple[Expr, ...]:
    return (*items[:position], item, *items[position:])


def _partial_block(
    func: PrimFunc,
    source: Block,
    update: Combination,
    partial: tuple[Buffer, ...],
    factored: For,
    own: tuple[For, ...],
    names: tuple[str, int, str],
    used_names: set[str],
) -> Block:
    """The first block of `rfactor`, which reduces into `partial`: the loop `factored` becomes spatial, and the loops
    with which it shared an iterator become reduction iterators of their own. `names`: the block's name, the axis of the
    new dimension, and the beginning of an error's text; new names are added to `used_names`."""
    name, axis, what = names
    lane = Var(fresh_name(f"v{factored.var.name}", used_names))
    of_loop: dict[Var, Expr] = {factored.var: lane}
    inner: dict[Var, Expr] = {}
    iters = [BlockIter(lane, factored.extent, "spatial", factored.var)]
    for it in source.iters:
        if it.kind == "reduce" and depends_on(it.binding, factored.var):
            for x in own:
                if depends_on(it.binding, x.var) and x.var not in of_loop:
                    if any(depends_on(o.binding, x.var) for o in source.iters if o.kind == "spatial"):
                        raise refuse(func, f"{what}: loop {x.var.name!r} drives spatial iterators too")
                    var = Var(fresh_name(f"v{x.var.name}", used_names))
                    of_loop[x.var] = var
                    iters.append(BlockIter(var, x.extent, "reduce", x.var))
            inner[it.var] = substitute(it.binding, of_loop)
    for it in source.iters:
        if it.var not in inner:
            var = Var(fresh_name(f"{it.var.name}_rf", used_names))
            inner[it.var] = var
            extent = it.extent
            if isinstance(it.binding, Var):
                of_loop.setdefault(it.binding, var)
                if it.kind == "reduce":  # What kept it below its extent is in the body now.
                    extent = extents_of(own).get(it.binding, extent)
            iters.append(BlockIter(var, extent, it.kind, it.binding))
    # Conditions on reduction loops move into the body: every element of the partial result must be started. They stand
    # before the body's own condition, which may read only where they hold.
    outer, guards = [], []
    reducing = {x.var for x in own if reduce_iters_using(source, x.var)}
    for c in conjuncts(source.predicate):
        if not reducing & set(variables(c)):
            outer.append(c)
            continue
        loops = {x.var for x in own}
        if not (set(variables(c)) & loops) <= of_loop.keys() or set(variables(c)) & _shared(func, source) - loops:
            raise refuse(func, f"{what}: the condition {c} mixes reduction and split spatial loops")
        guards.append(substitute(c, of_loop))
    points = [_insert(tuple(substitute(i, inner) for i in t.indices), axis, lane) for t in update.targets]
    values = [substitute(v, inner) for v in update.values]
    guards.append(substitute(update.condition, inner))
    guard = conjoin(c for g in guards for c in conjuncts(g))
    starts = list(zip(partial, points, update.reducer.identity, strict=True))
    init: Stmt | None = seq(Store(b, point, start) for b, point, start in starts)
    body: Stmt
    if any(it.kind == "reduce" for it in iters):
        loads = [Load(b, point) for b, point in zip(partial, points, strict=True)]
        body = combine(update.reducer, loads, values, used_names)
        body = body if is_const(guard, True) else If(guard, body)
    else:
        chosen = [select(guard, v, start) for v, (_, _, start) in zip(values, starts, strict=True)]
        init, body = None, seq(Store(b, point, v) for (b, point, _), v in zip(starts, chosen, strict=True))
    return Block(name, tuple(iters), body, init, conjoin(outer), source.notes)


def _shared(func: PrimFunc, source: Block) -> set[Var]:
    return {x.var for x in loops_on(block_path(func, source.name))}


def _final_nest(
    source: Block,
    update: Combination,
    partial: tuple[Buffer, ...],
    factored: For,
    own: tuple[For, ...],
    axis: int,
    used_names: set[str],
) -> Stmt:
    """The loops and the second block of `rfactor`, which reduces `partial` over the loop `factored` into the output and
    has the name of `source`, the original block."""
    spatial = [it for it in source.iters if it.kind == "spatial"]
    renamed: dict[Var, Expr] = {}
    loops: list[For] = []
    for x in own:
        if any(depends_on(it.binding, x.var) for it in spatial):
            var = Var(fresh_name(x.var.name, used_names))
            renamed[x.var] = var
            loops.append(replace(x, var=var))
    lane_loop, lane = (
        Var(fresh_name(factored.var.name, used_names)),
        Var(fresh_name(f"v{factored.var.name}", used_names)),
    )
    iters = [replace(it, binding=substitute(it.binding, renamed)) for it in spatial]
    iters.append(BlockIter(lane, factored.extent, "reduce", lane_loop))
    dropped = {x.var for x in own} - renamed.keys()
    retained = [substitute(c, renamed) for c in conjuncts(source.predicate) if not dropped & set(variables(c))]
    if len(retained) < len(conjuncts(source.predicate)):
        enclosing = extents_of(loops)
        retained += [c for it in iters if it.kind == "spatial" for c in outside(it.binding, it.extent, enclosing)]
    read = [Load(b, _insert(t.indices, axis, lane)) for b, t in zip(partial, update.targets, strict=True)]
    body = combine(update.reducer, update.targets, read, used_names)
    block = replace(source, iters=tuple(iters), body=body, predicate=conjoin(retained))
    return nest((*loops, replace(factored, var=lane_loop)), block)


class ReductionPrimitives:
    """A class with the primitives on reductions, from which `Schedule` and `Stage` inherit."""

    __slots__ = ()
    decompose_reduction = decompose_reduction
    rfactor = rfactor
