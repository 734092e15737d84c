"""Rules for matrix products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, dims, same_dim, static
from tilewright.support.errors import ModelError, ShapeError


@rule("MatMul")
def matmul(n: Call) -> Value:
    return product(n, n.value(0), n.value(1))


def product(n: Call, a: Value, b: Value) -> Value:
    """The matrix product of NumPy: a vector on the left is a row, one on the right a column."""
    if a.type.rank == 0 or b.type.rank == 0:
        raise ShapeError("a matrix product of a scalar", got=f"{a.type} and {b.type}")
    row, column = a.type.rank == 1, b.type.rank == 1
    if row:
        a = n.reshape(a, (1, *a.shape))
    if column:
        b = n.reshape(b, (*b.shape, 1))
    result = n.emit("matmul", a, b)
    shape = result.shape
    if row:
        shape = (*shape[:-2], shape[-1])
    if column:
        shape = shape[:-1]
    return n.reshape(result, shape)


@rule("Gemm")
def gemm(n: Call) -> Value:
    if n.rank(0) != 2 or n.rank(1) != 2:
        raise ShapeError("Gemm needs matrices", got=f"{n.type(0)} and {n.type(1)}")
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
        raise ModelError("alpha and beta of integers must be integers", got=factor)
    return n.emit("mul", x, n.like(int(factor) if x.dtype.is_int else factor, x))


# --- convolution ----------------------------------------------------------------------------------------------------


def kernel_shape(n: Call, w: Value) -> list[int]:
    """The spatial extents of the weight, which the attribute, if given, must repeat."""
    kernel = [static(d, "the kernel of a convolution") for d in w.shape[2:]]
    given = n.ints("kernel_shape")
    if given is not None and given != kernel:
        raise ShapeError("kernel_shape is not the weight's", expected=kernel, got=given)
    return kernel


def same_pads(
    n: Call, extents: Sequence[Any], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Pads (befores, then afters) from `auto_pad` and `pads`."""
    rank = len(kernel)
    auto = n.text("auto_pad", "NOTSET")
    pads = n.ints("pads", [0] * 2 * rank)
    if auto == "NOTSET":
        return list(pads or [])
    if auto == "VALID":
        return [0] * 2 * rank
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise ModelError("unknown auto_pad", got=auto)
    before, after = [], []
    for extent, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        span = d * (k - 1) + 1
        if s == 1:
            total = span - 1
        else:
            number = static(extent, "a dimension padded by auto_pad with a stride")
            total = max((-(-number // s) - 1) * s + span - number, 0)
        less, more = total // 2, total - total // 2
        before.append(less if auto == "SAME_UPPER" else more)
        after.append(more if auto == "SAME_UPPER" else less)
    return before + after


@rule("Conv")
def conv(n: Call) -> Value:
    x, w = n.value(0), n.value(1)
    return convolved(n, x, w, n.optional(2), window(n, x, w))


def convolved(n: Call, x: Value, w: Value, bias: Value | None, attrs: dict[str, Any]) -> Value:
    """A convolution and its bias. One spatial dimension becomes two, the first of extent 1, so that the schedules for
    images serve both."""
    if x.type.rank != 3:
        return add_bias(n, n.emit("conv", x, w, **attrs), bias)
    image, filters = n.reshape(x, (*x.shape[:2], 1, x.shape[2])), n.reshape(w, (*w.shape[:2], 1, w.shape[2]))
    flat = {
        "strides": (1, *attrs["strides"]),
        "dilations": (1, *attrs["dilations"]),
        "pads": (0, attrs["pads"][0], 0, attrs["pads"][1]),
        "groups": attrs["groups"],
    }
    result = add_bias(n, n.emit("conv", image, filters, **flat), bias)
    return n.reshape(result, (*result.shape[:2], result.shape[3]))


def convolve(n: Call, x: Value, w: Value) -> Value:
    return n.emit("conv", x, w, **window(n, x, w))


def window(n: Call, x: Value, w: Value) -> dict[str, Any]:
    """The attributes of our operator `conv`."""
    rank = x.type.rank - 2
    if w.type.rank != x.type.rank or rank < 1:
        raise ShapeError("input and weight of a convolution differ in rank", got=f"{x.type} and {w.type}")
    kernel = kernel_shape(n, w)
    strides, dilations = n.ints("strides", [1] * rank) or [], n.ints("dilations", [1] * rank) or []
    if len(strides) != rank or len(dilations) != rank:
        raise ShapeError("strides and dilations need one entry for each spatial dimension", expected=rank)
    pads = same_pads(n, x.shape[2:], kernel, strides, dilations)
    if len(pads) != 2 * rank:
        raise ShapeError("pads needs two entries for each spatial dimension", expected=2 * rank, got=pads)
    return {
        "strides": tuple(strides),
        "dilations": tuple(dilations),
        "pads": tuple(pads),
        "groups": n.integer("group", 1),
    }


def add_bias(n: Call, x: Value, bias: Value | None) -> Value:
    """A vector of channels, added along dimension 1."""
    if bias is None:
        return x
    return n.emit("add", x, channels(n, bias, x.type.rank))


def channels(n: Call, v: Value, rank: int) -> Value:
    """A vector of channels shaped to broadcast along dimension 1."""
    if v.type.rank != 1:
        raise ShapeError("a vector with one entry for each channel is needed", got=v.type)
    return n.reshape(v, (1, v.shape[0], *([1] * (rank - 2))))


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
    pads = _transposed_pads(n, x, kernel, strides, dilations, extra)
    convolved = (
        None
        if _by_phases(n, w, strides, dilations)
        else _as_convolution(n, x, w, kernel, strides, dilations, pads, extra)
    )
    if convolved is not None:
        return add_bias(n, convolved, n.optional(2))
    lift = rank == 1
    if lift:
        x, w = (n.reshape(v, (*v.shape[:2], 1, v.shape[2])) for v in (x, w))
    kept = [max(p, 0) for p in pads]
    result = n.emit(
        "conv_transpose",
        x,
        w,
        strides=(1,) * lift + tuple(strides),
        dilations=(1,) * lift + tuple(dilations),
        pads=(*(0,) * lift, *kept[:rank], *(0,) * lift, *kept[rank:]),
        groups=n.integer("group", 1),
        output_padding=(0,) * lift + tuple(extra),
    )
    if lift:
        result = n.reshape(result, (*result.shape[:2], result.shape[3]))
    wider = [max(-p, 0) for p in pads]  # a negative pad widens the result by zeros
    if any(wider):
        result = n.emit(
            "pad",
            result,
            before=dims([0, 0, *wider[:rank]]),
            after=dims([0, 0, *wider[rank:]]),
            mode="constant",
            value=0,
        )
    return add_bias(n, result, n.optional(2))


def _by_phases(n: Call, w: Value, strides: Sequence[int], dilations: Sequence[int]) -> bool:
    """Whether `conv_transpose` has a schedule of its own, phase by phase: images in one group, whose filters fill
    vectors. Of few filters the phases together fill them, as channels of one convolution."""
    wide = (as_int(w.shape[1]) or VECTOR) >= VECTOR
    return wide and w.type.rank <= 4 and n.integer("group", 1) == 1 and set(dilations) <= {1} and max(strides) > 1


VECTOR = 8
"""Filters that about fill a vector register."""


def _as_convolution(
    n: Call,
    x: Value,
    w: Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    extra: Sequence[int],
) -> Value | None:
    """The transpose of a convolution as one convolution with stride 1; None where that does not fit.

    With stride s, output element t (counted from the front of the padding) belongs to phase t mod s and sees the taps
    r, r + s, r + 2s ... of the weight only. The s phases of each dimension become channels of one convolution with the
    taps of each phase, mirrored, whose results are then interleaved. ("Sub-pixel convolution", Shi et al. 2016.)
    """
    rank, groups = len(kernel), n.integer("group", 1)
    if any(s > 1 and d > 1 for s, d in zip(strides, dilations, strict=True)) or min(pads, default=0) < 0:
        return None
    if groups < 1 or not same_dim(dim(x.shape[1] // groups * groups), x.shape[1]) or x.shape[1] is not w.shape[0]:
        return None
    per_phase = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    spans = [(j - 1) * d for j, d in zip(per_phase, dilations, strict=True)]
    # Whole blocks that the padding cuts away in front need not be computed.
    skipped = [min(pads[k] // strides[k], spans[k]) for k in range(rank)]
    after = [((kernel[k] - 1) * dilations[k] + extra[k] - pads[rank + k]) // strides[k] for k in range(rank)]
    if min(after) < 0 or any(e >= max(s, 1) and e for e, s in zip(extra, strides, strict=True)):
        return None
    weight = _phase_weights(n, w, kernel, strides, per_phase, groups)
    before = [span - skip for span, skip in zip(spans, skipped, strict=True)]
    attrs = {"strides": (1,) * rank, "dilations": tuple(dilations), "pads": (*before, *after), "groups": groups}
    y = convolved(n, x, weight, None, attrs)
    y = _interleaved(n, y, strides, groups, w.shape[1])
    for k in range(rank):
        size = (x.shape[2 + k] - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 + extra[k]
        y = n.slice(y, 2 + k, pads[k] - skipped[k] * strides[k], dim(size - pads[k] - pads[rank + k]))
    return y


def _phase_weights(
    n: Call, w: Value, kernel: Sequence[int], strides: Sequence[int], per_phase: Sequence[int], groups: int
) -> Value:
    """[C, F/g, k...] to [g * s... * F/g, C/g, j...]: taps by phase, mirrored."""
    rank = len(kernel)
    channels_in, filters = dim(w.shape[0] // groups), w.shape[1]
    missing = [j * s - k for j, s, k in zip(per_phase, strides, kernel, strict=True)]
    if any(missing):
        w = n.emit("pad", w, before=dims([0] * (2 + rank)), after=dims([0, 0, *missing]), mode="constant", value=0)
    split = [d for j, s in zip(per_phase, strides, strict=True) for d in (j, s)]
    w = n.reshape(w, (groups, channels_in, filters, *split))
    begin = [j - 1 if k % 2 == 0 else 0 for k, j in enumerate(split)]
    step = [-1 if k % 2 == 0 else 1 for k in range(2 * rank)]
    if any(begin):
        w = n.emit("slice", w, begin=dims([0, 0, 0, *begin]), size=w.shape, step=(1, 1, 1, *step))
    taps, phases = [3 + 2 * k for k in range(rank)], [4 + 2 * k for k in range(rank)]
    w = n.transpose(w, (0, *phases, 2, 1, *taps))
    return n.reshape(w, (dim(filters * (groups * math.prod(strides))), channels_in, *per_phase))


def _interleaved(n: Call, y: Value, strides: Sequence[int], groups: int, filters: Expr) -> Value:
    """[N, g * s... * F/g, q...] to [N, F, (q s)...]."""
    if all(s == 1 for s in strides):
        return y
    rank = len(strides)
    batch, _, *blocks = y.shape
    y = n.reshape(y, (batch, groups, *strides, filters, *blocks))
    order = [0, 1, 2 + rank]
    for k in range(rank):
        order += [3 + rank + k, 2 + k]
    y = n.transpose(y, order)
    whole = [dim(q * s) for q, s in zip(blocks, strides, strict=True)]
    return n.reshape(y, (batch, dim(filters * groups), *whole))


def _transposed_pads(
    n: Call, x: Value, kernel: list[int], strides: list[int], dilations: list[int], extra: list[int]
) -> list[int]:
    """Pads so that the result has `output_shape`, or the input's times the stride with auto_pad SAME."""
    rank = len(kernel)
    auto = n.text("auto_pad", "NOTSET")
    wanted = n.ints("output_shape")
    given = n.ints("pads", [0] * 2 * rank) or []
    if wanted is None and auto in ("NOTSET", "VALID"):
        return given if auto == "NOTSET" else [0] * 2 * rank
    if wanted is not None and len(wanted) < rank:
        raise ShapeError("output_shape needs one entry for each spatial dimension", expected=rank, got=wanted)
    before, after = [], []
    for k in range(rank):
        target = x.shape[2 + k] * strides[k] if wanted is None else const(wanted[-rank:][k])
        full = (x.shape[2 + k] - 1) * strides[k] + extra[k] + dilations[k] * (kernel[k] - 1) + 1
        total = as_int(dim(full - target))
        if total is None:
            raise ShapeError("output_shape with a symbolic input is not supported", got=x.type)
        half = max(total, 0) // 2
        before.append(total - half if auto == "SAME_LOWER" else half)
        after.append(half if auto == "SAME_LOWER" else total - half)
    return before + after
