"""One step of a reduction as statements: old values combined with new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.expr import Expr, Load, Op, Var
from tilewright.ir.loops import If, Let, Seq, Stmt, Store, seq
from tilewright.ir.reduce import Reducer
from tilewright.ir.rewrite import fresh_name, substitute

KNOWN_REDUCERS = ("add", "mul", "min", "max", "larger")
"""The operators that a reducer of one value may be, so that a step of it is a single store."""


def combine(reducer: Reducer, targets: Sequence[Load], values: Sequence[Expr], used_names: set[str]) -> Stmt:
    """One step of a reduction: the targets' old values combined with new `values`.

        C[vi] = C[vi] + A[vi, vk]                                       by a known reducer

        let M_0_new = A[vi, vk]                                         by any: the new values come first, then what the
        let M_1_new = vk                                                targets become, so that no store sees another's
        let M_0_next = select(M_0[vi] > M_0_new, M_0[vi], M_0_new)      result
        let M_1_next = select(M_0[vi] > M_0_new, M_1[vi], M_1_new)
        M_0[vi] = M_0_next
        M_1[vi] = M_1_next

    `schedule/combination.py` reads them again.
    """
    current = dict(zip(reducer.lhs, targets, strict=True))
    if len(targets) == 1 and _is_known(reducer):
        (target,) = targets
        return Store(
            target.buffer, target.indices, substitute(reducer.result[0], {**current, reducer.rhs[0]: values[0]})
        )
    new = [Var(fresh_name(f"{t.buffer.name}_new", used_names), t.dtype) for t in targets]
    results = [substitute(r, {**current, **dict(zip(reducer.rhs, new, strict=True))}) for r in reducer.result]
    lets = list(zip(new, values, strict=True))
    if len(targets) > 1:
        after = [Var(fresh_name(f"{t.buffer.name}_next", used_names), t.dtype) for t in targets]
        lets += zip(after, results, strict=True)
        results = list(after)
    body = seq(Store(t.buffer, t.indices, r) for t, r in zip(targets, results, strict=True))
    for name, value in reversed(lets):
        body = Let(name, value, body)
    return body


def without_new(step: Stmt) -> Stmt:
    """The step of a reduction of several values with new values inlined instead of bound, so that code generation may
    skip those that a condition excludes; other statements unchanged."""
    if isinstance(step, If) and step.orelse is None:
        return replace(step, then=without_new(step.then))
    lets: list[Let] = []
    body = step
    while isinstance(body, Let):
        lets.append(body)
        body = body.body
    stores = body.stmts if isinstance(body, Seq) else (body,)
    new, after = lets[: len(stores)], lets[len(stores) :]
    retained = [s.value for s in stores if isinstance(s, Store)] == [x.var for x in after]
    if len(new) < 2 or len(after) != len(new) or not retained:
        return step
    values = {x.var: x.value for x in new}
    for x in reversed(after):
        body = Let(x.var, substitute(x.value, values), body)
    return body


def _is_known(reducer: Reducer) -> bool:
    result = reducer.result[0]
    operands = {reducer.lhs[0], reducer.rhs[0]}
    return isinstance(result, Op) and result.name in KNOWN_REDUCERS and set(result.args) == operands
