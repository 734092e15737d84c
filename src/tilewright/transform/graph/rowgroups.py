"""The nodes that make one kernel over common rows: reductions, what feeds them, what they scale.

    s = add(x, r); m = mean(s); d = sub(s, m); v = mean(mul(d, d)); y = mul(d, rsqrt(v))   one kernel: s and y

All reductions of a row group go over the same dimensions of the same shape; everything else is pointwise, on whole rows
or on one value a row. A value that others need too is one more output, which saves reading it again. A group is convex:
no path leaves it and comes back, other groups counted as one node each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.arith import prove_equal
from tilewright.ir.expr import Expr, is_const
from tilewright.ir.graph import Node, Value
from tilewright.ops.norm import NormAttrs, SoftmaxAttrs
from tilewright.ops.reduce import ReduceAttrs
from tilewright.ops.shape import TransposeAttrs
from tilewright.support.classes import dataclass

MAX_NODES = 48
"""The largest number of nodes in a row group."""
MAX_INPUTS = 24
"""The largest number of inputs of a row group; its kernel holds an address for each."""
MAX_OUTPUTS = 4
"""The largest number of outputs of a row group."""

_REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")
_OVER_AXIS = ("softmax", "log_softmax")
NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True, slots=True)
class RowShape:
    """The rows over which a reduction, softmax or norm runs: the `shape` of the operand, and the dimensions `axes` that
    are reduced."""

    shape: tuple[Expr, ...]
    axes: tuple[int, ...]
    keepdims: bool
    """Whether the reduced dimensions stay in the result, with extent 1."""


def row_shape(node: Node) -> RowShape | None:
    """The shape that a reduction, softmax or norm reduces; None for other nodes."""
    x = node.inputs[0] if node.inputs else None
    if x is None or len(node.outputs) != 1:
        return None
    rank = x.type.rank
    if node.op in _REDUCTIONS:
        attrs = node.of(ReduceAttrs)
        return RowShape(x.shape, tuple(sorted(a % rank for a in attrs.axes)), attrs.keepdims)
    if node.op in _OVER_AXIS:
        return RowShape(x.shape, (node.of(SoftmaxAttrs).axis % rank,), True)
    if node.op in NORMS:
        return RowShape(x.shape, tuple(range(node.of(NormAttrs).axis % rank, rank)), True)
    return None


def equal_shapes(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    return len(a) == len(b) and all(x is y or prove_equal(x, y) for x, y in zip(a, b, strict=True))


class RowGrower:
    """Grows groups of `nodes` that work on the same rows, each around a reduction: `grow` adds neighbours that may
    join. `in_use` says which nodes belong to groups of several nodes already; `whole` gives all nodes of a node's
    group; `spans` are the first and last nodes of groups of several nodes, in order."""

    def __init__(
        self,
        nodes: Sequence[Node],
        users: Mapping[Value, Sequence[int]],
        makers: Mapping[Value, int],
        outputs: set[Value],
        in_use: Callable[[int], bool],
        whole: Callable[[int], Sequence[int]],
        spans: Sequence[tuple[int, int]],
    ) -> None:
        self.nodes = nodes
        self.users = users
        self.makers = makers
        self.outputs = outputs
        self.in_use = in_use
        self.whole = whole
        self.spans = spans

    def grow(self, start: int) -> list[int]:
        """The nodes of the group around reduction `start`, in order; only itself if nothing joins."""
        rows = row_shape(self.nodes[start])
        if rows is None:
            return [start]
        members = {start}
        refused: set[int] = set()
        is_there = True
        while is_there:
            is_there = False
            for i in self.neighbours(members):
                if i in refused:
                    continue
                if self.may_join(rows, members, i):
                    members.add(i)
                    is_there = True
                    refused.clear()
                    break
                refused.add(i)
        return sorted(members)

    def neighbours(self, members: set[int]) -> list[int]:
        """The nodes that members read, then those that read members."""
        before = {self.makers[v] for i in members for v in self.nodes[i].inputs if v is not None and v in self.makers}
        after = {u for i in members for v in self.nodes[i].outputs for u in self.users.get(v, ())}
        return [*sorted(before - members, reverse=True), *sorted(after - members - before)]

    def may_join(self, rows: RowShape, members: set[int], i: int) -> bool:
        node = self.nodes[i]
        op = ops.get(node.op)
        if self.in_use(i) or ops.is_alias(node) or op.loops is not None or len(node.outputs) != 1:
            return False
        if len(members) >= MAX_NODES or not self.fits(rows, node, members, i):
            return False
        joined = members | {i}
        return self.within_limits(joined) and self.is_convex(joined)

    def fits(self, rows: RowShape, node: Node, members: set[int], i: int) -> bool:
        kind = ops.get(node.op).kind
        if kind == "reduction":
            own = row_shape(node)
            return own is not None and rows.keepdims and own.axes == rows.axes and equal_shapes(own.shape, rows.shape)
        if kind == "injective":
            inside = all(u in members for u in self.users.get(node.output, ()))
            moves = node.op == "transpose" and node.of(TransposeAttrs).perm[-1] != node.output.type.rank - 1
            simple = node.op in ("transpose", "slice", "broadcast") and not moves
            return simple and inside and node.output not in self.outputs and equal_shapes(node.output.shape, rows.shape)
        if kind != "pointwise":
            return False
        shape = node.output.shape
        if equal_shapes(shape, rows.shape):
            return True
        return self.is_row_value(rows, shape)

    @staticmethod
    def is_row_value(rows: RowShape, shape: Sequence[Expr]) -> bool:
        """Whether a value of this shape has one element per row: the reduced dimensions are absent, or have extent
        1."""
        if rows.keepdims:
            retained = len(shape) == len(rows.shape)
            return retained and all(
                is_const(d, 1) if k in rows.axes else d is full or prove_equal(d, full)
                for k, (d, full) in enumerate(zip(shape, rows.shape, strict=True))
            )
        return equal_shapes(shape, [d for k, d in enumerate(rows.shape) if k not in rows.axes])

    def within_limits(self, members: set[int]) -> bool:
        produced = {v for i in members for v in self.nodes[i].outputs}
        read = {v for i in members for v in self.nodes[i].inputs if v is not None} - produced
        return len(read) <= MAX_INPUTS and len(self.leaving(members)) <= MAX_OUTPUTS

    def leaving(self, members: set[int]) -> list[Value]:
        return [
            v
            for i in sorted(members)
            for v in self.nodes[i].outputs
            if v in self.outputs or any(u not in members for u in self.users.get(v, ()))
        ]

    def is_convex(self, members: set[int]) -> bool:
        """Whether no path leads from a member through other nodes back to a member."""
        last = self.horizon(max(members))
        stack = [u for v in self.leaving(members) for u in self.users.get(v, ()) if u not in members]
        seen = set(stack)
        while stack:
            for i in self.whole(stack.pop()):
                for v in self.nodes[i].outputs:
                    for u in self.users.get(v, ()):
                        if u in members:
                            return False
                        if u not in seen and u <= last:
                            seen.add(u)
                            stack.append(u)
        return True

    def horizon(self, last: int) -> int:
        """The last node from which a path may lead to node `last` or an earlier one. Paths go to later nodes, except
        that one may enter a group at its last node and leave it from its first."""
        for first, end in self.spans:
            if first > last:
                break
            last = max(last, end)
        return last
