"""Loops in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir.expr import as_int
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ops.control import NUMBER
from tilewright.ops.dims import dims
from tilewright.ops.gradients.registry import Backward
from tilewright.ops.registry import emit1
from tilewright.support.classes import dataclass

Body = Callable[["Steps", list[Value], list[Value]], tuple[list[Value], list[Value]]]
"""A function from the carried values and the sequences' elements to the next carried values and the collected
values."""


@dataclass(slots=True)
class Steps:
    """Emits operators in a loop's body; `weights`: the recurrent weights, which all steps read."""

    builder: GraphBuilder
    weights: Value | None = None

    def emit(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return emit1(self.builder, op, *inputs, **attrs)

    def mul(self, a: Value, b: Value) -> Value:
        return self.emit("mul", a, b)

    def add(self, a: Value, b: Value) -> Value:
        return self.emit("add", a, b)

    def sum(self, a: Value, b: Value | None) -> Value:
        """a + b; just `a` if `b` is None."""
        return a if b is None else self.add(a, b)

    def split(self, x: Value) -> list[Value]:
        """The parts [B, H] of a value [n, B, H]."""
        count, *rest = x.shape
        size, step = dims((1, *rest)), (1,) * x.type.rank
        places = [dims((k, *[0] * len(rest))) for k in range(as_int(count) or 0)]
        parts = [self.emit("slice", x, begin=at, size=size, step=step) for at in places]
        return [self.emit("reshape", part, shape=dims(rest)) for part in parts]

    def back(self, gates: Value) -> Value:
        """The gradient of the state [B, H]: the product of the gates' gradients [B, G H] and the transposed recurrent
        weights."""
        assert self.weights is not None
        return self.emit("matmul", gates, self.weights, transpose_a=False, transpose_b=True)


def loop(
    b: Backward,
    carried: list[Value],
    sequences: list[Value],
    body: Body,
    weights: Value | None = None,
    backward: bool = False,
) -> list[Value]:
    """Emit a loop over the first dimension of the `sequences` (`backward`: from the last element), whose steps `body`
    emits; all steps read `weights`. Returns the last carried values, which `carried` initialises, and the collected
    ones."""
    inner = GraphBuilder("step")
    inner.input("number", NUMBER)
    held = [inner.input(f"carried{k}", v.type) for k, v in enumerate(carried)]
    parts = [inner.input(f"part{k}", TensorType(v.dtype, v.shape[1:])) for k, v in enumerate(sequences)]
    steps = Steps(inner, None if weights is None else inner.param("weights", weights.type))
    on, collected = body(steps, held, parts)
    captured = [] if weights is None else [weights]
    result = b.emit_all(
        "loop",
        None,
        None,
        *carried,
        *sequences,
        *captured,
        body=inner.finish((*on, *collected)),
        carried=len(carried),
        scanned=len(sequences),
        backward=backward,
    )
    return list(result)
