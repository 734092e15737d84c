"""Indices that are known when compiling, and how large the dimension that they index must be.

A gather or a scatter never leaves its tensor: an index that is outside reads another element, where PyTorch and ONNX
Runtime raise an error. So the importer checks the indices that it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.frontend.common.known import evaluated
from tilewright.ir.expr import Expr, all_of, as_expr, is_const, maximum, minimum
from tilewright.ir.graph import GraphBuilder, Node, Value
from tilewright.ops.shape import ConstantAttrs, RangeAttrs

Ends = list[tuple[Expr, Expr]]
"""The smallest and the largest element of each part of a tensor."""

_REARRANGED = {"reshape", "broadcast", "transpose", "tile", "concat", "identity"}
"""Operators whose results have the elements of all operands, and no others."""


def inside(parts: Ends, extent: Expr, *, from_end: bool) -> Expr:
    """The condition that all indices lie in a dimension of `extent`; with `from_end`, negative ones count from its
    end."""
    least = -extent if from_end else as_expr(0)
    return all_of(condition for low, high in parts for condition in (high < extent, low >= least))


def ends(value: Value, builder: GraphBuilder, arrays: Mapping[str, Any]) -> Ends | None:
    """(smallest, largest) of each part of `value`, an integer tensor, such as the operands of a concatenation. None if
    the tensor depends on more than sizes and `arrays` (weights by name)."""
    if not value.dtype.is_int or value in builder.inputs:
        return None
    if value.name in arrays:
        return _of_array(arrays[value.name])
    node = next((n for n in reversed(builder.nodes) if value in n.outputs), None)
    if node is None:
        return None
    if node.op == "constant":
        return _of_array(node.of(ConstantAttrs).value.array)
    if node.op == "range":
        return _of_range(node)
    operands = [v for v in node.inputs if v is not None]
    if node.op in _REARRANGED or (node.op == "cast" and value.dtype.bits >= operands[0].dtype.bits):
        parts = [ends(v, builder, arrays) for v in operands]
        return None if None in parts else [pair for part in parts for pair in part or ()]
    if node.op == "add" and any(is_const(v.type.size, 1) for v in operands):
        sides = [ends(v, builder, arrays) for v in operands]
        return None if None in sides else [(a + c, b + d) for a, b in sides[0] or () for c, d in sides[1] or ()]
    computed = _evaluated(value, builder, arrays)
    return None if computed is None else _of_array(computed)


def _of_array(array: Any) -> Ends:
    return [(as_expr(int(array.min())), as_expr(int(array.max())))] if array.size else []


def _of_range(node: Node) -> Ends | None:
    attrs = node.of(RangeAttrs)
    if not attrs.dtype.is_int:
        return None
    first = as_expr(attrs.start)
    last = first + as_expr(attrs.step) * (as_expr(attrs.size) - 1)
    return [(minimum(first, last), maximum(first, last))]


def _evaluated(value: Value, builder: GraphBuilder, arrays: Mapping[str, Any]) -> Any:
    """The array that operators compute for `value` from constants and `arrays` (weights by name); None if it depends on
    inputs."""
    known: dict[Value, Any] = {}
    needed, chosen, inputs = {value}, list[Node](), set(builder.inputs)
    for node in reversed(builder.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        needed.difference_update(node.outputs)
        chosen.append(node)
        for v in node.inputs:
            if v is not None and v.name in arrays:
                known[v] = arrays[v.name]
            elif v is not None:
                needed.add(v)
        if not needed or not inputs.isdisjoint(needed):
            break
    result = None if needed else evaluated(chosen[::-1], known)
    return None if result is None else result[value]
