"""Primitives on reductions: decompose_reduction and rfactor."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import Expr, Var, is_const
from tilewright.ir.loops import Block, BlockIter, For, PrimFunc, seq
from tilewright.ir.rewrite import fresh_name, substitute, substitute_stmt, variables
from tilewright.schedule.affine import outside
from tilewright.schedule.dependence import injective, reduce_iters_using
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
    refuse,
    replace_at,
    replace_on,
    taken_names,
)


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
    for above in loops[:position]:
        if reduce_iters_using(source, above.var):
            raise refuse(
                func,
                f"cannot decompose block {block!r} at {loop!r}: loop {above.var.name!r} outside of it drives the "
                "reduction, which would start again at each of its iterations",
            )
    spatial = [it for it in source.iters if it.kind == "spatial"]
    below = loops[position:]
    copied = [x for x in below if any(depends_on(it.binding, x.var) for it in spatial)]
    mixed = [x.var.name for x in copied if reduce_iters_using(source, x.var)]
    if mixed:
        raise refuse(
            func, f"cannot decompose block {block!r} at {loop!r}: {mixed[0]!r} drives spatial and reduction iterators"
        )
    within = extents_of(below)
    for x in below:
        repeats = not (is_const(x.extent, 1) or reduce_iters_using(source, x.var))
        if repeats and not injective([it.binding for it in spatial], x.var, within):
            raise refuse(
                func,
                f"cannot decompose block {block!r} at {loop!r}: iterations of {x.var.name!r} compute the same points, "
                "each starting the reduction again",
            )
    taken = taken_names(func)
    renamed: dict[Var, Expr] = {}
    news: list[For] = []
    for x in copied:
        var = Var(fresh_name(f"{x.var.name}_init", taken))
        renamed[x.var] = var
        news.append(replace(x, var=var))
    inner: dict[Var, Expr] = {}
    iters: list[BlockIter] = []
    for it in spatial:
        var = Var(fresh_name(f"{it.var.name}_init", taken))
        inner[it.var] = var
        iters.append(BlockIter(var, it.extent, it.kind, substitute(it.binding, renamed)))
    dropped = {x.var for x in below} - set(renamed)
    kept = [c for c in conjuncts(source.predicate) if not dropped & set(variables(c))]
    if len(kept) < len(conjuncts(source.predicate)):
        around = extents_of(loops)
        kept += [c for it in spatial for c in outside(it.binding, it.extent, around) if c not in kept]
    init = Block(
        fresh_name(f"{block}_init", block_names(func)),
        tuple(iters),
        substitute_stmt(source.init, inner),
        predicate=conjoin(substitute(c, renamed) for c in kept),
        annotations=source.annotations,
    )
    update = replace_on(path[len(target_path) - 1 :], replace(source, init=None))
    assert update is not None
    return replace_at(func, target_path, seq((nest(news, init), update))), init.name
