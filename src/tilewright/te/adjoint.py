"""Reverse mode over tensor expressions: the adjoint of a stage is stages.

    C[i, j] = sum(A[i, k] * B[k, j])        dA[i, k] = sum(dC[i, j] * B[k, j])  over j
    Y[h]    = sum(X[2*h + r] * W[r])        dX[j]    = sum(dY[(j - r) // 2] * W[r])  where (j - r) % 2 == 0, ...

If the indices of a read can be inverted (`arith/inverse.py`), each element of the gradient is a sum over the reads of
it, without a scatter. If not (an index from memory, or a clamped one), the gradient is a tensor of updates, each with
its place, for a scatter that adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.arith.adjoint import adjoints
from tilewright.arith.inverse import invert
from tilewright.ir.dtype import DType, f32, i64
from tilewright.ir.expr import (
    Expr,
    Load,
    Op,
    Var,
    all_of,
    as_int,
    call,
    cast,
    const,
    is_const,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.ir.reduce import Reduce, Reducer
from tilewright.ir.rewrite import loads, map_expr, substitute, variables
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError
from tilewright.te.elements import prod
from tilewright.te.elements import sum as total
from tilewright.te.tensors import ComputeOp, IterVar, Tensor, compute, labelled, or_identity, reduce_axis


@dataclass(frozen=True, slots=True)
class Flow:
    """The gradient that flows to a tensor from one of the loads that read it.

    tensor  the tensor that is read
    values  of the tensor's shape; or the updates, if there are places. 16-bit floats are in f32
    places  the updates' places, a tensor [..., d]: the position in the first d dimensions of the tensor; the updates'
            last dimensions are the others
    """

    tensor: Tensor
    values: Tensor
    places: Tensor | None = None


def adjoint(result: Tensor, seed: Tensor, wanted: Sequence[Tensor]) -> list[Flow]:
    """The gradients that flow through the stage of `result`, whose own gradient is `seed`, to the tensors among
    `wanted` that it reads.

    Raises UnsupportedError for stages of several results, reducers that have no gradient, and scalar operators without
    a derivative.
    """
    stage = result.op
    if not isinstance(stage, ComputeOp) or len(stage.bodies) != 1:
        raise UnsupportedError("a recurrence or a stage of several results has no gradient", where=result.name)
    point = tuple(a.var for a in stage.axis)
    body = stage.bodies[0]
    value, flow = body, seed[point]
    condition: Expr = const(True)
    if isinstance(body, Reduce):
        value, condition = body.values[0], body.condition
        flow = _through_reduction(result, body, flow)
    asked = {t for t in wanted if t.dtype.is_float}
    leaves = [x for x in loads(value) if x.buffer in asked]
    box = {a.var: a.extent for a in (*stage.axis, *stage.reduce_axis)}
    match = adjoints(value, flow, leaves)
    return [_flow_of(leaf, match[leaf], condition, box) for leaf in leaves if leaf in match]


# -- reductions --------------------------------------------------------------------------------------------------------


def _through_reduction(result: Tensor, r: Reduce, flow: Expr) -> Expr:
    """The gradient of the element that `r` reduces, where `flow` is the gradient of the element of `result`."""
    kind = reduction_of(r.reducer)
    point = tuple(a.var for a in result.op.axis) if isinstance(result.op, ComputeOp) else ()
    (value,) = r.values
    if kind == "sum":
        return flow
    if kind == "prod":
        return flow * _others(result, r)[(*point, *(v for v, _ in r.axes))]
    if kind in ("max", "min"):
        return select(call("eq", value, result[point]), flow / _equals(result, r)[point], const(0, flow.dtype))
    raise UnsupportedError(f"the reducer {r.reducer.name} has no gradient", where=result.name)


def reduction_of(reducer: Reducer) -> str | None:
    """The name of a reducer, recognised by its formula: "sum", "prod", "max" or "min"; None for any other."""
    if len(reducer.result) != 1 or not isinstance(reducer.result[0], Op):
        return None
    combination = reducer.result[0]
    if set(combination.args) != {reducer.lhs[0], reducer.rhs[0]}:
        return None
    kind = combination.dtype
    known = {
        "add": ("sum", const(0, kind)),
        "mul": ("prod", const(1, kind)),
        "max": ("max", const(kind.min, kind)),
        "min": ("min", const(kind.max, kind)),
        "larger": ("max", const(kind.min, kind)),
    }
    name, start = known.get(combination.name, (None, None))
    return name if reducer.identity[0] is start else None


def _equals(result: Tensor, r: Reduce) -> Tensor:
    """A stage: for each element of `result`, an extremum, the number of reduced elements that equal it. They share its
    gradient equally."""
    assert isinstance(result.op, ComputeOp)
    own = {a.var: a.extent for a in result.op.axis}

    def element(*at: Expr) -> Expr:
        moved = dict(zip(own, at, strict=True))
        axes, moved = _axes(r.axes, moved)
        same = call("eq", substitute(r.values[0], moved), result[at])
        one, zero = const(1, result.dtype), const(0, result.dtype)
        return _summed(select(same, one, zero), axes, substitute(r.condition, moved))

    return _stage(tuple(own.values()), element, f"{result.name}_equals")


def _others(result: Tensor, r: Reduce) -> Tensor:
    """A stage: for each element that the product `r` reduces, the product of all others. It replaces a division, so
    that zeros do no harm."""
    assert isinstance(result.op, ComputeOp)
    box = {a.var: a.extent for a in result.op.axis} | dict(r.axes)
    count = len(result.op.axis)

    def element(*at: Expr) -> Expr:
        axes, moved = _axes(r.axes, dict(zip(box, at[:count], strict=False)))
        here = all_of(call("eq", a.var, p) for a, p in zip(axes, at[count:], strict=True))
        value = substitute(r.values[0], moved)
        condition = substitute(r.condition, moved)
        value = select(here, const(1, value.dtype), value)
        if loads(condition):
            value, condition = select(condition, value, const(1, value.dtype)), const(True)
        match: Expr = or_identity(prod(value, axis=axes, where=condition))
        return match

    return _stage(tuple(box.values()), element, f"{result.name}_others")


# -- from a read to its tensor -----------------------------------------------------------------------------------------


def _flow_of(read: Load, flow: Expr, condition: Expr, box: Mapping[Var, Expr]) -> Flow:
    tensor = read.buffer
    assert isinstance(tensor, Tensor)
    if isinstance(flow, Op) and flow.name == "cast" and flow.args[0].dtype is f32:
        (flow,) = flow.args  # summed before it is rounded
    places = [Var(f"j{d}.place", axis=True) for d in range(tensor.ndim)]
    inverse = invert(read.indices, box, dict(zip(places, tensor.shape, strict=True)))
    if inverse is None:
        return _updates(read, flow, condition, box)

    def element(*at: Expr) -> Expr:
        known = dict(zip(places, at, strict=True))
        axes, known = _axes(tuple((v, extent) for v, extent in inverse.free), known)
        point = {v: substitute(e, known) for v, e in inverse.point.items()}
        conditions = [substitute(c, known) for c in inverse.conditions]
        # What was read is the element that the gradient is of.
        value = _replaced(substitute(flow, point), substitute(read, point), tensor[at])
        where = _replaced(substitute(condition, point), substitute(read, point), tensor[at])
        return _summed(value, axes, all_of([*conditions, where]))

    return Flow(tensor, _stage(tensor.shape, element, f"d_{tensor.name}"))


def _updates(read: Load, flow: Expr, condition: Expr, box: Mapping[Var, Expr]) -> Flow:
    """The gradient of the tensor that flows through the load `read`, where `flow` is the gradient of the loaded element
    under `condition`, as updates of single elements or rows, for indices that cannot be inverted, such as `x[index[i],
    j]`: one update for each point of the loops `box` that the indices depend on, summed over the other loops.

    Last indices that are loops over whole dimensions, as `j` here, make rows: they are dimensions of the updates, and
    no part of the updates' positions.
    """
    tensor = read.buffer
    assert isinstance(tensor, Tensor)
    depth, rows = tensor.ndim, list[Var]()
    while depth > 1 and _is_row(read.indices, depth - 1, box, tensor.shape[depth - 1]):
        depth -= 1
        row = read.indices[depth]
        assert isinstance(row, Var)
        rows.insert(0, row)
    used = {v for i in read.indices[:depth] for v in variables(i)}
    placed = [v for v in box if v in used]
    summed = [(v, extent) for v, extent in box.items() if v not in used and v not in set(rows)]
    shape = [box[v] for v in (*placed, *rows)]

    def update(*at: Expr) -> Expr:
        axes, known = _axes(summed, dict(zip((*placed, *rows), at, strict=True)))
        return _summed(substitute(flow, known), axes, substitute(condition, known))

    def place(*at: Expr) -> Expr:
        known = dict(zip(placed, at[:-1], strict=True))
        chosen: Expr = const(0)
        for d in reversed(range(depth)):
            index = cast(substitute(read.indices[d], known), i64)
            inside = maximum(minimum(index, tensor.shape[d] - 1), const(0))
            chosen = select(call("eq", at[-1], const(d)), inside, chosen) if d < depth - 1 else inside
        return chosen

    values = _stage(shape, update, f"d_{tensor.name}_updates")
    return Flow(tensor, values, _stage([*shape[: len(placed)], const(depth)], place, f"d_{tensor.name}_places"))


def _is_row(indices: Sequence[Expr], d: int, box: Mapping[Var, Expr], extent: Expr) -> bool:
    """Whether index `d` of a load's `indices` is a loop of `box` over all `extent` elements of the dimension, and no
    other index depends on this loop."""
    index = indices[d]
    return (
        isinstance(index, Var)
        and index in box
        and (box[index] is extent or as_int(box[index] - extent) == 0)
        and not any(index in set(variables(other)) for k, other in enumerate(indices) if k != d)
    )


def _replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    return e if old is new else map_expr(e, lambda node: new if node is old else None)


# -- stages ------------------------------------------------------------------------------------------------------------


def _axes(over: Sequence[tuple[Var, Expr]], known: Mapping[Var, Expr]) -> tuple[list[IterVar], dict[Var, Expr]]:
    """New reduction axes in place of the variables `over`, and the mapping `known` extended by these."""
    axes = [reduce_axis(extent, v.name.rsplit(".", 1)[0]) for v, extent in over]
    return axes, {**known, **{v: a.var for (v, _), a in zip(over, axes, strict=True)}}


def _summed(value: Expr, axes: Sequence[IterVar], condition: Expr) -> Expr:
    """The sum of `value` over `axes` where `condition` holds. Axes that nothing depends on become a factor; a condition
    that reads memory, or depends on no axis, becomes a selection inside the sum."""
    value = cast(value, wide(value.dtype))
    zero = const(0, value.dtype)
    used = {*variables(value), *variables(condition)}
    needed = [a for a in axes if a.var in used]
    others = [a.extent for a in axes if a.var not in used]
    if others:
        value = value * cast(product(others), value.dtype)
    own = {a.var for a in needed}
    inside, outside = list[Expr](), list[Expr]()
    for c in _conjuncts(condition):
        (inside if own & set(variables(c)) and not loads(c) else outside).append(c)
    if outside:
        value = select(all_of(outside), value, zero)
    if not needed:
        return value
    result: Expr = or_identity(total(value, axis=needed, where=all_of(inside)))
    return result


def _conjuncts(condition: Expr) -> list[Expr]:
    if is_const(condition, True):
        return []
    if isinstance(condition, Op) and condition.name == "and":
        return [part for a in condition.args for part in _conjuncts(a)]
    return [condition]


def wide(kind: DType) -> DType:
    """The type in which sums of elements of type `kind` are computed."""
    return f32 if kind.is_float and kind.bits == 16 else kind


def _stage(shape: Sequence[Expr], element: Callable[..., Expr], name: str) -> Tensor:
    names = [f"j{d}" for d in range(len(shape))]
    result: Tensor = compute(shape, labelled(element, names), name=name)
    return result


__all__ = ["Flow", "adjoint", "reduction_of", "wide"]
