"""Give each value of a symbolic remainder its own version, where copies of an unrolled loop depend on it.

    for k in 0..64 {                                 if n % 4 == 1 {
      for i in unrolled 0..4 {                         for k in 0..64 { C[0] = C[0] + A[k, 0] }
        if i < n % 4 { C[i] = C[i] + A[k, i] }   ->  } else { if n % 4 == 2 { ... } else { if n % 4 == 3 { ... } } }
      } }

In each version the loop has a literal extent and no condition, so accumulators stay in registers. A batch of one that
meets a tile of four rows thus runs a kernel of one row.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arith import Analyzer
from tilewright.ir.expr import Const, Expr, Op, const, equal
from tilewright.ir.loops import For, If, Intrinsic, Let, Stmt, Store
from tilewright.ir.rewrite import map_expr, map_stmt, variables, walk
from tilewright.transform.loops.copies import conjuncts

MOST = 13
"""The largest remainder that gets a version of its own."""


def by_remainder(stmt: Stmt, analyzer: Analyzer, limit: int, tidy: Callable[[Stmt], Stmt]) -> Stmt | None:
    """`stmt` by cases of the one remainder in it; None if there is none, or more than `limit` values.

    `tidy` gives each copy fresh names and simplifies it.
    """
    found = remainders(stmt)
    if len(found) != 1:
        return None
    ((remainder, tests),) = found.items()
    lo, hi = analyzer.bounds(remainder)
    if lo is None or hi is None or lo < 0 or not 1 < hi <= min(limit, MOST):
        return None
    # With remainder 0 nothing happens if every store is behind a test.
    first = max(lo, 1) if all_behind(stmt, tests) else lo
    result: Stmt | None = None
    for value in range(hi, first - 1, -1):
        version = tidy(put(stmt, remainder, const(value)))
        result = If(equal(remainder, value), version, result)
    return result


def remainders(stmt: Stmt) -> dict[Expr, set[Expr]]:
    """Symbolic limits of unrolled loops, each with the conditions `i < limit` in which it stands."""
    bound = {s.var for s in walk(stmt) if isinstance(s, For | Let)}
    found: dict[Expr, set[Expr]] = {}
    for s in walk(stmt):
        if isinstance(s, For) and s.kind == "unrolled" and isinstance(s.body, If) and s.body.orelse is None:
            for part in conjuncts(s.body.condition):
                if type(part) is Op and part.name == "lt" and part.args[0] is s.var:
                    limit = part.args[1]
                    if type(limit) is not Const and bound.isdisjoint(variables(limit)):
                        found.setdefault(limit, set()).add(part)
    return found


def all_behind(s: Stmt, conditions: set[Expr]) -> bool:
    """True if every store in `s` is behind one of the conditions."""
    if isinstance(s, Store | Intrinsic):
        return False
    if isinstance(s, If) and s.orelse is None and not conditions.isdisjoint(conjuncts(s.condition)):
        return True
    return all(all_behind(c, conditions) for c in s.children)


def put(s: Stmt, old: Expr, new: Expr) -> Stmt:
    """`s` with one expression in place of another, wherever it stands."""
    memo: dict[Expr, Expr] = {}
    return map_stmt(s, lambda _: None, lambda e: map_expr(e, lambda n: new if n is old else None, memo))
