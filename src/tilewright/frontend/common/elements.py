"""The elements of a small vector of integers, traced back to what is known of them.

    concat(range(start = n, step = 0, size = 1), cast(reshape(%h)))    ->    n, %h as a scalar

Sizes that a model computes are often known in part: the batch is that of an input, and data decides the height.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, as_expr, as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.dims import dim
from tilewright.ops.shape import ConstantAttrs, RangeAttrs, SliceAttrs

DEPTH = 64
"""The longest chain of operators that is followed back from a vector."""

Makers = Mapping[Value, Node]


def elements(n: Emitter, vector: Value) -> list[Any]:
    """The elements of a vector of integers: numbers and expressions where they are known, else i64 scalars of the
    graph."""
    makers = {v: node for node in n.builder.nodes for v in node.outputs}
    count = as_int(vector.type.size)
    assert count is not None
    return [_element(n, makers, vector, k) for k in range(count)]


def _element(n: Emitter, makers: Makers, vector: Value, at: int) -> Any:
    for _ in range(DEPTH):
        node = makers.get(vector)
        result = None if node is None else _step(node, at)
        if result is None:
            break
        if not isinstance(result, tuple):
            return result
        vector, at = result
    flat = n.reshape(vector, (vector.type.size,))
    return n.reshape(n.cast(n.slice(flat, 0, at, 1), i64), ())


def _step(node: Node, at: int) -> tuple[Value, int] | int | Expr | None:
    """Element `at` of the node's output: a number or expression, or (operand, index) where it is an operand's element;
    None where neither is known."""
    first = node.inputs[0] if node.inputs else None
    match node.op:
        case "constant":
            return int(node.of(ConstantAttrs).value.array.reshape(-1)[at])
        case "range":
            attrs = node.of(RangeAttrs)
            value = dim(as_expr(attrs.start) + as_expr(attrs.step) * at)
            number = as_int(value)
            return value if number is None else number
        case "identity" | "reshape" if first is not None:
            return first, at
        case "cast" if first is not None and first.dtype.is_int:
            return first, at
        case "slice" if first is not None and first.type.rank == 1:
            begin, step = as_int(node.of(SliceAttrs).begin[0]), node.of(SliceAttrs).step[0]
            return None if begin is None else (first, begin + step * at)
        case "concat" if first is not None and first.type.rank == 1:
            return _part(node, at)
    return None


def _part(node: Node, at: int) -> tuple[Value, int] | None:
    """(the operand of the concatenation `node` that holds element `at`, its index there); None if that is not known."""
    for part in node.inputs:
        size = None if part is None else as_int(part.type.size)
        if part is None or size is None:
            return None
        if at < size:
            return part, at
        at -= size
    return None


__all__ = ["elements"]
