"""Rules for the deformable convolution, determinants of up to 4 rows, and the weights of mel spectrograms."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.common.contraction import add_bias
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.contraction import window
from tilewright.frontend.onnx.scope import Item, known_item
from tilewright.frontend.onnx.tensors import element_type
from tilewright.ir.dtype import f64
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, dims, static
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError


@rule("DeformConv")
def deform_conv(n: Call) -> Value:
    """A convolution whose taps are read at places moved by `offset`, between the pixels, and multiplied by `mask`.

    For each tap and each pixel of the result one sample of the image is taken, zero outside of it; the samples are the
    columns of a product with the weights. (Dai et al. 2017; Zhu et al. 2018.)
    """
    x, w, offset = n.value(0), n.value(1), n.value(2)
    if x.type.rank != 4 or w.type.rank != 4 or offset.type.rank != 4:
        raise UnsupportedError("DeformConv of other than images is not supported", got=x.type)
    x, attrs = window(n, x, w)
    sets = n.integer("offset_group", 1)
    batch, channels = x.shape[0], static(x.shape[1], "the channels of DeformConv")
    (kh, kw), groups = (static(d, "the kernel") for d in w.shape[2:]), attrs["groups"]
    taps, rows, columns = kh * kw, offset.shape[2], offset.shape[3]
    if sets < 1 or channels % sets or groups < 1 or channels % groups:
        raise ShapeError("the channels do not divide into groups", got=f"{channels}, {sets}, {groups}")
    moved = n.reshape(offset, (dim(batch * sets), taps, 2, rows, columns))
    grid = [_places(n, x, moved, attrs, k, (kh, kw)) for k in (1, 0)]  # x before y
    points = n.reshape(n.emit("concat", *grid, axis=4), (dim(batch * sets), dim(rows * taps), columns, 2))
    image = n.reshape(x, (dim(batch * sets), channels // sets, *x.shape[2:]))
    samples = n.emit("grid_sample", image, points, mode="linear", padding="zeros", align_corners=False)
    samples = n.reshape(samples, (dim(batch * sets), channels // sets, taps, rows, columns))
    if n.has(4):
        samples = n.emit("mul", samples, n.reshape(n.value(4), (dim(batch * sets), 1, taps, rows, columns)))
    wide = dims((batch, groups, channels // groups * taps, rows * columns))
    filters = n.reshape(w, (groups, dim(w.shape[0] // groups), channels // groups * taps))
    y = n.emit("matmul", filters, n.reshape(samples, wide))
    return add_bias(n, n.reshape(y, (batch, w.shape[0], rows, columns)), n.optional(3))


def _places(
    n: Call, x: Value, moved: Value, attrs: dict[str, tuple[int, ...]], k: int, kernel: tuple[int, int]
) -> Value:
    """The coordinates along spatial dimension `k` at which a deformable convolution with windows `kernel` and
    attributes `attrs` reads each tap for each pixel: the regular position plus the offset in `moved`, scaled to -1..1
    over the image `x`, as f64."""
    rank = 2
    extent = static(x.shape[2 + k], "the image of DeformConv")
    pixels = moved.shape[3 + k]
    line = n.emit("range", start=-attrs["pads"][k], step=attrs["strides"][k], size=pixels, dtype=f64)
    line = n.reshape(line, [pixels if j == k else 1 for j in range(rank)])
    tap = np.arange(kernel[k], dtype=np.float64) * attrs["dilations"][k]
    taps = np.broadcast_to(tap[:, None] if k == 0 else tap[None, :], kernel).reshape(-1, 1, 1)
    place = n.emit("add", line, n.constant(taps, f64))
    shift = n.reshape(n.slice(moved, 2, k, 1), (*moved.shape[:2], *moved.shape[3:]))
    place = n.emit("add", n.cast(shift, f64), place)
    scaled = n.emit("mul", n.emit("add", place, n.like(0.5, place)), n.like(2 / extent, place))
    return n.reshape(n.emit("sub", scaled, n.like(1.0, place)), (*place.shape, 1))


MAX_DETERMINANT = 4
"""Rows of a matrix whose determinant is written out by cofactors."""


@rule("Det")
def determinant(n: Call) -> Value:
    x = n.value(0)
    if x.type.rank < 2:
        raise ShapeError("a determinant needs matrices", got=x.type)
    rows, columns = (static(d, "the matrices of Det") for d in x.shape[-2:])
    if rows != columns:
        raise ShapeError("a determinant needs square matrices", got=x.type)
    if not 1 <= rows <= MAX_DETERMINANT:
        raise UnsupportedError("Det of large matrices is not supported", expected=f"1 to {MAX_DETERMINANT}", got=rows)
    rank, lead = x.type.rank, x.shape[:-2]

    def entry(i: int, j: int) -> Value:
        return n.reshape(n.slice(n.slice(x, rank - 2, i, 1), rank - 1, j, 1), lead)

    def minor(i: int, chosen: tuple[int, ...]) -> Value:
        """The determinant of a submatrix: rows from `i` on, and the columns in `chosen`."""
        if len(chosen) == 1:
            return entry(i, chosen[0])
        total: Value | None = None
        for place, j in enumerate(chosen):
            term = n.emit("mul", entry(i, j), minor(i + 1, chosen[:place] + chosen[place + 1 :]))
            total = term if total is None else n.emit("sub" if place % 2 else "add", total, term)
        assert total is not None
        return total

    return minor(0, tuple(range(rows)))


@rule("MelWeightMatrix")
def mel_weights(n: Call) -> list[Item]:
    """`MelWeightMatrix`: for each bin of a spectrum its weights in triangular filters that are evenly spaced on the mel
    scale. The inputs must be known when compiling."""
    bins, length, rate, low, high = (n.number(i, "an input of MelWeightMatrix") for i in range(5))
    if any(v is None for v in (bins, length, rate, low, high)):
        raise ModelError("an input of MelWeightMatrix is missing")
    if not (0 < bins <= 1 << 16 and 0 < length <= 1 << 20 and rate > 0 and 0 <= low <= high):
        what = "such inputs of MelWeightMatrix are not supported"  # ONNX Runtime knows which of them make sense
        raise UnsupportedError(what, got=f"{bins}, {length}, {rate}, {low}, {high}")
    first, last = (2595 * np.log1p(f / 700) / np.log(10) for f in (low, high))
    mels = np.arange(bins + 2) * ((last - first) / (bins + 2)) + first
    edges = (((length + 1) * (700 * np.expm1(mels / 2595 * np.log(10)))) // rate).astype(int)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    place = np.arange(length // 2 + 1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising, falling = (place - left) / (centre - left), (right - place) / (right - centre)
    table = np.where((left <= place) & (place <= centre) & (centre > left), rising, 0.0)
    table = np.where((centre == left) & (place == centre), 1.0, table)
    table = np.where((centre <= place) & (place < right), falling, table)
    return [known_item(table, element_type(n.integer("output_datatype", 1)))]


__all__ = ["deform_conv", "determinant", "mel_weights"]
