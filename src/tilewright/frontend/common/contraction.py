"""Matrix products and convolutions in terms of Tilewright's operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, dims, same_dim, static
from tilewright.support.errors import ShapeError


def product(n: Emitter, a: Value, b: Value, dtype: DType | None = None) -> Value:
    """NumPy's matrix product: a vector on the left is a row, one on the right a column. `dtype`: a wider element type
    for sums and result (`ops/matmul.py`)."""
    if a.type.rank == 0 or b.type.rank == 0:
        raise ShapeError("a matrix product of a scalar", got=f"{a.type} and {b.type}")
    row, column = a.type.rank == 1, b.type.rank == 1
    if row:
        a = n.reshape(a, (1, *a.shape))
    if column:
        b = n.reshape(b, (*b.shape, 1))
    result = n.emit("matmul", a, b, dtype=dtype)
    shape = result.shape
    if row:
        shape = (*shape[:-2], shape[-1])
    if column:
        shape = shape[:-1]
    return n.reshape(result, shape)


def convolved(n: Emitter, x: Value, w: Value, bias: Value | None, attrs: dict[str, Any]) -> Value:
    """The convolution of `x` by `w`, plus `bias`. One spatial dimension becomes two, the first of extent 1, so that the
    schedules for images serve both."""
    if x.type.rank != 3:
        return add_bias(n, n.emit("conv", x, w, **attrs), bias)
    image, filters = n.reshape(x, (*x.shape[:2], 1, x.shape[2])), n.reshape(w, (*w.shape[:2], 1, w.shape[2]))
    flat: dict[str, Any] = {
        "strides": (1, *attrs["strides"]),
        "dilations": (1, *attrs["dilations"]),
        "pads": (0, attrs["pads"][0], 0, attrs["pads"][1]),
        **{name: attrs[name] for name in ("groups", "exactness") if name in attrs},
    }
    result = add_bias(n, n.emit("conv", image, filters, **flat), bias)
    return n.reshape(result, (*result.shape[:2], result.shape[3]))


def add_bias(n: Emitter, x: Value, bias: Value | None) -> Value:
    """`x` plus the vector `bias`, one number for each channel (dimension 1)."""
    if bias is None:
        return x
    return n.emit("add", x, channels(n, bias, x.type.rank))


def channels(n: Emitter, v: Value, rank: int) -> Value:
    """The vector `v`, of one number for each channel, as [1, channels, 1, ...] of `rank` dimensions."""
    if v.type.rank != 1:
        raise ShapeError("a vector with one entry for each channel is needed", got=v.type)
    return n.reshape(v, (1, v.shape[0], *([1] * (rank - 2))))


def conv_transpose(
    n: Emitter,
    x: Value,
    w: Value,
    bias: Value | None,
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> Value:
    """Emit the transpose of a convolution of `groups` groups with the filters `w`, plus `bias`, and return its result.
    `strides` and `dilations` have an entry for each spatial dimension. `pads` (befores, then afters) may be negative,
    which widens the result by zeros; `extra` (output_padding) is added after."""
    rank = x.type.rank - 2
    kernel = [static(d, "the kernel of a convolution") for d in w.shape[2:]]
    if not _by_phases(w, strides, dilations, groups):
        match = _as_convolution(n, x, w, bias, kernel, strides, dilations, pads, extra, groups)
        if match is not None:
            return match
    lift = rank == 1
    if lift:
        x, w = (n.reshape(v, (*v.shape[:2], 1, v.shape[2])) for v in (x, w))
    retained = [max(p, 0) for p in pads]
    result = n.emit(
        "conv_transpose",
        x,
        w,
        strides=(1,) * lift + tuple(strides),
        dilations=(1,) * lift + tuple(dilations),
        pads=(*(0,) * lift, *retained[:rank], *(0,) * lift, *retained[rank:]),
        groups=groups,
        output_padding=(0,) * lift + tuple(extra),
    )
    if lift:
        result = n.reshape(result, (*result.shape[:2], result.shape[3]))
    wider = [max(-p, 0) for p in pads]
    if any(wider):
        before, after = dims([0, 0, *wider[:rank]]), dims([0, 0, *wider[rank:]])
        result = n.emit("pad", result, before=before, after=after, mode="constant", value=0)
    return add_bias(n, result, bias)


def _by_phases(w: Value, strides: Sequence[int], dilations: Sequence[int], groups: int) -> bool:
    """Whether `conv_transpose` with the filters `w` has a schedule that computes it phase by phase: images in one group
    whose filters fill a vector register. With fewer filters, the channels of all phases in one convolution fill it
    instead."""
    wide = (as_int(w.shape[1]) or VECTOR) >= VECTOR
    return wide and w.type.rank <= 4 and groups == 1 and set(dilations) <= {1} and max(strides) > 1


VECTOR = 8
"""Filters that about fill a vector register."""


def _as_convolution(
    n: Emitter,
    x: Value,
    w: Value,
    bias: Value | None,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> Value | None:
    """A transposed convolution as an ordinary one of stride 1, whose filters compute all phases of the output, which
    are then interleaved; None for attributes that this does not cover.

    With stride s, output element t (counted from the front of the padding) belongs to phase t mod s and sees the taps
    r, r + s, r + 2s ... of the weight only. The s phases of each dimension become channels of one convolution with the
    taps of each phase, mirrored, whose results are then interleaved. ("Sub-pixel convolution", Shi et al. 2016.)
    """
    rank = len(kernel)
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
    phases = None
    if bias is not None:
        filters = dim(w.shape[1] * groups)
        if bias.type.rank != 1 or not same_dim(bias.shape[0], filters):
            return None
        phases = n.reshape(bias, (groups, *([1] * rank), w.shape[1]))
        phases = n.emit("broadcast", phases, shape=dims((groups, *strides, w.shape[1])))
        phases = n.reshape(phases, (weight.shape[0],))
    y = convolved(n, x, weight, phases, attrs)
    y = _interleaved(n, y, strides, groups, w.shape[1])
    for k in range(rank):
        size = (x.shape[2 + k] - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 + extra[k]
        y = n.slice(y, 2 + k, pads[k] - skipped[k] * strides[k], dim(size - pads[k] - pads[rank + k]))
    return y


def _phase_weights(
    n: Emitter, w: Value, kernel: Sequence[int], strides: Sequence[int], per_phase: Sequence[int], groups: int
) -> Value:
    """The weights `w` of a transposed convolution with windows `kernel`, [C, F/g, k...], as the weights of the
    convolution by which `_as_convolution` computes all phases, [g * s... * F/g, C/g, j...], for g `groups` and
    `strides` s: each phase has every s-th tap, `per_phase` of them, in reverse order."""
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


def _interleaved(n: Emitter, y: Value, strides: Sequence[int], groups: int, filters: Expr) -> Value:
    """The image [N, F, (q s)...] from the outputs of all phases, [N, g * s... * F/g, q...], which lie in `y` one after
    another, for g `groups` of `filters` (F/g) and `strides` s; each phase has every s-th element."""
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
