"""Reads of stages that are sure to leave their tensors: refused where the schedule is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilewright.arith import linear, prove, simplify
from tilewright.ir.expr import Expr, Load, Var, const, is_const
from tilewright.ir.guarded import guarded_loads
from tilewright.ir.op_types import readable
from tilewright.ir.reduce import Reduce
from tilewright.ir.rewrite import loads, substitute, variables
from tilewright.support.errors import ExpressionError, Problems
from tilewright.te.externs import ExternOp
from tilewright.te.scans import ScanOp
from tilewright.te.tensors import ComputeOp, Tensor


def check_reads(stages: Iterable[ComputeOp | ScanOp | ExternOp]) -> None:
    """Raise ExpressionError for reads that are out of bounds for all values of the symbols. Reads after a condition, or
    at an index that depends on data, are assumed to be inside: `tw.build(..., bounds="check")` checks them in each
    call."""
    problems = Problems()
    for op, start in _computed(stages):
        extents = {a.var: a.extent for a in (*op.axis, *op.reduce_axis)}
        shifted: dict[Var, Expr] = {}
        if start:  # the first rows are given
            time = op.axis[0]
            extents[time.var], shifted = simplify(time.extent - start), {time.var: time.var + start}
        if not all(prove(n >= 1) for n in extents.values()):
            continue  # a loop that may not run reads nothing
        seen: set[Load] = set()
        for body in op.bodies:
            for e, case in _parts(body):
                for load, conditions in guarded_loads(e, set(loads(e)), case):
                    if load not in seen and not conditions:
                        seen.add(load)
                        _check(op, load, shifted, extents, problems)
    problems.raise_if_any(kind=ExpressionError)


def _parts(body: Expr) -> Sequence[tuple[Expr, tuple[Expr, ...]]]:
    """The expressions of a stage's body, each with the conditions under which it is evaluated."""
    if not isinstance(body, Reduce):
        return [(body, ())]
    conditions = () if is_const(body.condition, True) else (body.condition,)
    return [(body.condition, ()), *((v, conditions) for v in (*body.values, *body.reducer.result))]


def _computed(stages: Iterable[ComputeOp | ScanOp | ExternOp]) -> Iterator[tuple[ComputeOp, int]]:
    """Yield the stages that compute elements, those of a recurrence's step among them, each with the number of the
    first row that it computes."""
    for op in stages:
        if isinstance(op, ExternOp):
            continue
        yield from ((step, op.start) for step in op.steps) if isinstance(op, ScanOp) else [(op, 0)]


def _check(
    op: ComputeOp, load: Load, shifted: Mapping[Var, Expr], extents: Mapping[Var, Expr], problems: Problems
) -> None:
    tensor = load.buffer
    assert isinstance(tensor, Tensor)
    for d, (index, extent) in enumerate(zip(load.indices, tensor.shape, strict=True)):
        if loads(index):
            continue
        index = substitute(index, shifted)
        least, most = _end(index, extents, least=True), _end(index, extents, least=False)
        if prove(most < extent) and prove(least >= 0):
            continue
        if prove(most >= extent) or prove(least < 0):
            problems.add(
                ExpressionError(
                    f"{op.name}: {readable(load)} is out of bounds",
                    where=op.line,
                    expected=f"an index in 0..{readable(extent)} in dimension {d}",
                    got=f"{readable(simplify(least))} to {readable(simplify(most))}",
                    hint="te.if_then_else(inside, value, other) does not touch what is outside",
                )
            )
            return


def _end(index: Expr, extents: Mapping[Var, Expr], *, least: bool) -> Expr:
    """The least or greatest value of an index that is linear in the axes, which have the `extents`. Another index is
    returned as it is, so that it counts as out of bounds only if it always is."""
    form = linear(index)
    if any(not isinstance(atom, Var) and set(variables(atom)) & extents.keys() for atom, _ in form.terms):
        return index
    total: Expr = const(form.constant)
    for atom, factor in form.terms:
        if isinstance(atom, Var) and atom in extents:
            total = total + ((extents[atom] - 1) * factor if (factor > 0) != least else 0)
        else:
            total = total + atom * factor
    return total
