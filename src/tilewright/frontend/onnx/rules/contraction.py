"""Rules for matrix products and convolutions."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.common import contraction as common
from tilewright.frontend.common.contraction import add_bias, convolved, product
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.padding import padded
from tilewright.ir.expr import Expr, as_int, const, maximum
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, dims, static
from tilewright.support.errors import ShapeError, UnsupportedError


@rule("MatMul")
def matmul(n: Call) -> Value:
    return product(n, n.value(0), n.value(1))


@rule("Gemm")
def gemm(n: Call) -> Value:
    if n.rank(0) != 2 or n.rank(1) != 2:
        raise ShapeError("Gemm needs matrices", got=f"{n.type(0)} and {n.type(1)}")
    n.attr("broadcast")  # before operator set 7: the addend broadcasts, as it does later anyhow
    alpha, beta = n.real("alpha", 1.0), n.real("beta", 1.0)
    swap_a, swap_b = bool(n.integer("transA", 0)), bool(n.integer("transB", 0))
    result = n.emit("matmul", n.value(0), n.value(1), transpose_a=swap_a, transpose_b=swap_b)
    result = scaled(n, result, alpha)
    if not n.has(2) or beta == 0:
        return result
    return n.emit("add", result, scaled(n, n.value(2), beta))


def scaled(n: Call, x: Value, factor: float) -> Value:
    if factor == 1:
        return x
    if x.dtype.is_int and factor != int(factor):
        raise UnsupportedError("alpha and beta of integers that are no integers are not supported", got=factor)
    return n.emit("mul", x, n.like(int(factor) if x.dtype.is_int else factor, x))


# --- convolution ----------------------------------------------------------------------------------------------------


def kernel_shape(n: Call, w: Value) -> list[int]:
    """The spatial extents of the weight, which the attribute, if given, must repeat."""
    kernel = [static(d, "the kernel of a convolution") for d in w.shape[2:]]
    sizes = n.ints("kernel_shape")
    if sizes is not None and sizes != kernel:
        raise ShapeError("kernel_shape is not the weight's", expected=kernel, got=sizes)
    return kernel


@rule("Conv")
def conv(n: Call) -> Value:
    w = n.value(1)
    x, attrs = window(n, n.value(0), w)
    return convolved(n, x, w, n.optional(2), attrs)


def convolve(n: Call, x: Value, w: Value) -> Value:
    x, attrs = window(n, x, w)
    return n.emit("conv", x, w, **attrs)


def window(n: Call, x: Value, w: Value) -> tuple[Value, dict[str, Any]]:
    """(the input, the attributes for the operator `conv`) of a convolution. The input is padded first where pads depend
    on a symbolic size."""
    rank = x.type.rank - 2
    if w.type.rank != x.type.rank or rank < 1:
        raise ShapeError("input and weight of a convolution differ in rank", got=f"{x.type} and {w.type}")
    kernel = kernel_shape(n, w)
    strides, dilations = n.ints("strides", [1] * rank) or [], n.ints("dilations", [1] * rank) or []
    if len(strides) != rank or len(dilations) != rank:
        raise ShapeError("strides and dilations need one entry for each spatial dimension", expected=rank)
    x, pads = padded(n, x, kernel, strides, dilations)
    return x, {
        "strides": tuple(strides),
        "dilations": tuple(dilations),
        "pads": pads,
        "groups": n.integer("group", 1),
    }


@rule("ConvTranspose")
def conv_transpose(n: Call) -> Value:
    x, w = n.value(0), n.value(1)
    rank = x.type.rank - 2
    if w.type.rank != x.type.rank or rank < 1:
        raise ShapeError("input and weight of a convolution differ in rank", got=f"{x.type} and {w.type}")
    kernel = kernel_shape(n, w)
    strides, dilations = n.ints("strides", [1] * rank) or [], n.ints("dilations", [1] * rank) or []
    extra = n.ints("output_padding", [0] * rank) or []
    if any(len(v) != rank for v in (strides, dilations, extra)):
        raise ShapeError("strides, dilations and output_padding need one entry for each dimension", expected=rank)
    if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        wanted = "from 0 to below the stride or dilation"
        raise ShapeError("an output_padding makes no sense", expected=wanted, got=extra)
    pads = [dim(p) for p in _transposed_pads(n, x, kernel, strides, dilations, extra)]
    known, groups = [as_int(p) or 0 for p in pads], n.integer("group", 1)
    open_sizes = [k for k in range(rank) if as_int(pads[k]) is None or as_int(pads[rank + k]) is None]
    bias = n.optional(2)
    y = common.conv_transpose(n, x, w, None if open_sizes else bias, strides, dilations, known, extra, groups)
    for k in open_sizes:
        y = _cut(n, y, 2 + k, dim(pads[k] - known[k]), dim(pads[rank + k] - known[rank + k]))
    return add_bias(n, y, bias if open_sizes else None)


def _cut(n: Call, y: Value, axis: int, before: Expr, after: Expr) -> Value:
    """`y` cropped along `axis` by numbers of elements, which may be symbolic, `before` and `after`; if `after` is
    negative, zeros are appended."""
    size = dim(y.shape[axis] - before - after)
    more: list[Any] = [0] * y.type.rank
    more[axis] = maximum(-after, 0)
    y = n.emit("pad", y, before=dims([0] * y.type.rank), after=dims(more), mode="constant", value=0)
    return n.slice(y, axis, before, size)


def _transposed_pads(
    n: Call, x: Value, kernel: list[int], strides: list[int], dilations: list[int], extra: list[int]
) -> list[Any]:
    """The pads of a ConvTranspose node with windows `kernel`, `strides`, `dilations` and `extra` elements
    (output_padding), so that the result has the size `output_shape`, or the input's times the stride with auto_pad
    SAME.

    An odd pad is at the end with SAME_UPPER, else at the beginning. If `output_shape` is larger than the result, zeros
    are appended; with SAME alone, a kernel shorter than its stride keeps the smaller result, as in ONNX Runtime and
    OpenVINO (docs/disagreements.md).
    """
    rank = len(kernel)
    auto = n.text("auto_pad", "NOTSET")
    wanted = n.ints("output_shape")
    pads = n.ints("pads", [0] * 2 * rank) or []
    if wanted is None and auto in ("NOTSET", "VALID"):
        return pads if auto == "NOTSET" else [0] * 2 * rank
    if wanted is not None and len(wanted) < rank:
        raise ShapeError("output_shape needs one entry for each spatial dimension", expected=rank, got=wanted)
    before, after = list[Any](), list[Any]()
    for k in range(rank):
        target = x.shape[2 + k] * strides[k] if wanted is None else const(wanted[-rank:][k])
        full = (x.shape[2 + k] - 1) * strides[k] + extra[k] + dilations[k] * (kernel[k] - 1) + 1
        total = dim(full - target)
        total = total if wanted is not None else dim(maximum(total, 0))
        half = dim(maximum(total, 0) // 2)
        first = half if auto == "SAME_UPPER" else dim(maximum(total, 0) - half)
        before.append(first)
        after.append(total - first)
    return before + after
