"""The parts that an expression contains several times: expressions are shared graphs, but texts are trees."""

from __future__ import annotations

from collections import Counter

from tilewright.ir.expr import Expr, Op
from tilewright.ir.rewrite import walk_expr
from tilewright.ir.scalar_ops import LAZY

_MAX_REPEATED = 24
"""The least number of distinct subexpressions for which repeated ones are searched; in smaller expressions repetition
does no harm."""
_LONG = 150
"""The largest number of subexpressions, with repetitions, with which the text of an expression is never called long."""


def repeated(e: Expr) -> frozenset[Expr]:
    """The operators that occur more than once in `e`, if writing them each time would multiply a long text; else
    nothing."""
    distinct = list(walk_expr(e))
    if len(distinct) < _MAX_REPEATED:
        return frozenset()
    limit = max(_LONG, 3 * len(distinct))
    stack, unfolded = [e], 0
    while stack and unfolded <= limit:
        unfolded += 1
        stack.extend(stack.pop().children)
    if unfolded <= limit:
        return frozenset()
    uses = Counter(child for node in distinct for child in node.children)
    return frozenset(node for node, count in uses.items() if count > 1 and isinstance(node, Op))


def computed_first(e: Expr) -> tuple[Expr, ...]:
    """The repeated subexpressions of `e` that are always evaluated, not only where a `select`, `and` or `or` chooses,
    so that they may be computed before `e`; each comes after those that it contains."""
    parts = repeated(e)
    order: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack = [(e, False)] if parts else []
    while stack:
        node, done = stack.pop()
        if done:
            if node in parts:
                order[node] = None
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            lazy = isinstance(node, Op) and node.name in LAZY
            stack.extend((child, False) for child in (node.children[:1] if lazy else node.children))
    return tuple(order)
