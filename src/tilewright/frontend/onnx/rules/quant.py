"""Rules for quantised operators, which become integer and float arithmetic with scales and zero points."""

from __future__ import annotations

from tilewright.frontend.common.contraction import add_bias, product
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.contraction import convolve
from tilewright.frontend.onnx.tensors import element_type
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, f32, i32, u8
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of, dim, known_same, same_dim
from tilewright.support.errors import DTypeError, ShapeError


def along(n: Call, v: Value, x: Value, axis: int, block: int = 0) -> Value:
    """`v`, a scale or zero point, reshaped to broadcast with `x`: it is one number, one for each slice along `axis`, or
    one for each block of `block` slices."""
    if v.type.rank == 0:
        return v
    if block:
        return _blocked(n, v, x, axis, block)
    if v.type.rank == 1 and known_same(v.shape[0], const(1)):
        return n.reshape(v, ())
    axis = axis_of(axis, x.type.rank)
    if v.type.rank != 1 or not same_dim(v.shape[0], x.shape[axis]):
        raise ShapeError("scale and zero point need one entry for each slice", expected=x.shape[axis], got=v.type)
    return n.reshape(v, [v.shape[0] if k == axis else 1 for k in range(x.type.rank)])


def _blocked(n: Call, v: Value, x: Value, axis: int, block: int) -> Value:
    axis = axis_of(axis, x.type.rank)
    if v.type.rank != x.type.rank:
        raise ShapeError("scales of blocks have the rank of the data", expected=x.type, got=v.type)
    spread = n.reshape(v, (*v.shape[: axis + 1], 1, *v.shape[axis + 1 :]))
    wide = n.emit("broadcast", spread, shape=(*v.shape[: axis + 1], const(block), *v.shape[axis + 1 :]))
    flat = n.reshape(wide, (*v.shape[:axis], dim(v.shape[axis] * block), *v.shape[axis + 1 :]))
    return n.slice(flat, axis, 0, x.shape[axis])


def quantized(n: Call, x: Value, zero_point: Value | None, to: DType) -> Value:
    """`x`, already divided by the scale, quantised: rounded to even, plus the zero point, saturated to type `to`."""
    y = n.emit("round", x)
    if zero_point is not None:
        y = n.emit("add", y, n.cast(zero_point, y.dtype))
    return n.cast(y, to)  # which saturates


@rule("QuantizeLinear")
def quantize_linear(n: Call) -> Value:
    x, scale = n.value(0), n.value(1)
    axis, block = n.integer("axis", 1), n.integer("block_size", 0)
    saturate = bool(n.integer("saturate", 1))
    code = n.integer("output_dtype", 0)
    precision = n.integer("precision", 0)
    zero = n.optional(2)
    to = zero.dtype if zero is not None else element_type(code) if code else u8
    if not (to.is_int or to.is_minifloat) or to.bits > 16:
        raise DTypeError("the quantised type must be a small float or an integer of at most 16 bits", got=to)
    # From operator set 23 on the scale's type says how precise the division is; ONNX Runtime and OpenVINO do it in f32
    # for older ones.
    work = element_type(precision) if precision else scale.dtype if n.opset >= 23 else f32
    quotient = n.emit("div", n.cast(x, work), n.cast(along(n, scale, x, axis, block), work))
    if to.is_minifloat:  # whose zero point is 0
        return n.emit("cast", n.cast(quotient, f32), dtype=to, saturate=saturate)
    return quantized(n, n.cast(quotient, f32), None if zero is None else along(n, zero, x, axis, block), to)


@rule("DequantizeLinear")
def dequantize_linear(n: Call) -> Value:
    x, scale = n.value(0), n.value(1)
    axis, block = n.integer("axis", 1), n.integer("block_size", 0)
    code = n.integer("output_dtype", 0)
    result = element_type(code) if code else scale.dtype
    if block and scale.type.rank == x.type.rank and not x.dtype.is_minifloat:
        whole = in_blocks(n, x, scale, axis_of(axis, x.type.rank), block)
        if whole is not None:
            return n.cast(whole, result)
    y = n.cast(x, f32 if x.dtype.is_minifloat else i32)
    zero = zero_point(n, 2) if y.dtype is i32 else None
    if zero is not None:
        y = n.emit("sub", y, n.cast(along(n, zero, x, axis, block if zero.type.rank else 0), i32))
    y = n.emit("mul", n.cast(y, f32), n.cast(along(n, scale, x, axis, block), f32))
    return n.cast(y, result)


def in_blocks(n: Call, x: Value, scale: Value, axis: int, block: int) -> Value | None:
    """DequantizeLinear of codes `x` in blocks of `block` elements along `axis`: codes times scales, computed with a
    separate dimension for blocks, by which products with such weights are recognised. None if the last block is
    partial."""
    size = as_int(x.shape[axis])
    if size is None or size % block or not known_same(scale.shape[axis], const(size // block)):
        return None
    zero = zero_point(n, 2)

    def split(v: Value, width: int) -> Value:
        return n.reshape(v, (*v.shape[:axis], size // block, width, *v.shape[axis + 1 :]))

    y = n.cast(split(x, block), i32)
    if zero is not None:
        y = n.emit("sub", y, n.cast(split(zero, 1) if zero.type.rank else zero, i32))
    return n.reshape(n.emit("mul", n.cast(y, f32), n.cast(split(scale, 1), f32)), x.shape)


def zero_point(n: Call, i: int) -> Value | None:
    """Input `i`: one number where all of a file's are equal, None where they are 0 or absent."""
    known = n.known(i)
    if known is None or known.dtype.kind not in "iu" or not known.size or (known != known.flat[0]).any():
        return n.optional(i)
    return n.emit("constant", value=ConstantArray(known.reshape(-1)[0])) if known.flat[0] else None


def centred(n: Call, x: Value, i: int, axis: int) -> Value:
    """`x`, the codes of an input, as i32 minus the zero point in input `i`, if there is one, along `axis`."""
    x = n.cast(x, i32)
    zero = zero_point(n, i)
    if zero is None:
        return x
    if zero.type.rank > 1:
        return n.emit("sub", x, n.cast(zero, i32))
    return n.emit("sub", x, n.cast(along(n, zero, x, axis), i32))


@rule("MatMulInteger")
def matmul_integer(n: Call) -> Value:
    return product(n, centred(n, n.value(0), 2, -2), centred(n, n.value(1), 3, -1))


@rule("ConvInteger")
def conv_integer(n: Call) -> Value:
    return convolve(n, centred(n, n.value(0), 2, 1), centred(n, n.value(1), 3, 0))


@rule("QLinearMatMul")
def qlinear_matmul(n: Call) -> Value:
    """A product of quantised matrices: the inputs are a with its scale and zero point, b with its own, and those of the
    result."""
    a, b, y_scale, y_zero = n.value(0), n.value(3), n.value(6), n.value(7)
    total = product(n, centred(n, a, 2, -2), centred(n, b, 5, -1))
    scale = n.emit("mul", n.cast(_side(n, 1, a, -2), f32), n.cast(_side(n, 4, b, -1), f32))
    factor = n.emit("div", scale, n.cast(along(n, y_scale, total, -1), f32))
    return quantized(n, n.emit("mul", n.cast(total, f32), factor), along(n, y_zero, total, -1), y_zero.dtype)


def _side(n: Call, i: int, x: Value, axis: int) -> Value:
    scale = n.value(i)
    return scale if scale.type.rank > 1 else along(n, scale, x, axis)


@rule("QLinearConv")
def qlinear_conv(n: Call) -> Value:
    """A convolution of quantised numbers: the inputs are x with its scale and zero point, w with its own, those of the
    result, and a bias of i32."""
    x, w, y_scale, y_zero = n.value(0), n.value(3), n.value(6), n.value(7)
    total = convolve(n, centred(n, x, 2, 1), centred(n, w, 5, 0))
    total = add_bias(n, total, n.optional(8))
    w_scale = along(n, n.value(4), total, 1)
    scale = n.emit("mul", n.cast(along(n, n.value(1), x, 1), f32), n.cast(w_scale, f32))
    factor = n.emit("div", scale, n.cast(along(n, y_scale, total, 1), f32))
    return quantized(n, n.emit("mul", n.cast(total, f32), factor), along(n, y_zero, total, 1), y_zero.dtype)
