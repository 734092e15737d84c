"""The axes of operands that correspond to an axis of the result, derived from an operator's tensor expression.

    y[i, j] = sum(a[i, k] * b[k, j] for k)      y's axis 0 is parallel to a's axis 0, its axis 1 to b's axis 1

An axis of a result is parallel to an axis of an operand where the elements at a position of the one are computed from
those at the same position of the other alone, and in the same way at each position. A slice of the result along such an
axis is then the operator applied to the same slice of the operands, so that a graph pass may move slices, sums and
transpositions through the operator. `LINKS` states this for operators whose expressions do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from tilewright import te
from tilewright.arith import prove_equal
from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Expr, Load, Var, is_const, product
from tilewright.ir.graph import Node, TensorType
from tilewright.ir.rewrite import loads, variables
from tilewright.ops.lowered.attention import ORDERS, AttentionAttrs
from tilewright.ops.registry import OpDef, get
from tilewright.support.classes import dataclass
from tilewright.te.tensors import ComputeOp, Tensor, formula

Links = tuple[int | None, ...]
"""For each operand the axis that an axis of the result is parallel to; None if the operand is read independently of the
position along the result's axis."""

Index = int | frozenset[int]
"""The position along one dimension of an operand that is read: the number of the result's axis whose position it is, or
the set of axes on which it depends otherwise (empty if only a reduction varies it)."""

Read = tuple[Index, ...]
"""The position that is read, as an `Index` for each dimension of an operand."""


def parallel(node: Node, output: int = 0) -> tuple[Links | None, ...]:
    """For each axis of a node's result, the axes of its operands that are parallel to it; None where the operator mixes
    positions or treats them differently, or where its expression tells nothing."""
    types = tuple(None if v is None else v.type for v in node.inputs)
    return parallel_of(node.op, types, node.attrs, node.outputs[output].type, output)


def parallel_of(
    op: str, types: Sequence[TensorType | None], attrs: Attrs, out: TensorType, output: int = 0
) -> tuple[Links | None, ...]:
    """For each axis of `out`, result number `output` of the operator `op` applied to operands of these types, the axes
    of the operands that are parallel to it; None where the operator mixes positions or treats them differently, or
    where its expression tells nothing."""
    rule, definition = LINKS.get(op), get(op)
    if definition.kind == "pointwise":
        return tuple(tuple(_aligned(t, out, axis) for t in types) for axis in range(out.rank)) if types else ()
    if rule is not None:
        return tuple(rule(types, attrs, out, axis) for axis in range(out.rank))
    if definition.compute is None or not types:
        return (None,) * out.rank
    return _derived(definition, tuple(types), attrs, output)


@lru_cache(maxsize=4096)
def _derived(
    definition: OpDef[Attrs], types: tuple[TensorType | None, ...], attrs: Attrs, output: int
) -> tuple[Links | None, ...]:
    assert definition.compute is not None
    operands = [None if t is None else te.placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types)]
    results = definition.compute(operands, attrs, definition.infer(types, attrs))
    pattern = _Patterns().of(results[output])
    return tuple(_links(pattern, operands, results[output], axis) for axis in range(results[output].ndim))


@dataclass(frozen=True, slots=True)
class _Pattern:
    """How a tensor is computed: `reads` has for each operand the set of reads of it, and `positional` the tensor's axes
    whose positions occur in its values, not only in indices of operands (as in a range, or a triangular mask)."""

    reads: dict[Tensor, frozenset[Read]]
    positional: frozenset[int]


class _Patterns:
    """A cache of the patterns of tensors: the reads of operands by which each is computed."""

    def __init__(self) -> None:
        self.known: dict[Tensor, _Pattern | None] = {}

    def of(self, tensor: Tensor) -> _Pattern | None:
        """A tensor's pattern; None for a stage that is not a tensor expression."""
        if tensor not in self.known:
            self.known[tensor] = self._of_stage(tensor)
        return self.known[tensor]

    def _of_stage(self, tensor: Tensor) -> _Pattern | None:
        stage = tensor.op
        if stage is None:
            return _Pattern({tensor: frozenset({tuple(range(tensor.ndim))})}, frozenset())
        if not isinstance(stage, ComputeOp):
            return None
        axes = {a.var: k for k, a in enumerate(stage.axis)}
        bodies = (stage.bodies[tensor.index], *formula(stage.bodies[tensor.index]))
        positional = _axes_in((v for body in bodies for v in _outside_loads(body)), axes)
        reads: dict[Tensor, frozenset[Read]] = {}
        for load in (load for body in bodies for load in loads(body)):
            inner = self.of(load.buffer) if isinstance(load.buffer, Tensor) else None
            if inner is None:
                return None
            positional |= _through(load.indices, inner.positional, axes)
            for operand, own in inner.reads.items():
                new = {tuple(_index(load.indices, at, axes) for at in read) for read in own}
                reads[operand] = reads.get(operand, frozenset()) | new
        return _Pattern(reads, positional)


def _index(indices: Sequence[Expr], at: Index, axes: dict[Var, int]) -> Index:
    """The position `at` along an inner tensor's dimension in terms of the axes of an outer tensor, which reads the
    inner one at `indices`."""
    if isinstance(at, frozenset):
        return _through(indices, at, axes)
    index = indices[at]
    return axes[index] if isinstance(index, Var) and index in axes else _axes_in(variables(index), axes)


def _through(indices: Sequence[Expr], inner: frozenset[int], axes: dict[Var, int]) -> frozenset[int]:
    """The outer tensor's axes on which its `indices` for the inner tensor's axes `inner` depend."""
    return _axes_in((v for at in inner for v in variables(indices[at])), axes)


def _axes_in(names: Iterator[Var] | Sequence[Var], axes: dict[Var, int]) -> frozenset[int]:
    return frozenset(axes[v] for v in names if v in axes)


def _outside_loads(e: Expr) -> Iterator[Var]:
    """The variables of an expression that occur outside of load indices."""
    left, seen = [e], set[Expr]()
    while left:
        part = left.pop()
        if part in seen or isinstance(part, Load):
            continue
        seen.add(part)
        if isinstance(part, Var):
            yield part
        left += part.children


def _links(pattern: _Pattern | None, operands: Sequence[Tensor | None], result: Tensor, axis: int) -> Links | None:
    if pattern is None or axis in pattern.positional:
        return None
    links: list[int | None] = []
    for operand in operands:
        results = {_along(read, axis) for read in pattern.reads.get(operand, ())} if operand is not None else set()
        if len(results) > 1 or MIXED in results:
            return None
        link = results.pop() if results else None
        if link is not None and (operand is None or not prove_equal(operand.shape[link], result.shape[axis])):
            return None
        links.append(link)
    return tuple(links)


MIXED = -1
"""The result of `_along` for a read that depends on the position along an axis of the result, but is not simply at that
position."""


def _along(read: Read, axis: int) -> int | None:
    """The dimension in which a read is at the position of `axis`; None if the read does not depend on that position,
    MIXED if it depends on it in another way."""
    exact = [k for k, at in enumerate(read) if at == axis]
    if len(exact) > 1 or any(isinstance(at, frozenset) and axis in at for at in read):
        return MIXED
    return exact[0] if exact else None


# What expressions do not show


def _aligned(operand: TensorType | None, out: TensorType, axis: int) -> int | None:
    """The operand's axis that broadcasting aligns with the result's `axis`, if their sizes are equal."""
    at = axis - (out.rank - (0 if operand is None else operand.rank))
    return None if operand is None or at < 0 or not prove_equal(operand.shape[at], out.shape[axis]) else at


def _reshape(types: Sequence[TensorType | None], attrs: Attrs, out: TensorType, axis: int) -> Links | None:
    """The rule of reshape: the axis of the input that corresponds to the result's `axis`, as it has the same size and
    as many elements before it; None if there is none."""
    (x,) = types
    assert x is not None
    before = product(out.shape[:axis])
    for at, extent in enumerate(x.shape):
        if prove_equal(extent, out.shape[axis]) and prove_equal(product(x.shape[:at]), before):
            return (at,)
    return None


def _attention(types: Sequence[TensorType | None], attrs: Attrs, out: TensorType, axis: int) -> Links | None:
    """The rule of attention, a loop program without a tensor expression: the axis of the result's rows is parallel to
    that of the query's rows, and to the mask's if the mask differs by row. None for other axes, and for causal
    attention or packed sequences."""
    assert isinstance(attrs, AttentionAttrs)
    starts = (*types[8:], None)[0]
    if attrs.causal or starts is not None or ORDERS[attrs.order[3]].index(1) != axis:
        return None
    links: list[int | None] = [None] * len(types)
    links[0] = ORDERS[attrs.order[0]].index(1)
    mask = (*types[3:], None)[0]
    if mask is not None and mask.rank > 1 and not is_const(mask.shape[-2], 1):
        links[3] = mask.rank - 2
    return tuple(links)


Rule = Callable[[Sequence[TensorType | None], Attrs, TensorType, int], Links | None]

LINKS: dict[str, Rule] = {"reshape": _reshape, "lowered.attention": _attention}
"""Rules that state `parallel` for an axis of operators whose tensor expressions do not show it."""
