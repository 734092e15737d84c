"""Divisions that are the same in all iterations are done before the loop.

    for i in 0..8 { for v in 0..4 { y[i, v] = x[t // n, t % n + i, v] } }      q = t // n;  r = t % n, before `i`

Only those by what is no literal: a place among symbolic sizes, some ten cycles each. LLVM's pass for this is none of
the few that generated code gets (`optimize`), and a division may not leave a loop that might not run: divisors are at
least 1 where they are computed ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.codegen.llvm.expr import evaluate, is_positive
from tilewright.codegen.llvm.state import State
from tilewright.ir.expr import Const, Expr, Load, Op, Var, maximum
from tilewright.ir.loops import For, Let, Stmt
from tilewright.ir.rewrite import exprs_of, variables, walk, walk_expr


def divide_before(s: State, loop: For) -> None:
    """Compute the loop's invariant divisions where it begins."""
    if s.lanes is not None or not s.symbolic:
        return
    bound = {loop.var} | {inner.var for inner in walk(loop.body) if isinstance(inner, For | Let)}
    for e in dict.fromkeys(_divisions(loop.body)):
        if bound.isdisjoint(variables(e)) and s.known(e) is None:
            dividend, divisor = e.args
            safe = e if is_positive(s, divisor) else Op(e.name, (dividend, maximum(divisor, 1)), e.dtype)
            s.remember(e, evaluate(s, safe))


def _divisions(body: Stmt) -> Iterator[Op]:
    """Those by other than literals that read no memory, inner ones first."""
    seen: set[Expr] = set()
    for stmt in walk(body):
        for e in exprs_of(stmt):
            if e not in seen:
                seen.add(e)
                nodes = [n for n in walk_expr(e) if type(n) is Op and n.name in ("floordiv", "mod")]
                yield from (n for n in reversed(nodes) if _is_place(n))


def _is_place(e: Op) -> bool:
    return (
        not isinstance(e.args[1], Const)
        and bool(variables(e))
        and not any(isinstance(n, Load) for n in walk_expr(e))
        and all(isinstance(n, Op | Var | Const) for n in walk_expr(e))
    )
