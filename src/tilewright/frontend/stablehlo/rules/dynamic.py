"""Operations on symbolic dimensions: sizes as values, and shapes that are operands."""

from __future__ import annotations

from tilewright.frontend.common.known import object_array
from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.contraction import convolve
from tilewright.frontend.stablehlo.rules.gather import gathered
from tilewright.frontend.stablehlo.rules.shape import as_item, counting, padded, placed, reshaped, sliced
from tilewright.frontend.stablehlo.rules.sort import largest
from tilewright.frontend.stablehlo.scope import Item, known_item
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim
from tilewright.support.errors import ModelError, UnsupportedError


@rule("get_dimension_size")
def get_dimension_size(call: Call) -> Item:
    axis, shape = call.integer("dimension"), call.item(0).shape
    if not 0 <= axis < len(shape):
        raise ModelError("the dimension is outside of the tensor", got=axis)
    return known_item(object_array([shape[axis]], ()), call.dtype)


@rule("set_dimension_size")
def set_dimension_size(call: Call) -> Item:
    """`set_dimension_size`: the operand, cut to the stated size along one dimension; the size must be known."""
    axis = call.integer("dimension")
    (size,) = call.sizes(1)
    x = call.item(0)
    if dim(size) is not x.shape[axis]:
        begin = [0] * len(x.shape)
        return sliced(call, x, begin, [size if k == axis else d for k, d in enumerate(x.shape)], [1] * len(x.shape))
    return x


@rule("dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(call: Call) -> Item:
    return placed(call, call.item(0), call.ints("broadcast_dimensions"), call.sizes(1))


@rule("dynamic_reshape")
def dynamic_reshape(call: Call) -> Item:
    return reshaped(call, call.item(0), call.sizes(1))


@rule("dynamic_iota")
def dynamic_iota(call: Call) -> Item:
    return counting(call, [dim(s) for s in call.sizes(0)], call.integer("iota_dimension"))


@rule("dynamic_pad")
def dynamic_pad(call: Call) -> Item:
    low, high = call.sizes(2), call.sizes(3)
    inner = [int(v) for v in call.sizes(4) if isinstance(v, int)]
    if len(inner) != len(low):
        raise UnsupportedError("interior padding of a symbolic size is not supported")
    return as_item(padded(call, call.value(0), call.item(1), low, high, inner))


@rule("dynamic_gather")
def dynamic_gather(call: Call) -> Value:
    sizes = [dim(s) for s in call.sizes(2)]
    return gathered(call, call.fields("dimension_numbers"), sizes)


@rule("dynamic_conv")
def dynamic_convolution(call: Call) -> Value:
    pads = call.sizes(2)
    return convolve(call, call.ints("window_strides", [1] * (len(pads) // 2)), pads[0::2], pads[1::2])


@rule("custom_call.stablehlo.dynamic_top_k")
def dynamic_top_k(call: Call) -> list[Value]:
    x = call.value(0)
    (k,) = call.sizes(1)
    return largest(call, x, x.type.rank - 1, k)
