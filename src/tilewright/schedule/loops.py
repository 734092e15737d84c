"""Primitives that change loops without moving blocks: split, tile, fuse, reorder, add_unit_loop.

Each is a pure function over a `PrimFunc` and names; it returns the new function and the names of the loops it made.
Only the bindings and predicates of the blocks below change, never their bodies.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith import prove, simplify
from tilewright.ir.expr import Expr, Var, as_expr, as_int, binary, ceildiv, const, product
from tilewright.ir.loops import TRUE, Block, For, PrimFunc, Stmt
from tilewright.ir.rewrite import fresh_name, variables
from tilewright.schedule.dependence import check_reduction_order, require_any_order
from tilewright.schedule.primitive import loop_on_block
from tilewright.schedule.state import (
    Path,
    block_path,
    blocks_in,
    extents_of,
    find,
    last_loop,
    loop_path,
    loops_on,
    nest,
    rebind,
    refuse,
    replace_at,
    used_names_of,
)

Factor = int | Expr | None

MAX_FACTOR = 1 << 31
"""The largest factor of a split, in iterations."""
MAX_PARTS = 16
"""The largest number of loops into which one may be split."""


def split(
    func: PrimFunc,
    loop: str,
    factor: int | Expr | None = None,
    *,
    nparts: int | Expr | None = None,
    factors: Sequence[Factor] | None = None,
) -> tuple[PrimFunc, tuple[str, ...]]:
    """Split a loop into nested ones; give `factor` (innermost extent), `nparts` (outermost) or `factors` (one None).

    Before::

        for i in 0..n:
            block C(vi = i)

    After `split("i", factor=8)`; the condition is left out where 8 is known to divide n::

        for i_0 in 0..(n + 7) // 8:
            for i_1 in 0..8:
                block C(vi = i_0 * 8 + i_1) where i_0 * 8 + i_1 < n

    Returns the function and the names of the new loops, outermost first. Refuses loops that are not serial, and factors
    that do not cover the loop.
    """
    path = loop_path(func, loop)
    old = last_loop(path)
    _require_serial(func, old, "split")
    sizes, exact = _sizes(func, old, _factor_list(func, loop, factor, nparts, factors))
    used_names = used_names_of(func)
    news = [For(Var(fresh_name(f"{loop}_{k}", used_names)), size, old.body) for k, size in enumerate(sizes)]
    value: Expr = news[0].var
    for new in news[1:]:
        value = value * new.extent + new.var
    enclosing = extents_of((*loops_on(path[:-1]), *news))
    body = rebind(old.body, {old.var: value}, enclosing, TRUE if exact else binary("lt", value, old.extent))
    return replace_at(func, path, nest(news, body)), tuple(n.var.name for n in news)


def tile(
    func: PrimFunc, first: str, second: str, first_factor: int, second_factor: int
) -> tuple[PrimFunc, tuple[str, str, str, str]]:
    """Split two nested loops and put the tiles' loops inside.

    Before::

        for i in 0..64:
            for j in 0..64:
                block C(vi = i, vj = j)

    After `tile("i", "j", 8, 4)`::

        for i_0 in 0..8:
            for j_0 in 0..16:
                for i_1 in 0..8:
                    for j_1 in 0..4:
                        block C(vi = i_0 * 8 + i_1, vj = j_0 * 4 + j_1)
    """
    func, (outer_i, inner_i) = split(func, first, first_factor)
    func, (outer_j, inner_j) = split(func, second, second_factor)
    func = reorder(func, outer_i, outer_j, inner_i, inner_j)
    return func, (outer_i, outer_j, inner_i, inner_j)


def fuse(func: PrimFunc, *loops: str) -> tuple[PrimFunc, str]:
    """Join perfectly nested loops, outermost first, into one; one alone stays as it is.

    Before::

        for i in 0..n:
            for j in 0..16:
                block C(vi = i, vj = j)

    After `fuse("i", "j")`::

        for i_j_fused in 0..n * 16:
            block C(vi = i_j_fused // 16, vj = i_j_fused % 16)

    Refuses loops that are not directly inside one another, and loops that are not serial.
    """
    if not loops:
        raise refuse(func, "fuse needs a loop")
    if len(loops) == 1:
        return func, last_loop(loop_path(func, loops[0])).var.name
    path = loop_path(func, loops[0])
    chain = [last_loop(path)]
    for name in loops[1:]:
        inner = chain[-1].body
        if not (isinstance(inner, For) and inner.var.name == name):
            loop_path(func, name)
            raise refuse(func, f"cannot fuse {chain[-1].var.name!r} and {name!r}: not directly inside one another")
        chain.append(inner)
    for loop in chain:
        _require_serial(func, loop, "fuse")
        _require_own_extent(func, loop, chain)
    base = "_".join(name.removesuffix("_fused") for name in loops)
    fused = Var(fresh_name(f"{base}_fused", used_names_of(func)))
    extent = simplify(product([loop.extent for loop in chain]))
    values: dict[Var, Expr] = {}
    rest: Expr = fused
    for loop in reversed(chain[1:]):
        values[loop.var] = rest % loop.extent
        rest = rest // loop.extent
    values[chain[0].var] = rest
    enclosing = extents_of(loops_on(path[:-1])) | {fused: extent}
    body = rebind(chain[-1].body, {v: simplify(e, enclosing) for v, e in values.items()}, enclosing)
    return replace_at(func, path, For(fused, extent, body)), fused.name


@loop_on_block
def add_unit_loop(func: PrimFunc, block: str) -> tuple[PrimFunc, str]:
    """Put a loop of one iteration around a block and the loops that are its alone: a place to move other blocks to, or
    to share among threads, where there is no loop, as around a stage without dimensions.

    Before::

        block C(): C[] = A[] + 1

    After `add_unit_loop("C")`::

        for C_unit in 0..1:
            block C(): C[] = A[] + 1

    Returns the new loop.
    """
    path = block_path(func, block)
    depth = len(path) - 1
    while depth and isinstance(path[depth - 1], For):
        depth -= 1
    loop = For(Var(fresh_name(f"{block}_unit", used_names_of(func))), const(1), path[depth])
    return replace_at(func, path[: depth + 1], loop), loop.var.name


def reorder(func: PrimFunc, *loops: str) -> PrimFunc:
    """Put loops of one chain into the given order; loops of the chain that are not named keep their places.

    Before::

        for i in 0..64:
            for j in 0..64:
                for k in 0..64:
                    block C(vi = i, vj = j, reduce vk = k)

    After `reorder("k", "i")`::

        for k in 0..64:
            for j in 0..64:
                for i in 0..64:
                    block C(vi = i, vj = j, reduce vk = k)

    Refuses loops that do not form a chain, loops whose extents depend on one another, and orders that would visit a
    point of a reduction twice before it is complete.
    """
    if len(set(loops)) != len(loops):
        raise refuse(func, f"reorder names a loop twice: {', '.join(loops)}")
    if len(loops) < 2:
        return func
    paths = [loop_path(func, name) for name in loops]
    top = min(paths, key=len)
    chain = _chain(func, top, set(loops))
    old_order = [loop.var.name for loop in chain]
    wanted = iter([last_loop(p) for p in paths])
    new = [next(wanted) if loop.var.name in set(loops) else loop for loop in chain]
    if [loop.var.name for loop in new] == old_order:
        return func
    for loop in chain:
        _require_own_extent(func, loop, chain)
        require_any_order(func, loop, "reorder")
    body = chain[-1].body
    for block in blocks_in(body):
        inner = (*new, *_loops_between(body, block))
        check_reduction_order(func, block, inner, [loop.var for loop in chain], [loop.var for loop in new])
    return replace_at(func, top, nest(new, body))


def _chain(func: PrimFunc, top: Path, names: set[str]) -> list[For]:
    """The chain of loops from the end of the path `top` down to the innermost loop in `names`. Raises ScheduleError if
    they are not nested without branches."""
    missing = set(names)
    chain: list[For] = []
    stmt: Stmt = top[-1]
    while isinstance(stmt, For):
        chain.append(stmt)
        missing.discard(stmt.var.name)
        if not missing:
            return chain
        stmt = stmt.body
    raise refuse(
        func,
        f"cannot reorder {', '.join(sorted(names))}: they are not one chain of loops; below "
        f"{chain[-1].var.name!r} comes {'a block' if isinstance(stmt, Block) else 'more than one statement'}, "
        f"and {', '.join(sorted(missing))} is not reached",
    )


def _loops_between(root: Stmt, block: Block) -> tuple[For, ...]:
    return loops_on(find(root, lambda s: s is block) or ())


def _factor_list(
    func: PrimFunc, loop: str, factor: Factor, nparts: Factor, factors: Sequence[Factor] | None
) -> list[Expr | None]:
    if sum(x is not None for x in (factor, nparts, factors)) != 1:
        raise refuse(func, f"split of {loop!r} takes exactly one of factor, nparts and factors")
    arguments: Sequence[Factor]
    if factors is not None:
        arguments = factors
    else:
        arguments = (None, factor) if factor is not None else (nparts, None)
    if not 2 <= len(arguments) <= MAX_PARTS or sum(f is None for f in arguments) > 1:
        raise refuse(
            func, f"split of {loop!r} needs 2 to {MAX_PARTS} factors, at most one of them None", got=list(arguments)
        )
    # A number beyond an index is cut to one that is refused, not wrapped.
    result = [None if f is None else as_expr(min(f, MAX_FACTOR + 1) if isinstance(f, int) else f) for f in arguments]
    for f in result:
        if f is not None and not (prove(f >= 1) and (as_int(f) or 1) <= MAX_FACTOR):
            raise refuse(func, f"split of {loop!r}: every factor must be between 1 and {MAX_FACTOR}", got=f)
    return result


def _sizes(func: PrimFunc, loop: For, arguments: list[Expr | None]) -> tuple[list[Expr], bool]:
    """(extents of the loops into which `loop` is split by the factors `arguments`, of which one may be None; whether
    their product is the loop's extent)."""
    known = product([f for f in arguments if f is not None])
    total, step = as_int(loop.extent), as_int(known)
    if None in arguments:
        if total is not None and step is not None:
            inferred: Expr = const(-(-total // step))
            exact = total % step == 0
        else:
            exact = prove(binary("eq", loop.extent % known, const(0)))
            inferred = simplify(loop.extent // known if exact else ceildiv(loop.extent, known))
        return [inferred if f is None else f for f in arguments], exact
    sizes = [f for f in arguments if f is not None]
    if not prove(known >= loop.extent):
        raise refuse(
            func,
            f"the factors of the split of {loop.var.name!r} do not cover it",
            expected=f"a product of at least {loop.extent}",
            got=known,
        )
    return sizes, prove(binary("eq", known, loop.extent))


def _require_serial(func: PrimFunc, loop: For, what: str) -> None:
    if loop.kind != "serial":
        raise refuse(func, f"cannot {what} loop {loop.var.name!r}: it is already {loop.thread or loop.kind}")
    require_any_order(func, loop, what)


def _require_own_extent(func: PrimFunc, loop: For, chain: Sequence[For]) -> None:
    used = set(variables(loop.extent)) & {other.var for other in chain}
    if used:
        names = ", ".join(v.name for v in used)
        raise refuse(func, f"the extent {loop.extent} of loop {loop.var.name!r} depends on loop {names}")


__all__ = ["add_unit_loop", "fuse", "reorder", "split", "tile"]


class LoopPrimitives:
    """A class with the primitives that create and change loops, from which `Schedule` and `Stage` inherit."""

    __slots__ = ()
    add_unit_loop = add_unit_loop
