"""The reduction of a block, read off its statements (`ir.combine` writes them)."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import Expr, Load, Op, Var
from tilewright.ir.loops import TRUE, Block, If, Let, Stmt, Store
from tilewright.ir.reduce import Reducer
from tilewright.ir.rewrite import map_expr, walk_expr
from tilewright.schedule.dependence import reduction_update
from tilewright.schedule.state import stores_in
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Combination:
    """One step of a block's reduction: the reducer combines `targets` with `values` where `condition` holds."""

    reducer: Reducer
    targets: tuple[Load, ...]
    values: tuple[Expr, ...]
    condition: Expr


def combination(block: Block) -> Combination | None:
    """The step of a reduction block that has its init; None if its statements are not those of a reducer."""
    if block.init is None:
        return None
    identity = tuple(s.value for s in stores_in(block.init))
    update = reduction_update(block)
    if update is not None:
        lhs, rhs = (Var(name, update.value.dtype) for name in ("lhs0", "rhs0"))
        reducer = Reducer(update.op, (lhs,), (rhs,), (Op(update.op, (lhs, rhs)),), identity)
        return Combination(reducer, (update.target,), (update.value,), update.condition)
    condition: Expr = TRUE
    body: Stmt = block.body
    if isinstance(body, If) and body.orelse is None:
        condition, body = body.condition, body.then
    lets: list[Let] = []
    while isinstance(body, Let):
        lets.append(body)
        body = body.body
    stores = stores_in(body)
    count = len(stores)
    if len(identity) != count or len(lets) != (1 if count == 1 else 2 * count):
        return None
    targets = tuple(Load(s.buffer, s.indices) for s in stores)
    new, values = tuple(x.var for x in lets[:count]), tuple(x.value for x in lets[:count])
    named = {x.var: x.value for x in lets[count:]}
    results = tuple(named.get(s.value, s.value) if isinstance(s.value, Var) else s.value for s in stores)
    if any(_reads(e, stores) for e in (*values, condition)):
        return None
    accumulated = tuple(Var(f"lhs{k}", t.dtype) for k, t in enumerate(targets))
    over = tuple(_over(r, targets, accumulated) for r in results)
    known = {*accumulated, *new}
    if any(isinstance(n, Load) or (isinstance(n, Var) and n not in known) for r in over for n in walk_expr(r)):
        return None
    return Combination(Reducer(block.name, accumulated, new, over, identity), targets, values, condition)


def _reads(e: Expr, stores: Sequence[Store]) -> bool:
    return any(isinstance(n, Load) and any(n.buffer == s.buffer for s in stores) for n in walk_expr(e))


def _over(result: Expr, targets: tuple[Load, ...], lhs: tuple[Var, ...]) -> Expr:
    """`result` with loads of `targets` replaced by the variables `lhs`."""
    of = dict(zip(targets, lhs, strict=True))
    return map_expr(result, lambda node: of.get(node) if isinstance(node, Load) else None)
