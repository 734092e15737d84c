"""Recognise normalisations: means, differences, squares and quotients as which people write them become one operator.

    d = x - mean(x); y = d * rsqrt(mean(d * d) + epsilon)        ->   y = layer_norm(x)
    y = x * rsqrt(mean(x * x) + epsilon)                         ->   y = rms_norm(x)
    y = norm(x) * scale + bias                                   ->   y = norm(x, scale, bias)

The variance may be mean(x * x) - mean(x) ** 2 as well, which is less exact than what it becomes, the root's reciprocal
a quotient, and the scale may stand beside the root. Reductions are over the last dimensions, which are known. Rows
whose deviation others read, as gradients do, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from math import prod
from typing import Any

from tilewright import ops
from tilewright.ir.expr import Expr, as_int, const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.norm import NormAttrs
from tilewright.ops.reduce import ReduceAttrs
from tilewright.ops.shape import ConstantAttrs

CLOSE = 1e-6
"""Relative difference of a constant that comes from rounding it."""
NORMS = ("layer_norm", "rms_norm")

Norm = tuple[str, tuple[Value | None, ...], int, float]
"""Operator, operands, axis, epsilon."""


def keep_reduced(graph: Graph) -> Graph:
    """Reductions whose dimensions a reshape puts back keep them: rows then stay rows for all that follows."""
    users = graph.consumers()
    made = {v: n for n in graph.nodes for v in n.outputs}
    outputs = set(graph.outputs)
    replaced: dict[Value, Node] = {}
    for node in graph.nodes:
        source = node.inputs[0] if node.op == "reshape" else None
        reduction = made.get(source) if source is not None else None
        if reduction is None or not isinstance(reduction.attrs, ReduceAttrs) or reduction.attrs.keepdims:
            continue
        assert source is not None
        kept = _kept(reduction)
        if source in outputs or any(u.op != "reshape" or u.output.shape != kept for u in users[source]):
            continue
        replaced[node.output] = replace(
            reduction, attrs=replace(reduction.attrs, keepdims=True), outputs=(node.output,)
        )
    if not replaced:
        return graph
    return replace(graph, nodes=tuple(replaced.get(n.outputs[0], n) for n in graph.nodes))


def _kept(reduction: Node) -> tuple[Expr, ...]:
    """The shape with the reduced dimensions kept."""
    (x,) = (v for v in reduction.inputs if v is not None)
    axes = {a % x.type.rank for a in reduction.of(ReduceAttrs).axes}
    return tuple(const(1) if k in axes else d for k, d in enumerate(x.shape))


def recognise_norms(graph: Graph) -> Graph:
    """The graph with normalisations as one operator each; nodes that nothing needs any more stay."""
    for rule in (_Finder.core, _Finder.scaled, _Finder.shifted):
        finder = _Finder(graph)
        replaced = {n.output: result for n in graph.nodes if (result := finder.found(rule, n)) is not None}
        graph = replace(graph, nodes=tuple(replaced.get(n.outputs[0], n) for n in graph.nodes)) if replaced else graph
    return graph


class _Finder:
    """Looks for normalisations in a graph."""

    def __init__(self, graph: Graph) -> None:
        self.made = {v: n for n in graph.nodes for v in n.outputs}
        self.users = graph.consumers()
        self.outputs = set(graph.outputs)

    def found(self, rule: Any, node: Node) -> Node | None:
        """The node in place of one, by a rule that gives operator, operands, axis and epsilon."""
        if len(node.outputs) != 1 or not node.output.dtype.is_float or node.output.dtype.bits < 32:
            return None
        norm = rule(self, node)
        if norm is None:
            return None
        op, inputs, axis, epsilon = norm
        builder = GraphBuilder("norm")
        y = ops.emit1(builder, op, *inputs, axis=axis, epsilon=epsilon)
        return replace(builder.nodes[-1], outputs=node.outputs) if y.type == node.output.type else None

    # --- what is normalised -------------------------------------------------------------------------------------------

    def core(self, node: Node) -> Norm | None:
        """A norm without scale and shift; with its scale where that stands beside the root."""
        if node.op not in ("mul", "div"):
            return None
        for x, factor in permutations(node.inputs) if node.op == "mul" else [node.inputs]:
            assert x is not None and factor is not None
            for root, scale in self.scales(factor) if node.op == "mul" else [(factor, None)]:
                if len(self.users[root]) > 1 or root in self.outputs:
                    continue  # the deviation would be computed for the others once more
                square = self.square_root(root, inverse=node.op == "mul")
                norm = None if square is None else self.of_square(x, *square)
                if norm is None:
                    continue
                op, inputs, axis, epsilon = norm
                if scale is None:
                    return norm
                if self.fits(scale, x, axis):
                    return op, (*inputs, scale), axis, epsilon
        return None

    def scales(self, factor: Value) -> Iterator[tuple[Value, Value | None]]:
        """A factor as a root and a scale, in each way."""
        yield factor, None
        node = self.made.get(factor)
        if node is not None and node.op == "mul":
            a, b = node.inputs
            assert a is not None and b is not None
            yield from ((a, b), (b, a))

    def square_root(self, root: Value, inverse: bool) -> tuple[Value, float] | None:
        """The mean square and the epsilon of whose sum something is the root, or the root's reciprocal."""
        node = self.made.get(root)
        if node is not None and inverse and node.op == "div" and self.number(node.inputs[0]) == 1.0:
            node = self.made.get(node.inputs[1]) if node.inputs[1] is not None else None
            inverse = False
        elif node is not None and inverse and node.op == "reciprocal":
            node = self.made.get(node.inputs[0]) if node.inputs[0] is not None else None
            inverse = False
        if node is None or node.op != ("rsqrt" if inverse else "sqrt") or node.inputs[0] is None:
            return None
        total = self.made.get(node.inputs[0])
        if total is None or total.op != "add":
            return None
        for square, epsilon in permutations(total.inputs):
            number = self.number(epsilon)
            if number is not None and square is not None and 0 <= number < 1:
                return square, number
        return None

    def of_square(self, x: Value, square: Value, epsilon: float) -> Norm | None:
        """The norm of what `x` is, if `square` is its mean square, or its variance."""
        centred = self.centred(x)
        fast = self.fast_variance(square)
        if centred is not None and fast is not None and fast == centred:
            return "layer_norm", centred[:1], centred[1], epsilon
        mean = self.mean(square)
        if mean is None or not self.is_square(mean[0], x):
            return None
        if centred is not None and centred[1] == mean[1]:
            return "layer_norm", centred[:1], mean[1], epsilon
        return "rms_norm", (x,), mean[1], epsilon

    def centred(self, x: Value) -> tuple[Value, int] | None:
        """What `x` is the difference of from its own mean, and that mean's axis."""
        node = self.made.get(x)
        if node is None or node.op != "sub" or None in node.inputs:
            return None
        source, mean = node.inputs
        assert source is not None and mean is not None
        result = self.mean(mean)
        return result if result is not None and result[0] == source else None

    def fast_variance(self, square: Value) -> tuple[Value, int] | None:
        """The value x of max(0, mean(x * x) - mean(x) ** 2), and the axis."""
        node = self.made.get(square)
        if node is not None and node.op == "max":
            rest = [v for v in node.inputs if self.number(v) != 0.0]
            node = self.made.get(rest[0]) if len(rest) == 1 and rest[0] is not None else None
        if node is None or node.op != "sub":
            return None
        squares, squared = node.inputs
        product = self.made.get(squared) if squared is not None else None
        if squares is None or product is None or product.op != "mul" or product.inputs[0] != product.inputs[1]:
            return None
        assert product.inputs[0] is not None
        first, second = self.mean(squares), self.mean(product.inputs[0])
        if first is None or second is None or first[1] != second[1] or not self.is_square(first[0], second[0]):
            return None
        return second

    def mean(self, value: Value) -> tuple[Value, int] | None:
        """What a value, its dimensions kept, is the mean of over all dimensions from an axis on."""
        shape, scale = value.shape, 1.0
        node = self.made.get(value)
        while node is not None and node.op in ("reshape", "div", "mul"):
            source, *factor = node.inputs
            if node.op == "mul" and self.number(source) is not None:
                (source,), factor = factor, [source]
            number = self.number(factor[0]) if factor else 1.0
            if not number:
                return None
            scale *= 1 / number if node.op == "div" else number
            node = self.made.get(source) if source is not None else None
        if node is None or node.op not in ("reduce_sum", "reduce_mean") or node.inputs[0] is None:
            return None
        x, axes = node.inputs[0], sorted(a % node.inputs[0].type.rank for a in node.of(ReduceAttrs).axes)
        sizes = [as_int(x.shape[a]) for a in axes]
        if not axes or axes != list(range(axes[0], x.type.rank)) or None in sizes or shape != _kept(node):
            return None
        count = prod(n or 0 for n in sizes) if node.op == "reduce_sum" else 1
        return (x, axes[0]) if abs(scale * count - 1) < CLOSE else None

    def is_square(self, square: Value, x: Value) -> bool:
        node = self.made.get(square)
        if node is None:
            return False
        if node.op == "mul":
            return node.inputs == (x, x)
        return node.op == "pow" and node.inputs[0] == x and self.number(node.inputs[1]) == 2.0

    def number(self, value: Value | None) -> float | None:
        """The one number that a value has everywhere."""
        node = None if value is None else self.made.get(value)
        while node is not None and node.op in ("reshape", "broadcast") and node.inputs[0] is not None:
            node = self.made.get(node.inputs[0])
        if node is None or node.op != "constant":
            return None
        array = node.of(ConstantAttrs).value.array
        if not array.size or (array != array.reshape(-1)[0]).any():
            return None
        return float(array.reshape(-1)[0])

    # --- scale and shift ----------------------------------------------------------------------------------------------

    def scaled(self, node: Node) -> Norm | None:
        return self.joined(node, "mul", 1)

    def shifted(self, node: Node) -> Norm | None:
        return self.joined(node, "add", 2)

    def joined(self, node: Node, op: str, place: int) -> Norm | None:
        """A norm whose only user this is, with another operand."""
        if node.op != op:
            return None
        for y, vector in permutations(node.inputs):
            norm = None if y is None else self.made.get(y)
            if norm is None or norm.op not in NORMS or len(self.users[norm.output]) > 1 or norm.output in self.outputs:
                continue
            attrs, given = norm.of(NormAttrs), list(norm.inputs)
            x = given[0]
            assert x is not None
            if len(given) <= place and vector is not None and self.fits(vector, x, attrs.axis):
                inputs = (*given, *[None] * (place - len(given)), vector)
                return norm.op, inputs, attrs.axis, attrs.epsilon
        return None

    def fits(self, vector: Value, x: Value, axis: int) -> bool:
        """Whether a value differs along the normalised dimensions alone."""
        rank, extra = vector.type.rank, vector.type.rank - x.type.rank
        if extra > 0 or vector.dtype is not x.dtype:
            return False
        first = axis % x.type.rank + extra
        outer = all(is_const(d, 1) for d in vector.shape[: max(first, 0)])
        return rank > 0 and outer and vector.shape[max(first, 0) :] == x.shape[max(first, 0) - extra :]
