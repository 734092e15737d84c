"""Further layers that VTA computes as sums of products: averages, transposed convolutions, matrix products.

average_pool(x)           a depthwise convolution with ones, where the window has 2^n elements
conv_transpose(x, w)      four phases of results, each a convolution of its own
matmul(a, b)              rows times blocks of weights; `b` may be computed, too
"""

from __future__ import annotations

from math import frexp, prod
from typing import TYPE_CHECKING

import numpy as np

from tilewright.ir.attributes import ConstantArray
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.conv import ConvTransposeAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.pool import AveragePoolAttrs
from tilewright.ops.reduce import ReduceAttrs
from tilewright.plans.vta.layers import BLOCK, Convolution, Product, with_offset

if TYPE_CHECKING:
    from tilewright.transform.graph.vta import Layers

MAX_PRODUCTS = 64
"""The largest number of matrix pairs in a product, each of which is one program call."""
LARGEST_SHIFT = 31
MAX_PADS = 15
"""The largest number of zeros that an instruction writes on a side."""


def shift_of(factor: float) -> int | None:
    """The number of bits of the right shift that multiplies by `factor`; None if the factor is no power of two, is
    above 1, or needs too many bits."""
    mantissa, exponent = frexp(factor)
    shift = 1 - exponent
    return shift if mantissa == 0.5 and 0 <= shift <= LARGEST_SHIFT else None


def is_image(x: Value) -> bool:
    """Whether a value is one image of known sizes."""
    sizes = [as_int(d) for d in x.shape]
    return len(sizes) == 4 and sizes[0] == 1 and None not in sizes


def average(r: Layers, node: Node, real: Value | None, factor: float, low: int) -> bool:
    """Emit a VTA layer for `node`, which quantises the value `real` times `factor` to integers of at least `low`, if
    `real` is a mean over windows or whole maps; returns whether VTA can compute it."""
    pool = r.producer(real, "avg_pool", "reduce_mean")
    source = None if pool is None else r.scaled(pool.inputs[0])
    if pool is None or source is None or not is_image(source.integers):
        return False
    channels, height, width = (as_int(d) or 0 for d in source.integers.shape[1:])
    if isinstance(pool.attrs, AveragePoolAttrs):
        attrs = pool.attrs
        kernel, stride, pads = (attrs.kernel[0], attrs.kernel[1]), attrs.strides[0], attrs.pads
        even = len(set(attrs.strides)) == 1 and set(attrs.dilations) == {1} and not attrs.ceil_mode
        if not even or max(pads) > MAX_PADS or (any(pads) and not attrs.count_include_pad):
            return False
    else:
        kernel, stride, pads = (height, width), 1, (0,) * 4
        if pool.of(ReduceAttrs).axes != (2, 3) or len(pool.output.shape) != 4:
            return False
    shift = shift_of(source.scale * factor / prod(kernel))
    if shift is None:
        return False
    blocks = -(-channels // BLOCK)
    edges = pads[0], pads[1], pads[2], pads[3]
    q = r.requantised(shift, low)
    layer = with_offset(Convolution(blocks, height, width, blocks, kernel, stride, edges, True, requantised=q))
    ones = r.emit("constant", value=ConstantArray(np.eye(BLOCK, dtype=np.int8)))  # larger constants are much code
    weights = r.emit("broadcast", ones, shape=(blocks, 1, *kernel, BLOCK, BLOCK))
    operands = [r.blocked(source.integers), weights, r.bias(None, channels, layer.outputs, layer)]
    r.put(node, layer, operands, (blocks, *layer.rows, BLOCK), low >= 0)
    return True


def transposed(r: Layers, node: Node, real: Value | None, factor: float, low: int) -> bool:
    """Emit VTA layers for `node`, which quantises the value `real` times `factor` to integers of at least `low`, if
    `real` is a transposed convolution of stride 2 whose result is twice as large as its input, or two more; returns
    whether VTA can compute it."""
    conv, factors = r.product(real, "conv_transpose", factor)
    if conv is None or factors is None:
        return False
    attrs = conv.of(ConvTransposeAttrs)
    sizes = [as_int(d) for d in factors.w.shape]
    even = set(attrs.strides) == {2} and set(attrs.dilations) == {1} and attrs.groups == 1 and len(set(attrs.pads)) == 1
    if not even or not is_image(factors.x) or None in sizes or len(sizes) != 4 or attrs.pads[0] > 1:
        return False
    cin, cout, kh, kw = (n or 0 for n in sizes)
    more = attrs.output_padding
    if (kh + more[0]) % 2 or (kw + more[1]) % 2:
        return False
    taps, pad = ((kh + more[0]) // 2, (kw + more[1]) // 2), attrs.pads[0]
    _, height, width = (as_int(d) or 0 for d in factors.x.shape[1:])
    edges = (taps[0] - 1, taps[1] - 1, taps[0] - 1, taps[1] - 1)
    inputs, outputs, q = -(-cin // BLOCK), -(-cout // BLOCK), r.requantised(factors.shift, low)
    layer = with_offset(
        Convolution(inputs, height, width, outputs, taps, 1, edges, phases=2, shifted=(pad, pad), requantised=q)
    )
    high, wide = layer.rows
    if [2 * high, 2 * wide] != [as_int(d) for d in conv.output.shape[2:]] or max(edges) > MAX_PADS:
        return False
    w = factors.w
    if any(more):
        w = r.emit("pad", w, before=(0,) * 4, after=(0, 0, *more), mode="constant", value=0)
    w = r.padded(r.padded(w, 0, cin), 1, cout)
    split = r.emit("reshape", w, shape=(inputs, BLOCK, outputs, BLOCK, taps[0], 2, taps[1], 2))
    for axis in (4, 6, *((5, 7) if pad else ())):
        split = _reversed(r, split, axis)
    packed = r.emit("transpose", split, perm=(2, 0, 5, 7, 4, 6, 3, 1))
    operands = [r.blocked(factors.x), packed, r.bias(factors.offset, cout, outputs, layer)]
    r.put(node, layer, operands, (outputs, 2 * high, 2 * wide, BLOCK), low >= 0)
    return True


def _reversed(r: Layers, x: Value, axis: int) -> Value:
    sizes = [as_int(d) or 0 for d in x.shape]
    begin = tuple(n - 1 if k == axis else 0 for k, n in enumerate(sizes))
    return r.emit(
        "slice", x, begin=begin, size=tuple(sizes), step=tuple(-1 if k == axis else 1 for k in range(len(sizes)))
    )


def matrices(r: Layers, node: Node, real: Value | None, factor: float, low: int) -> bool:
    """Emit VTA layers for `node`, which quantises the value `real` times `factor` to integers of at least `low`, if
    `real` is a product of one or several pairs of matrices; returns whether VTA can compute it."""
    product, factors = r.product(real, "matmul", factor)
    if product is None or factors is None:
        return False
    attrs = product.of(MatmulAttrs)
    left, right = ([as_int(d) or 0 for d in v.shape] for v in (factors.x, factors.w))
    if min(*left, *right) < 1 or min(len(left), len(right)) < 2 or (left[:-2] != right[:-2] and len(right) > 2):
        return False
    if len(right) == 2 and not attrs.transpose_a:
        left = [prod(left[:-1]), left[-1]]  # all rows have the same factor
    count = prod(left[:-2])
    rows, depth = left[-2:][::-1] if attrs.transpose_a else left[-2:]
    columns = right[-2] if attrs.transpose_b else right[-1]
    if count > MAX_PRODUCTS or (len(left) != len(right)):
        return False
    q = r.requantised(factors.shift, low)
    layer = with_offset(Product(rows, -(-depth // BLOCK), -(-columns // BLOCK), q))
    x = r.emit("reshape", factors.x, shape=(count, *left[-2:]))
    w = r.emit("reshape", factors.w, shape=(count, *right[-2:]))
    x = r.emit("transpose", x, perm=(0, 2, 1)) if attrs.transpose_a else x
    w = w if attrs.transpose_b else r.emit("transpose", w, perm=(0, 2, 1))
    x = r.padded(x, 2, depth)
    w = r.padded(r.padded(w, 2, depth), 1, columns)
    w = r.emit("reshape", w, shape=(count, layer.columns, BLOCK, layer.depth, BLOCK))
    w = r.emit("transpose", w, perm=(0, 1, 3, 2, 4))
    sums = r.bias(factors.offset, columns, layer.columns, layer)
    results = []
    for k in range(count):
        one = _one(r, x, k, (rows, layer.depth, BLOCK))
        other = _one(r, w, k, (layer.columns, layer.depth, BLOCK, BLOCK))
        results.append(r.call(layer, [one, other, sums], (rows, layer.columns * BLOCK)))
    whole = results[0] if count == 1 else r.emit("concat", *results, axis=0)
    if layer.columns * BLOCK != columns:
        whole = r.emit("slice", whole, begin=(0, 0), size=(count * rows, columns), step=(1, 1))
    shape = tuple(as_int(d) or 0 for d in node.output.shape)
    r.finish(node, r.emit("reshape", whole, shape=shape))
    return True


def _one(r: Layers, x: Value, k: int, shape: tuple[int, ...]) -> Value:
    """Emit matrix number `k` of the stack `x`, with the shape of its blocks."""
    sizes = [as_int(d) or 0 for d in x.shape]
    if sizes[0] > 1:
        begin, size = (k, *(0 for _ in sizes[1:])), (1, *sizes[1:])
        x = r.emit("slice", x, begin=begin, size=size, step=(1,) * len(sizes))
    return r.emit("reshape", x, shape=shape)


__all__ = ["average", "matrices", "transposed"]
