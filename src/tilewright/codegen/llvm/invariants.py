"""Compute divisions and parts of addresses that are invariant in a loop before it.

    for i in 0..8 { for v in 0..4 { y[i, v] = x[t // n, t % n + i, v] } }      q = t // n;  r = t % n, before `i`

Only divisions by what is no literal: a place among symbolic sizes, some ten cycles each. LLVM's pass for this is none
of the few that generated code gets (`optimize`), and a division may not leave a loop that might not run: divisors are
at least 1 where they are computed ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.codegen.llvm.address import set_base
from tilewright.codegen.llvm.expr import evaluate, is_positive
from tilewright.codegen.llvm.polynomial import Poly
from tilewright.codegen.llvm.state import State
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, maximum
from tilewright.ir.loops import For, Let, Stmt, Store
from tilewright.ir.rewrite import exprs_of, loads, variables, walk, walk_expr

CHEAP = frozenset(("add", "sub", "mul", "min", "max"))
"""Operators that are cheap enough to be computed before a loop even if no iteration needs them."""


def divide_before(s: State, loop: For) -> None:
    """Compute the divisions that no iteration of `loop` changes right before the loop."""
    if s.lanes is not None or not s.symbolic:
        return
    bound = {loop.var} | {inner.var for inner in walk(loop.body) if isinstance(inner, For | Let)}
    for e in dict.fromkeys(_divisions(loop.body)):
        if bound.isdisjoint(variables(e)) and s.known(e) is None:
            dividend, divisor = e.args
            safe = e if is_positive(s, divisor) else Op(e.name, (dividend, maximum(divisor, 1)), e.dtype)
            s.remember(e, evaluate(s, safe))


def _divisions(body: Stmt) -> Iterator[Op]:
    """The divisions and remainders by non-literals that read no memory, inner ones first."""
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


def bases_before(s: State, loop: For) -> None:
    """Compute right before `loop` the part of each address that no iteration changes. Only addresses with strides that
    are products of symbols get such a base: LLVM adds other terms cheaply, and a base costs a short loop more than it
    gains."""
    if s.lanes is not None or not s.symbolic:
        return
    bound = {loop.var} | {inner.var for inner in walk(loop.body) if isinstance(inner, For | Let)}
    results: list[tuple[Buffer, Poly]] = []
    for buffer, indices in dict.fromkeys(accesses(loop.body)):
        pointer = s.pointers.get(buffer.name)
        if pointer is not None and not pointer.elements:
            p = s.converter.offset(buffer, indices)
            results.append((buffer, {m: c for m, c in p.items() if m and are_there(s, m, bound)}))
    if any(len(m) > 1 for _, same in results for m in same):
        for buffer, same in results:
            if same:
                set_base(s, buffer, same)


def accesses(body: Stmt, spread: bool = False) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """The accesses, (buffer, indices), that an iteration of `body` makes inside unrolled or vectorized loops; accesses
    in inner serial loops are left out. `spread`: the statement is inside an unrolled or vectorized loop."""
    if isinstance(body, For):
        if body.kind not in ("unrolled", "vectorized"):
            return
        spread = True
    if spread:
        if isinstance(body, Store):
            yield body.buffer, body.indices
        for e in exprs_of(body):
            for load in loads(e):
                yield load.buffer, load.indices
    for child in body.children:
        yield from accesses(child, spread)


def are_there(s: State, monomial: tuple[int, ...], bound: set[Var]) -> bool:
    """Whether all factors of a monomial have values outside of the loops that bind the variables `bound`, or can be
    computed there."""
    return all(_is_there(s, s.atoms.exprs[n], bound) for n in monomial)


def _is_there(s: State, e: Expr, bound: set[Var]) -> bool:
    """Whether the expression `e`, a factor of an offset, has a value before the loops that bind the variables `bound`,
    or can be computed there by cheap operations."""
    if not bound.isdisjoint(variables(e)):
        return False
    if isinstance(e, Var):
        return e in s.env and not s.env[e].vector
    if s.known(e) is not None:
        return True
    if not isinstance(e, Op):
        return False
    by_literal = e.name in ("floordiv", "mod") and isinstance(e.args[1], Const) and e.args[1].value > 0
    return (by_literal or e.name in CHEAP) and all(isinstance(c, Const) or _is_there(s, c, bound) for c in e.args)
