"""Arithmetic that quantises and dequantises, as the operators `QuantizeLinear` and `DequantizeLinear` that mean it.

    cast(round(x / s) + z, u8)                ->    QuantizeLinear(x, s, z)
    cast(cast(q, i32) - z, f32) * s           ->    DequantizeLinear(q, s, z)

`z` is a constant number, or absent; `s` one number, or one a slice along one axis.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.codegen.onnx.writer import Writer
from tilewright.ir.dtype import DType, f32, i8, i16, i32, u8, u16
from tilewright.ir.expr import const, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.shape import ConstantAttrs
from tilewright.support.classes import dataclass

CODES = (u8, i8, u16, i16)


@dataclass(frozen=True, slots=True)
class Linear:
    """A chain of nodes that means one `QuantizeLinear` or `DequantizeLinear`: which of both, its operands, and
    `between`, the values inside the chain, which need no nodes of their own."""

    kind: str
    value: Value
    scale: Value
    axis: int | None
    zero: int
    codes: DType
    between: tuple[Value, ...]


def linear_nodes(graph: Graph) -> dict[Value, Linear]:
    """For each value of a graph that is the result of a chain of nodes meaning `QuantizeLinear` or `DequantizeLinear`,
    the match of that chain."""
    producers = graph.producers()
    matches = (
        (n.output, _quantise(producers, n) or _dequantise(producers, n)) for n in graph.nodes if len(n.outputs) == 1
    )
    return {value: match for value, match in matches if match is not None}


def unread(graph: Graph, matches: Mapping[Value, Linear]) -> set[Value]:
    """The values inside the chains `matches` that no node outside of them reads; they are not written."""
    outputs, between = set(graph.outputs), {v for match in matches.values() for v in match.between}
    readers = graph.consumers()

    def is_inner(v: Value) -> bool:
        return v not in outputs and all(n.outputs[0] in between or n.outputs[0] in matches for n in readers.get(v, ()))

    inner = {v for v in between if is_inner(v)}
    while outside := {v for v in inner if any(n.outputs[0] in between - inner for n in readers.get(v, ()))}:
        inner -= outside
    return inner


def write_linear(w: Writer, match: Linear) -> str:
    """Write the node `QuantizeLinear` or `DequantizeLinear` of `match`; returns the name of its result."""
    scale = w.names[match.scale]
    if match.scale.type.rank > 1 or (match.axis is None and match.scale.type.rank == 1):
        scale = w.op("Reshape", [scale, w.ints([] if match.axis is None else [-1])])
    if match.axis is None:
        zero = w.constant(np.full((), match.zero), match.codes)
    else:  # one of its own: ONNX Runtime 1.32, told to be precise on AVX2, refuses models whose weights share one
        zero = w.initializer(np.full(_count(match), match.zero, match.codes.numpy), "zero_point")
    return w.op(match.kind, [w.names[match.value], scale, zero], axis=match.axis)


def _count(match: Linear) -> int:
    return int(np.prod([int(str(d)) for d in match.scale.shape]))


def _quantise(producers: Mapping[Value, Node], node: Node) -> Linear | None:
    if node.op != "cast" or node.output.dtype not in CODES:
        return None
    between: list[Value] = []
    value = node.inputs[0]
    zero = 0.0
    step = _node(producers, value)
    if step is not None and step.op == "add":
        number = _number(producers, step.inputs[1])
        if number is None or number[0] != int(number[0]):
            return None
        zero, between = number[0], [step.output, *number[1]]
        step = _node(producers, step.inputs[0])
    if step is None or step.op != "round":
        return None
    quotient = _node(producers, step.inputs[0])
    if quotient is None or quotient.op != "div":
        return None
    between += [step.output, quotient.output]
    x, scale = quotient.inputs
    if x is None or scale is None or x.dtype is not f32 or x.shape != node.output.shape:
        return None
    axis = _axis(producers, x, scale)
    least, most = int(node.output.dtype.min), int(node.output.dtype.max)
    if axis is False or not least <= zero <= most:
        return None
    scale = _flat(producers, scale)
    return Linear("QuantizeLinear", x, scale, axis, int(zero), node.output.dtype, tuple(between))


def _dequantise(producers: Mapping[Value, Node], node: Node) -> Linear | None:
    if node.op != "mul" or node.output.dtype is not f32:
        return None
    for a, scale in (node.inputs, node.inputs[::-1]):
        cast = _node(producers, a)
        if cast is None or cast.op != "cast" or scale is None or cast.output.shape != node.output.shape:
            continue
        between, zero = [cast.output], 0.0
        step = _node(producers, cast.inputs[0])
        if step is not None and step.op == "sub":
            number = _number(producers, step.inputs[1])
            if number is None:
                continue
            zero, inner = number
            between += [step.output, *inner]
            step = _node(producers, step.inputs[0])
        if step is None or step.op != "cast" or step.output.dtype is not i32:
            continue
        between.append(step.output)
        codes = step.inputs[0]
        axis = _axis(producers, node.output, scale)
        if codes is None or codes.dtype not in CODES or axis is False:
            continue
        if int(codes.dtype.min) <= zero <= int(codes.dtype.max):
            flat = _flat(producers, scale)
            return Linear("DequantizeLinear", codes, flat, axis, int(zero), codes.dtype, tuple(between))
    return None


def _node(producers: Mapping[Value, Node], value: Value | None) -> Node | None:
    return None if value is None else producers.get(value)


def _number(producers: Mapping[Value, Node], value: Value | None) -> tuple[float, list[Value]] | None:
    """(number, values between) if `value` is a constant with equal elements, which may be cast or reshaped before it is
    read: the number, and the values on that way. None for others."""
    node, between = _node(producers, value), []
    while node is not None and node.op in ("cast", "reshape"):
        between.append(node.output)
        node = _node(producers, node.inputs[0])
    array = node.of(ConstantAttrs).value.array if node is not None and node.op == "constant" else None
    if array is None or not array.size or (array != array.flat[0]).any():
        return None
    return float(array.flat[0]), between


def _axis(producers: Mapping[Value, Node], value: Value, scale: Value) -> int | bool | None:
    """The axis of `value` along which `scale` differs: None if the scale is one number, False if ONNX cannot express
    it."""
    if scale.dtype is not f32 or scale.type.rank > value.type.rank:
        return False
    shape = (const(1),) * (value.type.rank - scale.type.rank) + scale.shape
    wide = [k for k, d in enumerate(shape) if not is_const(d, 1)]
    if len(wide) > 1 or any(shape[k] != value.shape[k] for k in wide):
        return False
    return wide[0] if wide else None


def _flat(producers: Mapping[Value, Node], scale: Value) -> Value:
    """The scale, or, if it comes from a reshape of one number or one dimension, the operand of that reshape."""
    node = _node(producers, scale)
    before = node.inputs[0] if node is not None and node.op == "reshape" else None
    return before if before is not None and before.type.rank <= 1 else scale
