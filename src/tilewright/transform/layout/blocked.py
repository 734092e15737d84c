"""Layout rules of operators that work directly on blocked channels: pointwise, pooling, resizing, concatenation,
slices, global means."""

from __future__ import annotations

from dataclasses import replace

from tilewright import ops
from tilewright.ir.expr import as_int, const, is_const
from tilewright.ir.graph import Node, Value
from tilewright.ops.index import AxisAttrs
from tilewright.ops.pool import PoolAttrs
from tilewright.ops.pool_gradient import MaxPoolSpreadAttrs
from tilewright.ops.reduce import ReduceAttrs
from tilewright.ops.resize import ResampleAttrs, ResizeAttrs
from tilewright.ops.shape import ConcatAttrs, SliceAttrs
from tilewright.transform.layout.assigner import Assigner


def pointwise(a: Assigner, node: Node) -> bool:
    """The rule of pointwise operators: the result is blocked if a full-size operand is and the others can be. Operands
    of one element are never blocked. Returns whether the node was rewritten."""
    rank = node.output.type.rank
    if len(node.outputs) != 1 or rank not in (4, 5) or as_int(node.output.shape[1]) is None:
        return False
    if all(is_const(d, 1) for d in node.output.shape):
        return False
    present = [v for v in node.inputs if v is not None]
    if not any(a.is_blocked(v) for v in present):
        return False
    forms: dict[Value, Value] = {}
    for v in present:
        form = follow(a, v, rank)
        if form is None:
            return False
        forms[v] = form
    inputs = tuple(None if v is None else forms[v] for v in node.inputs)
    attrs = node.attrs
    types = ops.infer(node.op, [None if v is None else v.type for v in inputs], attrs)
    shape = types[0].shape
    block = a.block_of(node.output) if as_int(node.output.shape[1]) != 1 else 1
    if not is_const(shape[-1], block):
        return False
    (a.blocked[node.output],) = a.builder.node(node.op, inputs, types, attrs, (node.output.name,))
    return True


def follow(a: Assigner, value: Value, rank: int) -> Value | None:
    """The value in the new graph that stands for `value`, an operand that broadcasts against operands of `rank`
    dimensions with blocked channels; None if it cannot be written so that it does."""
    if value.type.rank == 0 or all(is_const(d, 1) for d in value.shape):
        return a.as_row_major(value)
    if value.type.rank > rank or value.type.rank < rank - 1:
        return None
    if a.target.gpu is not None and not a.is_blocked(value) and (row := channels_alone(a, value, rank)) is not None:
        return row
    if value.type.rank == rank - 1:
        shape = (const(1), *value.shape)
        if as_int(shape[1]) is None:
            return None
        lifted = a.emit("reshape", (a.as_row_major(value),), {"shape": shape}, f"{value.name}_lifted")[0]
        if value in a.fixed:
            a.fixed.add(lifted)
        return a.emit("lowered.block_channels", (lifted,), {"block": a.block_of(lifted)}, f"{value.name}_blocked")[0]
    if as_int(value.shape[1]) is None:
        return None
    return a.as_blocked(value)


def channels_alone(a: Assigner, value: Value, rank: int) -> Value | None:
    """`value`, an operand of one element per channel of a tensor of `rank` dimensions, reshaped to [channels], if one
    block has all channels; None for others."""
    channels = as_int(value.shape[1 - rank])
    if channels is None or channels != as_int(value.type.size):
        return None
    (row,) = a.emit("reshape", (a.as_row_major(value),), {"shape": (channels,)}, f"{value.name}_row")
    a.follow(value, row)
    return row


def concat(a: Assigner, node: Node) -> bool:
    """The rule of concatenation: blocked values are joined along channels if every part fills its blocks. Returns
    whether the node was rewritten."""
    present = [v for v in node.inputs if v is not None]
    if node.of(ConcatAttrs).axis != 1 or node.output.type.rank != 4 or not any(a.is_blocked(v) for v in present):
        return False
    counts = [as_int(v.shape[1]) for v in present]
    if any(c is None or c % a.block_of(v) for c, v in zip(counts, present, strict=True)):
        return False
    inputs = tuple(a.as_blocked(v) for v in present)
    axis = 1 if a.target.gpu is None else 4
    (a.blocked[node.output],) = a.emit("concat", inputs, {"axis": axis}, node.output.name)
    return True


def slices(a: Assigner, node: Node) -> bool:
    """The rule of slices of blocked values: channels from the begin of a block, in whole blocks or to the end; any part
    of the map. Returns whether the node was rewritten."""
    x = node.inputs[0]
    assert x is not None
    if x.type.rank != 4 or not a.is_blocked(x):
        return False
    part = node.of(SliceAttrs)
    (n, start, *begin), (images, length, *size), (every, step, *steps) = part.begin, part.size, part.step
    channels, first, count = as_int(x.shape[1]), as_int(start), as_int(length)
    if channels is None or first is None or count is None or step != 1 or channels == 1 or count < 2:
        return False
    if a.target.gpu is not None:
        outer, inner = (0, 1), (first, count)
    elif first % a.block or (count % a.block and first + count != channels):
        return False
    else:
        outer, inner = (first // a.block, -(-count // a.block)), (0, a.block)
    attrs = {
        "begin": (n, outer[0], *begin, inner[0]),
        "size": (images, outer[1], *size, inner[1]),
        "step": (every, 1, *steps, 1),
    }
    (a.blocked[node.output],) = a.emit("slice", (a.as_blocked(x),), attrs, node.output.name)
    return True


def pool(a: Assigner, node: Node) -> bool:
    """The rule of pooling of blocked values over the spatial dimensions, of the indices of maxima, and of gradients of
    pooling: the lanes are a third dimension with windows of 1. Returns whether the node was rewritten."""
    x = node.inputs[0]
    assert x is not None
    if x.type.rank != 4 or not a.is_blocked(x):
        return False
    attrs = node.of(PoolAttrs)
    (top, left, bottom, right) = attrs.pads
    attrs = replace(
        attrs,
        kernel=(*attrs.kernel, 1),
        strides=(*attrs.strides, 1),
        dilations=(*attrs.dilations, 1),
        pads=(top, left, 0, bottom, right, 0),
    )
    if isinstance(attrs, MaxPoolSpreadAttrs):
        attrs = replace(attrs, extents=(*attrs.extents, a.block_of(x)))
    inputs = tuple(a.as_blocked(v) for v in node.inputs if v is not None)
    names = [v.name for v in node.outputs]
    a.blocked.update(zip(node.outputs, ops.emit(a.builder, node.op, *inputs, names=names, attrs=attrs), strict=True))
    return True


def reduce(a: Assigner, node: Node) -> bool:
    """The rule of means and sums of blocked values over both spatial dimensions (global average pooling), or over
    images too (statistics of batch norm, the gradient of a bias). The few results are unblocked if dimensions are not
    kept. Returns whether the node was rewritten."""
    x = node.inputs[0]
    assert x is not None
    attrs = node.of(ReduceAttrs)
    axes = tuple(sorted(axis % 4 for axis in attrs.axes))
    if x.type.rank != 4 or not a.is_blocked(x) or axes not in ((2, 3), (0, 2, 3)):
        return False
    retained = replace(attrs, axes=axes, keepdims=True)
    (result,) = a.emit(node.op, (a.as_blocked(x),), retained, node.output.name)
    if attrs.keepdims:
        a.blocked[node.output] = result
        return True
    ordinary = result
    if a.target.gpu is None:
        channels = as_int(x.shape[1])
        (ordinary,) = a.emit("lowered.unblock_channels", (result,), {"channels": channels}, node.output.name)
    (a.row_major[node.output],) = a.emit("reshape", (ordinary,), {"shape": node.output.shape}, node.output.name)
    return True


def along_space(a: Assigner, node: Node) -> bool:
    """The rule of resizing and gathering blocked values along a spatial dimension, in which all lanes of a block move
    together. Returns whether the node was rewritten."""
    x, *others = node.inputs
    assert x is not None
    if len(node.outputs) != 1 or x.type.rank != 4 or not a.is_blocked(x) or _axis(node) not in (2, 3):
        return False
    if node.op == "gather" and (others[0] is None or others[0].type.rank != 1):
        return False
    inputs = (a.as_blocked(x), *(None if v is None else a.as_row_major(v) for v in others))
    (a.blocked[node.output],) = a.emit(node.op, inputs, node.attrs, node.output.name)
    return True


def _axis(node: Node) -> int:
    """The axis of a `resize`, `resample` or `gather`."""
    match node.attrs:
        case ResizeAttrs(axis=axis) | ResampleAttrs(axis=axis) | AxisAttrs(axis=axis):
            return axis
    raise TypeError(f"{node.op} works along no axis")
