"""Import rules for TFLite's operators. Each takes a `Call` and returns the value of its output."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from tilewright.frontend.tflite import fixed
from tilewright.frontend.tflite.call import Call
from tilewright.ir.dtype import f32, i32, i64, u8
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of, dims
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError

Rule = Callable[[Call], Value]
RULES: dict[str, Rule] = {}
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations that move channels from the last dimension to the second, and back."""
SHIFT = 20
"""Terms of a quantised sum are computed with this many more bits than its codes."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(f: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, f))
        return f

    return register


def _sizes(value: Value) -> tuple[int, ...]:
    sizes = tuple(as_int(d) for d in value.shape)
    if None in sizes:
        raise ShapeError("an operator needs known sizes", got=value.type)
    return tuple(d for d in sizes if d is not None)


def _pads(
    n: Call, x: Value, window: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int]
) -> list[int]:
    """The pads of the image `x` before both dimensions, then after both, for windows of extents `window` with `strides`
    and `dilations`: zeros for VALID, for SAME the numbers of TensorFlow's rule. Raises ModelError for another
    padding."""
    padding = n.option(0, "b")
    if padding not in (0, 1):
        raise ModelError("no such padding", expected="SAME or VALID", got=padding)
    before, after = [], []
    for size, k, stride, dilation in zip(_sizes(x)[1:3], window, strides, dilations, strict=True):
        spread = (k - 1) * dilation + 1
        total = max((-(-size // stride) - 1) * stride + spread - size, 0) if padding == 0 else 0
        before.append(total // 2)
        after.append(total - total // 2)
    return [*before, *after]


@rule("CONV_2D")
def conv_2d(n: Call) -> Value:
    return _convolution(n, False, 3)


@rule("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(n: Call) -> Value:
    return _convolution(n, True, 4)


def _convolution(n: Call, depthwise: bool, activation: int) -> Value:
    """A convolution of x [n, h, w, c] with filters [f, h, w, c], or a depthwise one with [1, h, w, f], and a bias [f],
    followed by the fused activation number `activation`."""
    x, w = n.value(0), n.value(1)
    if x.type.rank != 4 or w.type.rank != 4:
        raise ShapeError("a convolution has maps and filters of four dimensions", got=f"{x.type} and {w.type}")
    strides = (n.option(2, "i"), n.option(1, "i"))
    dilations = (n.option(activation + 2, "i", 1), n.option(activation + 1, "i", 1))
    window = _sizes(w)[1:3]
    pads = _pads(n, x, (window[0], window[1]), strides, dilations)
    perm = (3, 0, 1, 2) if depthwise else (0, 3, 1, 2)
    channels = _sizes(x)[3]
    attrs = {"strides": strides, "dilations": dilations, "pads": tuple(pads), "groups": channels if depthwise else 1}

    def convolved(x: Value, w: Value) -> Value:
        y = n.emit("conv", n.transpose(x, TO_FIRST), n.transpose(w, perm), **attrs)
        return n.transpose(y, TO_LAST)

    return _weighed(n, x, w, convolved, 3 if depthwise else 0, n.option(activation, "b"))


@rule("FULLY_CONNECTED")
def fully_connected(n: Call) -> Value:
    """x [..., k] times the transpose of weights [f, k], plus a bias [f]."""
    x, w = n.value(0), n.value(1)
    if n.option(1, "b"):
        raise UnsupportedError("shuffled weights are not read", got=n.tensor(1).name)
    depth = _sizes(w)[1]
    if not n.option(2, "?") or _sizes(x)[-1] != depth or x.type.rank == 1:
        x = n.reshape(x, (prod(_sizes(x)) // depth, depth))
    y = _weighed(n, x, w, lambda x, w: n.emit("matmul", x, w, transpose_b=True), 0, n.option(0, "b"), once=True)
    return n.reshape(y, n.out.shape)


def _weighed(
    n: Call, x: Value, w: Value, apply: Callable[[Value, Value], Value], axis: int, activation: int, once: bool = False
) -> Value:
    """`apply`(x, w), a convolution or product, with bias and activation. Of codes, sums are rescaled to the output's
    scale, rounded in one step if `once`; `axis` is the dimension of `w` along which scales may differ."""
    if not n.is_coded:
        if n.tensor(1).dtype is not f32:
            raise UnsupportedError("weights of fewer bits than their data are not read", got=n.tensor(1).name)
        y = apply(x, w)
        return n.activated(n.emit("add", y, n.value(2)) if n.has(2) else y, activation)
    scales = n.scales(n.tensor(1))
    if not scales.is_single and scales.dimension != axis:
        raise UnsupportedError("scales along another dimension than the output's channels", got=scales.dimension)
    total = apply(n.centred(x, n.tensor(0)), n.centred(w, n.tensor(1)))
    if n.has(2):
        total = n.emit("add", total, n.emit("cast", n.value(2), dtype=i32))
    (scale_in, _), (scale_out, _) = n.single(n.tensor(0)), n.single(n.out)
    if n.out.dtype is u8:  # the product of two floats is a float there
        number = np.float64(scale_in * n.single(n.tensor(1))[0]) / np.float64(scale_out)
        return n.coded(n.multiplied(total, [float(number)], once=once), activation)
    numbers = np.float64(scale_in) * scales.scale.astype(np.float64) / np.float64(scale_out)
    return n.coded(n.multiplied(total, numbers.tolist(), (len(numbers),), once), activation)


@rule("ADD")
def add(n: Call) -> Value:
    """A sum. Codes are first rescaled to a common scale, which is twice the larger one divided by 2^20."""
    if not n.is_coded:
        return n.activated(n.emit("add", n.value(0), n.value(1)), n.option(0, "b"))
    scales = [np.float64(n.single(n.tensor(k))[0]) for k in (0, 1)]
    twice = 2 * max(scales)
    terms = []
    for k in (0, 1):
        shifted = n.emit(
            "mul", n.emit("cast", n.centred(n.value(k), n.tensor(k)), dtype=i64), n.constant(1 << SHIFT, i64)
        )
        terms.append(n.multiplied(shifted, [float(scales[k] / twice)]))
    out = twice / ((1 << SHIFT) * np.float64(n.single(n.out)[0]))
    return n.coded(n.multiplied(n.emit("add", *terms), [float(out)]), n.option(0, "b"))


@rule("MUL")
def mul(n: Call) -> Value:
    if not n.is_coded:
        return n.activated(n.emit("mul", n.value(0), n.value(1)), n.option(0, "b"))
    (a, _), (b, _), (out, _) = (n.single(t) for t in (n.tensor(0), n.tensor(1), n.out))
    product = n.emit("mul", *(n.centred(n.value(k), n.tensor(k)) for k in (0, 1)))
    return n.coded(n.multiplied(product, [float(a * b / out)]), n.option(0, "b"))


def _same_scale(n: Call, inputs: range) -> None:
    """Raise UnsupportedError if an operator that only moves codes has inputs whose scale differs from the output's."""
    if n.is_coded and any(n.single(n.tensor(k)) != n.single(n.out) for k in inputs):
        raise UnsupportedError("codes that are moved have another scale than the result", got=n.out.name)


@rule("CONCATENATION")
def concatenation(n: Call) -> Value:
    inputs = range(len(n.node.inputs))
    _same_scale(n, inputs)
    values = [n.value(k) for k in inputs]
    axis = axis_of(n.option(0, "i"), values[0].type.rank)
    if n.option(1, "b"):
        raise UnsupportedError("a concatenation with an activation is not read")
    return n.emit("concat", *values, axis=axis) if len(values) > 1 else values[0]


@rule("RESHAPE")
def reshape(n: Call) -> Value:
    _same_scale(n, range(1))
    return n.reshape(n.value(0), n.out.shape)


@rule("TRANSPOSE")
def transpose(n: Call) -> Value:
    _same_scale(n, range(1))
    return n.transpose(n.value(0), [int(k) for k in n.known(1)])


@rule("PAD")
def pad(n: Call) -> Value:
    """Padding with zeros; quantised tensors are padded with the zero point."""
    _same_scale(n, range(1))
    widths = np.asarray(n.known(1), np.int64)
    x = n.value(0)
    if widths.shape != (x.type.rank, 2) or (widths < 0).any():
        raise ModelError("pads do not fit their tensor", expected=f"[{x.type.rank}, 2], not negative", got=widths.shape)
    fill = n.constant(n.single(n.out)[1] if n.is_coded else 0, x.dtype)
    before, after = (dims([int(w) for w in widths[:, k]]) for k in (0, 1))
    return n.emit("pad", x, fill, before=before, after=after, mode="constant")


def _window(n: Call, x: Value) -> dict[str, tuple[int, ...]]:
    kernel, strides = (n.option(4, "i"), n.option(3, "i")), (n.option(2, "i"), n.option(1, "i"))
    pads = tuple(_pads(n, x, kernel, strides, (1, 1)))
    return {"kernel": kernel, "strides": strides, "pads": pads, "dilations": (1, 1)}


@rule("MAX_POOL_2D")
def max_pool_2d(n: Call) -> Value:
    _same_scale(n, range(1))
    x = n.value(0)
    y = n.transpose(n.emit("max_pool", n.transpose(x, TO_FIRST), **_window(n, x)), TO_LAST)
    return _clamped(n, y, n.option(5, "b")) if n.is_coded else n.activated(y, n.option(5, "b"))


def _clamped(n: Call, y: Value, activation: int) -> Value:
    """`y`, codes, clamped to the bounds of the fused `activation`."""
    return n.coded(n.emit("cast", n.centred(y, n.out), dtype=i64), activation) if activation else y


@rule("AVERAGE_POOL_2D")
def average_pool_2d(n: Call) -> Value:
    """Average pooling. Of codes: their sum inside of the image divided by their number, rounded with halves away from
    zero."""
    x, window = n.value(0), _window(n, n.value(0))
    first = n.transpose(x, TO_FIRST)
    if not n.is_coded:
        y = n.emit("avg_pool", first, count_include_pad=False, **window)
        return n.activated(n.transpose(y, TO_LAST), n.option(5, "b"))
    _same_scale(n, range(1))
    channels, (height, width) = _sizes(x)[3], window["kernel"]
    ones = n.constant(np.ones((channels, 1, height, width), np.int32), i32)
    attrs = {k: window[k] for k in ("strides", "pads", "dilations")}
    total = n.emit("conv", n.emit("cast", first, dtype=i32), ones, groups=channels, **attrs)
    inside = n.constant(np.ones((1, 1, *_sizes(x)[1:3]), np.int32), i32)
    single = n.constant(np.ones((1, 1, height, width), np.int32), i32)
    count = n.emit("conv", inside, single, groups=1, **attrs)
    two = n.constant(2, i32)
    half = n.emit("truncdiv", count, two)
    negative = n.emit("le", total, n.constant(0, i32))
    shifted = n.emit("select", negative, n.emit("sub", total, half), n.emit("add", total, half))
    mean = n.transpose(n.emit("truncdiv", shifted, count), TO_LAST)
    zero = n.constant(n.single(n.out)[1], i32)
    return n.coded(n.emit("cast", n.emit("sub", mean, zero), dtype=i64), n.option(5, "b"))


@rule("QUANTIZE")
def quantize(n: Call) -> Value:
    """Quantise floats to codes, or rescale codes to the output's scale."""
    if not n.is_coded:
        return n.nearest(n.value(0))
    (scale, _), (out, _) = n.single(n.tensor(0)), n.single(n.out)
    return n.coded(n.multiplied(n.centred(n.value(0), n.tensor(0)), [float(np.float64(scale) / np.float64(out))]))


@rule("DEQUANTIZE")
def dequantize(n: Call) -> Value:
    t = n.tensor(0)
    return n.emit("cast", n.value(0), dtype=f32) if t.dtype.is_float else n.real(n.value(0), t)


def _function(f: Callable[[Call, Value], Value]) -> Rule:
    """The rule of an elementwise function `f`: codes are dequantised to f32, and the result is quantised."""

    def computed(n: Call) -> Value:
        return n.nearest(f(n, n.real(n.value(0), n.tensor(0)))) if n.is_coded else f(n, n.value(0))

    return computed


def _softmax(n: Call, x: Value) -> Value:
    beta = n.option(0, "f", 0.0)
    scaled = x if beta == 1 else n.emit("mul", x, n.like(beta, x))
    return n.emit("softmax", scaled, axis=x.type.rank - 1)


@rule("MEAN")
def mean(n: Call) -> Value:
    """The mean over axes. Codes are summed, and the factor between the scales is divided by their number."""
    x, attrs = n.value(0), {"keepdims": bool(n.option(0, "?"))}
    axes = tuple(sorted({axis_of(int(k), x.type.rank) for k in np.ravel(n.known(1))}))
    if not n.is_coded:
        return n.emit("reduce_mean", x, axes=axes, **attrs)
    (scale, _), (out, _) = n.single(n.tensor(0)), n.single(n.out)
    total = n.emit("cast", n.emit("reduce_sum", n.centred(x, n.tensor(0)), axes=axes, **attrs), dtype=i64)
    count = prod(_sizes(x)[k] for k in axes) or 1  # sums of no codes are 0
    return n.coded(fixed.multiplied(n, total, [float(np.float64(scale) / np.float64(out))], count=count))


def _bounded(code: int) -> Rule:
    """The rule of RELU or RELU6, by the activation's `code`. Codes are rescaled to the output's scale, and clamped."""

    def bounded(n: Call) -> Value:
        if not n.is_coded:
            return n.activated(n.value(0), code)
        (scale, _), (out, _) = n.single(n.tensor(0)), n.single(n.out)
        x = n.centred(n.value(0), n.tensor(0))
        return n.coded(n.multiplied(x, [float(scale / out)]), code)

    return bounded


RULES |= {
    "SOFTMAX": _function(_softmax),
    "LOGISTIC": _function(lambda n, x: n.emit("sigmoid", x)),
    "TANH": _function(lambda n, x: n.emit("tanh", x)),
    "RELU": _bounded(1),
    "RELU6": _bounded(3),
}
