"""Operators whose definition changed before operator set 7, and those that later sets no longer have."""

from __future__ import annotations

from tilewright.frontend.common.contraction import channels
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.expr import is_const
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of
from tilewright.support.errors import ShapeError

FIRST_BROADCASTING = 7
"""The operator set from which operands broadcast as in NumPy."""


def second_operand(n: Call) -> Value:
    """The second operand. Before operator set 7 it broadcasts where `broadcast` is set: its first dimension stands at
    `axis` of the first operand, its last at that one's last if there is no `axis`."""
    y = n.value(1)
    if n.opset >= FIRST_BROADCASTING:
        return y
    spread, axis = n.integer("broadcast", 0), n.integer("axis", None)
    rank = n.rank(0)
    if not spread or axis is None or y.type.rank == 0:
        return y
    after = rank - axis_of(axis, rank) - y.type.rank
    if after < 0:
        raise ShapeError(
            "the second operand reaches past the first", expected=f"axis {axis} of {n.type(0)}", got=y.type
        )
    return n.reshape(y, (*y.shape, *[1] * after))


def slopes(n: Call) -> Value:
    """The slopes of PRelu; before operator set 7 a tensor of one number, or of one for each channel."""
    slope, rank = n.value(1), n.rank(0)
    if n.opset >= FIRST_BROADCASTING or slope.type.rank != 1 or is_const(slope.shape[0], 1):
        return slope
    return channels(n, slope, rank) if rank > 1 else slope


@rule("Affine")
def affine(n: Call) -> Value:
    return n.emit("affine", n.value(0), alpha=n.real("alpha", 1.0), beta=n.real("beta", 0.0))


@rule("ParametricSoftplus")
def parametric_softplus(n: Call) -> Value:
    x = n.value(0)
    y = n.emit("softplus", n.emit("mul", x, n.like(n.real("beta", 1.0), x)))
    return n.emit("mul", y, n.like(n.real("alpha", 1.0), x))


@rule("ScaledTanh")
def scaled_tanh(n: Call) -> Value:
    return n.emit("scaled_tanh", n.value(0), alpha=n.real("alpha", 1.0), beta=n.real("beta", 1.0))


@rule("ImageScaler")
def image_scaler(n: Call) -> Value:
    """`x * scale + bias`, with one bias for each channel."""
    x = n.value(0)
    y = n.emit("mul", x, n.like(n.real("scale", 1.0), x))
    bias = n.attr("bias") or []
    return n.emit("add", y, channels(n, n.constant(bias, x.dtype), x.type.rank)) if bias else y


@rule("Crop")
def crop(n: Call) -> Value:
    """An image without its border (left, top, right, bottom), or the part of size `scale` after left and top."""
    x = n.value(0)
    border, size = n.ints("border", [0] * 4) or [], n.ints("scale")
    if x.type.rank != 4 or len(border) != 4 or (size is not None and len(size) != 2):
        raise ShapeError("Crop needs images, four borders and at most two sizes", got=f"{x.type}, {border}, {size}")
    left, top, right, bottom = border
    height, width = size or (x.shape[2] - (top + bottom), x.shape[3] - (left + right))
    return n.slice(n.slice(x, 2, top, height), 3, left, width)
