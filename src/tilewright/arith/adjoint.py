"""Reverse-mode differentiation of one scalar expression: the gradients of all of its leaves in one sweep.

    adjoints(x * exp(y), g, [x, y])   ->   {x: g * exp(y), y: g * x * exp(y)}

The partial derivatives are those of `derivative.py`, including those at corners. A selection passes the gradient to the
selected branch and zero to the other one, so that an infinity does no harm in a branch that was not selected.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.arith.derivative import RULES, STEPS
from tilewright.ir.expr import Expr, Load, Op, cast, const, is_const, select
from tilewright.support.errors import UnsupportedError


def adjoints(e: Expr, seed: Expr, leaves: Collection[Expr]) -> dict[Expr, Expr]:
    """The gradient by each of the floating point `leaves` (variables or loads) that `e` depends on, where `seed` is the
    gradient of `e`. Conditions and indices have no gradient.

    Raises UnsupportedError naming the operators that have no derivative.
    """
    wanted = _leading_to(e, set(leaves))
    flows: dict[Expr, Expr] = {e: seed} if e in wanted else {}
    for node in _parents_first(e, wanted):
        flow = flows.get(node)
        if flow is None or not isinstance(node, Op):
            continue
        for argument, part in zip(node.args, _parts(node, flow, [a in wanted for a in node.args]), strict=True):
            if part is not None and not is_const(part, 0):
                before = flows.get(argument)
                flows[argument] = part if before is None else before + part
    return {leaf: flows[leaf] for leaf in leaves if leaf in flows}


def _leading_to(e: Expr, leaves: set[Expr]) -> set[Expr]:
    """The subexpressions of `e` through which its value depends on a leaf: floating-point ones, outside of conditions
    and indices."""
    memo: dict[Expr, bool] = {}

    def go(node: Expr) -> bool:
        entry = memo.get(node)
        if entry is None:
            inner = _differentiable(node) if isinstance(node, Op) else ()
            leading = [go(a) for a in inner]  # every part, also after the first that leads to a leaf
            entry = memo[node] = node.dtype.is_float and (node in leaves or any(leading))
        return entry

    go(e)
    return {node for node, leads in memo.items() if leads}


def _differentiable(node: Op) -> tuple[Expr, ...]:
    if not node.dtype.is_float or node.name in STEPS or node.name in ("bitcast", "lookup"):
        return ()
    return node.args[1:] if node.name == "select" else node.args


def _parents_first(e: Expr, wanted: set[Expr]) -> Sequence[Expr]:
    """The subexpressions of `e` in `wanted`, ordered so that each comes after all operators that use it."""
    order: list[Expr] = []
    seen: set[Expr] = set()

    def go(node: Expr) -> None:
        if node in seen or node not in wanted:
            return
        seen.add(node)
        if not isinstance(node, Load):
            for child in node.children:
                go(child)
        order.append(node)

    go(e)
    return order[::-1]


def _parts(node: Op, flow: Expr, asked: Sequence[bool]) -> Sequence[Expr | None]:
    """The gradients of `node`'s arguments, where `flow` is the gradient of its result; None for arguments whose entry
    in `asked` is false."""
    if node.name == "select":
        zero = const(0, node.dtype)
        yes = select(node.args[0], flow, zero) if asked[1] else None
        return None, yes, select(node.args[0], zero, flow) if asked[2] else None
    if node.name == "cast":
        return (cast(flow, node.args[0].dtype),) if asked[0] else (None,)
    rule = RULES.get(node.name)
    if rule is None:
        raise UnsupportedError(f"the scalar operator {node.name} has no derivative")
    return [_scaled(flow, s) if a else None for s, a in zip(rule(node.args, node), asked, strict=True)]


def _scaled(flow: Expr, slope: Expr) -> Expr:
    if is_const(slope, 1):
        return flow
    return -flow if is_const(slope, -1) else flow * slope


__all__ = ["adjoints"]
