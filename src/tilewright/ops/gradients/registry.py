"""The table of gradient rules: for each operator, a function that emits its inputs' gradients from its outputs'
gradients.

    @gradient("softmax")
    def softmax(b: Backward) -> Sequence[Value | None]: ...

A rule puts operators of the source dialect into the graph, so that gradients are fused, scheduled and differentiated
like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Expr, is_const
from tilewright.ir.graph import GraphBuilder, Node, Value
from tilewright.ops.dims import dims, same_shape
from tilewright.ops.registry import emit, emit1
from tilewright.support.classes import dataclass

A = TypeVar("A", bound=Attrs)


@dataclass(slots=True)
class Backward:
    """A node that is being differentiated, as its gradient rule sees it.

    Args:
        builder: the graph that gradients are put into.
        node: the node, with the forward graph's values.
        output_gradients: the gradients of its outputs; None for an output without one.
    """

    builder: GraphBuilder
    node: Node
    output_gradients: tuple[Value | None, ...]

    @property
    def g(self) -> Value:
        """The gradient of the first output."""
        assert self.output_gradients[0] is not None
        return self.output_gradients[0]

    @property
    def y(self) -> Value:
        """The first output."""
        return self.node.outputs[0]

    def x(self, k: int = 0) -> Value:
        """Input `k`, which must be present."""
        value = self.node.inputs[k]
        assert value is not None
        return value

    def has(self, k: int) -> bool:
        return k < len(self.node.inputs) and self.node.inputs[k] is not None

    def of(self, kind: type[A]) -> A:
        return self.node.of(kind)

    def emit(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        return emit1(self.builder, op, *inputs, name=f"d.{self.y.name}", **attrs)

    def emit_all(self, op: str, *inputs: Value | None, **attrs: Any) -> tuple[Value, ...]:
        return emit(self.builder, op, *inputs, names=[f"d.{self.y.name}"] * 8, **attrs)

    def constant(self, array: Any) -> Value:
        return self.emit("constant", value=np.asarray(array))

    def like(self, number: float, value: Value) -> Value:
        """A scalar constant of a value's type."""
        return self.constant(np.asarray(number, value.dtype.numpy))

    def zeros(self, shape: Sequence[Expr], like: Value) -> Value:
        return self.emit("broadcast", self.like(0, like), shape=dims(shape))

    def sub(self, a: Value, b: Value) -> Value:
        return self.emit("sub", a, b)

    def add(self, a: Value, b: Value) -> Value:
        return self.emit("add", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.emit("mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.emit("div", a, b)

    def sum(self, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        return self.emit("reduce_sum", x, axes=tuple(axes), keepdims=keepdims) if axes else x

    def reshape(self, x: Value, shape: Sequence[Expr]) -> Value:
        return x if same_shape(x.shape, shape) else self.emit("reshape", x, shape=dims(shape))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return x if list(perm) == list(range(len(perm))) else self.emit("transpose", x, perm=tuple(perm))

    def broadcast(self, x: Value, shape: Sequence[Expr]) -> Value:
        return x if same_shape(x.shape, shape) else self.emit("broadcast", x, shape=dims(shape))

    @property
    def place(self) -> int:
        """The position of the node among the builder's nodes. A rule may have replaced the forward node by one with
        more outputs."""
        return next(k for k, n in enumerate(self.builder.nodes) if n.outputs[:1] == self.node.outputs[:1])

    def reduced_to(self, g: Value, shape: Sequence[Expr]) -> Value:
        """The gradient of a value of `shape` that was broadcast to the shape of `g`: `g` summed over the broadcast
        dimensions."""
        lead = g.type.rank - len(shape)
        axes = [*range(lead)]
        axes += [lead + k for k, d in enumerate(shape) if is_const(d, 1) and not is_const(g.shape[lead + k], 1)]
        return self.reshape(self.sum(g, axes), shape)


Rule = Callable[[Backward], Sequence[Value | None]]
"""A function from a node to its inputs' gradients in order, None for an input without one; trailing ones may be
omitted."""

RULES: dict[str, Rule] = {}
NONE: frozenset[str] = frozenset(
    "argmax argmin constant range eye uniform one_hot eq ne lt le gt ge and or not xor isnan isinf detect_inf floor "
    "ceil trunc round sign bitand bitor bitxor bitnot shl shr stop_gradient".split()
)
"""Operators through which no gradient flows: their derivative is zero, their results are integers, or they stop it."""


def gradient(*names: str) -> Callable[[Rule], Rule]:
    """Decorator that registers a function as the gradient rule of these operators."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = rule
        return rule

    return register


def find(op: str) -> Rule | None:
    """The gradient rule of an operator: its own, the derivative of its scalar expression, or that of its tensor
    expression. None if it has no gradient."""
    import tilewright.ops.gradients.families  # noqa: F401  imports every file of rules
    from tilewright.ops.gradients.mechanical import has_stages, mechanical
    from tilewright.ops.gradients.pointwise import by_derivative
    from tilewright.ops.pointwise import BODIES

    rule = RULES.get(op) or (by_derivative if op in BODIES else None)
    return mechanical if rule is None and has_stages(op) else rule
