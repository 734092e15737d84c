"""Loop unswitching for the conditions of `select`: test once instead of in each iteration.

    for v in 0..n {                                       if y < h { for v in 0..n { B[v] = A[y, v] } }
      B[v] = select(y < h, A[y, v], 0.0) }        ->      else { for v in 0..n { B[v] = 0.0 } }

LLVM does so too, but not for masked lanes: there it computes and broadcasts the condition for each vector. The test
moves to the outermost loop in whose iterations the condition is constant and occurs in every select that it stores, so
that one of the two versions has no select. Without a serial loop nothing is gained; parallel loops stay as they are.
"""

from __future__ import annotations

from tilewright.ir.expr import Expr, Load, Op, Var, all_of, select
from tilewright.ir.loops import For, If, Intrinsic, Let, PrimFunc, Stmt, Store
from tilewright.ir.rewrite import exprs_of, map_expr, map_exprs_of, names_of, variables, walk, walk_expr, with_children
from tilewright.transform.loops.copies import conjuncts, copy_fresh


def unswitch_loops(func: PrimFunc) -> PrimFunc:
    """The function with loop-invariant conditions of `select` tested outside of serial loops."""
    body = _unswitched(func.body, names_of(func))
    return func if body is func.body else func.with_body(body)


def _unswitched(s: Stmt, used_names: set[str]) -> Stmt:
    if not s.children:
        return s
    common = _common(s)
    if common:
        held = _unswitched(_chosen(s, common, True), used_names)
        return If(all_of(common), held, copy_fresh(_chosen(s, common, False), used_names))
    return with_children(s, tuple([_unswitched(c, used_names) for c in s.children]))


def _common(s: Stmt) -> list[Expr]:
    """The conditions common to all selects in `s` that do not change within `s` and read no memory; none if `s` stores
    a value without a select, or contains no serial loop or a parallel one."""
    inside = list(walk(s))
    if any(type(x) is Store and not any(map(_is_select, walk_expr(x.value))) for x in inside):
        return []
    kinds = {x.kind for x in inside if isinstance(x, For)}
    if "serial" not in kinds or kinds & {"parallel", "thread"} or any(isinstance(x, Intrinsic) for x in inside):
        return []
    bound: set[Var] = {x.var for x in inside if isinstance(x, For | Let)}
    each = [
        conjuncts(e.children[0]) for x in inside for whole in exprs_of(x) for e in walk_expr(whole) if _is_select(e)
    ]
    shared = [c for c in each[0] if all(c in parts for parts in each)] if each else []
    return [c for c in shared if not bound.intersection(variables(c)) and not _reads(c)]


def _chosen(s: Stmt, conditions: list[Expr], hold: bool) -> Stmt:
    """The version of `s` for `hold` true, in which all of `conditions` are true in its selects, or for `hold` false, in
    which each select takes its other operand."""
    memo: dict[Expr, Expr] = {}

    def on(e: Expr) -> Expr | None:
        if not _is_select(e):
            return None
        rest = [c for c in conjuncts(e.children[0]) if c not in conditions]
        if not hold:
            return e.children[2]
        return select(all_of(rest), *e.children[1:]) if rest else e.children[1]

    children = tuple([_chosen(c, conditions, hold) for c in s.children])
    return map_exprs_of(with_children(s, children), lambda e: map_expr(e, on, memo))


def _is_select(e: Expr) -> bool:
    return type(e) is Op and e.name == "select"


def _reads(e: Expr) -> bool:
    return any(type(node) is Load for node in walk_expr(e))
