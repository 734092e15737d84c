"""Exact products of narrow integers (MatMulInteger, QLinearMatMul, ConvInteger, QLinearConv) by dot instructions.

The importer states them in i32: `matmul(cast(x) - zero, cast(w) - zero)`. Where both factors provably fit 16 bits they
are multiplied as such, in pairs; convolutions by way of their windows as rows.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.dtype import i16, i32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.shape import ConstantAttrs
from tilewright.plans.matmul.dots import panel_multiple
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.transform.graph.fixed import depends_on_weights
from tilewright.transform.layout.assigner import Assigner

MOST = (1 << 15) - 1
"""The largest magnitude of a factor: dot instructions take 16 bits with a sign."""


def magnitude(a: Assigner, value: Value, depth: int = 8) -> int | None:
    """The greatest magnitude that an i32 value can have, as far as its producers tell; None if they do not."""
    node = a.producer(value)
    if node is None or not depth:
        return None
    given = [v for v in node.inputs if v is not None]
    match node.op:
        case "cast" if given[0].dtype.is_int and given[0].dtype.bits <= 16:
            return max(int(given[0].dtype.max), -int(given[0].dtype.min))
        case "sub" | "add":
            parts = [magnitude(a, v, depth - 1) for v in given]
            return None if None in parts else sum(p or 0 for p in parts)
        case "reshape" | "transpose" | "broadcast" | "identity" | "slice":
            return magnitude(a, given[0], depth - 1)
        case "constant":
            array = node.of(ConstantAttrs).value.array
            return int(abs(array.astype("int64")).max(initial=0))
    return None


def fits(a: Assigner, node: Node) -> bool:
    """True for a product of i32 whose factors fit 16 bits, the second one known beforehand, with an instruction."""
    x, w = node.inputs[:2]
    if x is None or w is None or node.output.dtype is not i32 or w not in a.fixed:
        return False
    if find_dot(i16, i16, a.target) is None or any(as_int(d) in (None, 0) for d in w.shape):
        return False
    sizes = magnitude(a, x), magnitude(a, w)
    return all(size is not None and size <= MOST for size in sizes)


def integer_matmul(a: Assigner, node: Node) -> bool:
    """A matrix product in pairs of i16."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    depth = as_int(x.shape[-1])
    if w.type.rank != 2 or node.of(MatmulAttrs).transpose_a or depth is None or depth % 2 or not fits(a, node):
        return False
    rows = _emit(a, "cast", a.as_plain(x), dtype=i16)
    transpose = node.of(MatmulAttrs).transpose_b
    a.plain[node.output] = _product(a, rows, a.as_plain(w), transpose, as_int(node.output.shape[-1]) or 1)
    return True


def integer_conv(a: Assigner, node: Node) -> bool:
    """A convolution as a product of its windows."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs = node.of(ConvAttrs)
    if attrs.groups != 1 or not fits(a, node):
        return False
    filters, *window = (as_int(d) or 0 for d in w.shape)
    elements = prod(window)
    depth = elements + elements % 2
    narrow = _emit(a, "cast", a.as_plain(x), dtype=i16)
    spatial = {"strides": attrs.strides, "dilations": attrs.dilations, "pads": attrs.pads}
    rows = _emit(a, "lowered.patches", narrow, kernel=tuple(window[1:]), depth=depth, **spatial)
    flat = _emit(a, "reshape", a.as_plain(w), shape=(const(filters), const(elements)))
    if depth > elements:
        flat = _emit(a, "pad", flat, before=(0, 0), after=(0, 1), mode="constant", value=0)
    total = _product(a, rows, flat, True, filters)
    moved = _emit(a, "transpose", total, perm=(0, 2, 1))
    a.plain[node.output] = _emit(a, "reshape", moved, shape=node.output.shape)
    return True


def _product(a: Assigner, rows: Value, w: Value, transpose: bool, columns: int) -> Value:
    dot = find_dot(i16, i16, a.target)
    assert dot is not None
    narrow = _emit(a, "cast", w, dtype=i16)
    count = panel_multiple(columns, dot.lanes)
    attrs = {"width": dot.lanes, "group": dot.group, "panels": count, "transpose": transpose}
    return _emit(a, "lowered.matmul_dot", rows, _emit(a, "lowered.pack_dot", narrow, **attrs), columns=columns)


def _emit(a: Assigner, op: str, *inputs: Value, **attrs: object) -> Value:
    (value,) = a.emit(op, inputs, attrs, op)
    if inputs and depends_on_weights(inputs, a.fixed):
        a.fixed.add(value)
    return value
