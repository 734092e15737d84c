"""The axes of operands that go along with the axes of a result, derived from an operator's tensor expression.

    y[i, j] = sum(a[i, k] * b[k, j] for k)      y's axis 0 goes along a's axis 0, its axis 1 along b's axis 1

An axis of a result is parallel to an axis of an operand where the elements at a position of the one are computed from
those at the same position of the other alone, and in the same way at each position. A part of the result along such an
axis is then what the operator makes of the same part of the operands, so that a graph pass may move slices, sums and
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
"""For each operand the axis that an axis of the result is parallel to; None: it reads the operand independently of its
position there."""

Index = int | frozenset[int]
"""Where a tensor reads along one dimension of an operand: at the position of this axis, or at one that depends on the
positions of these axes (none: on no position, as the indices that a reduction runs over)."""

Read = tuple[Index, ...]
"""Where a tensor reads an operand, by the operand's dimensions."""


def parallel(node: Node, output: int = 0) -> tuple[Links | None, ...]:
    """For each axis of a node's result the axes of its operands that it is parallel to; None for an axis along which
    the operator mixes positions or computes each one differently, and where nothing is known."""
    types = tuple(None if v is None else v.type for v in node.inputs)
    return parallel_of(node.op, types, node.attrs, node.outputs[output].type, output)


def parallel_of(
    op: str, types: Sequence[TensorType | None], attrs: Attrs, out: TensorType, output: int = 0
) -> tuple[Links | None, ...]:
    """`parallel` of an operator applied to operands of these types, whose result is of type `out`."""
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
    """How a tensor is computed: its reads of each operand, and the axes whose positions its elements depend on by
    themselves (as those of a range, or of a triangle)."""

    reads: dict[Tensor, frozenset[Read]]
    positional: frozenset[int]


class _Patterns:
    """The patterns of tensors, each computed once."""

    def __init__(self) -> None:
        self.known: dict[Tensor, _Pattern | None] = {}

    def of(self, tensor: Tensor) -> _Pattern | None:
        """A tensor's pattern; None for a stage that is no expression."""
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
    """Where a tensor reads along a dimension that another tensor, which it reads at `indices`, reads at `at`."""
    if isinstance(at, frozenset):
        return _through(indices, at, axes)
    index = indices[at]
    return axes[index] if isinstance(index, Var) and index in axes else _axes_in(variables(index), axes)


def _through(indices: Sequence[Expr], inner: frozenset[int], axes: dict[Var, int]) -> frozenset[int]:
    """The axes on which positions depend that depend on those of the axes `inner` of what is read at `indices`."""
    return _axes_in((v for at in inner for v in variables(indices[at])), axes)


def _axes_in(names: Iterator[Var] | Sequence[Var], axes: dict[Var, int]) -> frozenset[int]:
    return frozenset(axes[v] for v in names if v in axes)


def _outside_loads(e: Expr) -> Iterator[Var]:
    """The variables of an expression that do not only stand in indices of what it reads."""
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
"""A read goes along an axis of the result otherwise than at its position."""


def _along(read: Read, axis: int) -> int | None:
    """The one dimension that a read is at an axis's position of; None if it does not depend on that, MIXED if it does
    otherwise."""
    exact = [k for k, at in enumerate(read) if at == axis]
    if len(exact) > 1 or any(isinstance(at, frozenset) and axis in at for at in read):
        return MIXED
    return exact[0] if exact else None


# What expressions do not show


def _aligned(operand: TensorType | None, out: TensorType, axis: int) -> int | None:
    """The axis of an operand that broadcasts to a result, counted from the last one."""
    at = axis - (out.rank - (0 if operand is None else operand.rank))
    return None if operand is None or at < 0 or not prove_equal(operand.shape[at], out.shape[axis]) else at


def _reshape(types: Sequence[TensorType | None], attrs: Attrs, out: TensorType, axis: int) -> Links | None:
    """The dimension that is the same before and after it, with as many elements in front of it: the index is a
    quotient of the linear one."""
    (x,) = types
    assert x is not None
    before = product(out.shape[:axis])
    for at, extent in enumerate(x.shape):
        if prove_equal(extent, out.shape[axis]) and prove_equal(product(x.shape[:at]), before):
            return (at,)
    return None


def _attention(types: Sequence[TensorType | None], attrs: Attrs, out: TensorType, axis: int) -> Links | None:
    """Rows of queries, and masks that differ by row. It has loops of its own."""
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
