"""Sampling at coordinates that are computed at run time: grid_sample and roi_align."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.dtype import DType, f32, f64, i64
from tilewright.ir.expr import Expr, as_int, call, cast, const, equal, maximum, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import check_kind, dim, dims, need, number, present, same_dim, scalar, wide
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError, UnsupportedError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]

PADDINGS = ("zeros", "border", "reflection")
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
FIRST = {"nearest": 0, "linear": 0, "cubic": -1}
"""The offset of the first tap from the coordinate rounded down, by mode."""
CUBIC = -0.75
"""The parameter a of cubic convolution, as in ONNX's and PyTorch's grid sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSampleAttrs(Attrs):
    """Attributes of `grid_sample`: `mode` is nearest, linear or cubic; `padding` is zeros, border or reflection; with
    `align_corners`, -1 and 1 are the middles of the outermost elements instead of their edges. With border, the taps
    around a coordinate outside are clamped, not the coordinate itself, which makes a difference for cubic.
    `reflects_first`, for nearest: coordinates are reflected and then rounded (PyTorch), not rounded and then reflected
    (ONNX), which differs half way between two elements."""

    mode: str
    padding: str
    align_corners: bool
    reflects_first: bool = False


def _grid_infer(types: Types, attrs: GridSampleAttrs) -> Out:
    """The type rule of `grid_sample`: x [N, C, spatial...] and grid [N, out..., rank], coordinates from -1 to 1, the
    last dimension's first, to [N, C, out...]. `mode` nearest, linear or cubic; `padding` zeros, border or reflection;
    `align_corners`; `reflects_first`."""
    x, grid = present(types[0]), present(types[1])
    check_kind(x.dtype, ("float", "int", "uint") if attrs.mode == "nearest" else ("float",))
    check_kind(grid.dtype, ("float",))
    rank = x.rank - 2
    if rank not in (1, 2, 3) or grid.rank != rank + 2 or as_int(grid.shape[-1]) != rank:
        raise ShapeError("the grid does not fit the input", expected=f"[N, ..., {rank}]", got=f"{grid} for {x}")
    if not same_dim(x.shape[0], grid.shape[0]):
        raise ShapeError("input and grid differ in batch", expected=x.shape[0], got=grid.shape[0])
    if attrs.mode not in TAPS or attrs.padding not in PADDINGS:
        raise UnsupportedError("the mode of GridSample is not supported", got=f"{attrs.mode}, {attrs.padding}")
    if attrs.reflects_first and attrs.mode != "nearest":
        raise UnsupportedError("only places of nearest elements are rounded", got=attrs.mode)
    return (TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1])),)


def _reflected(c: Expr, low: Expr, high: Expr) -> Expr:
    """`c` mirrored at `low` and `high` until it lies between them."""
    span = high - low
    period = maximum(span + span, scalar(1e-30, f64))
    distance = call("abs", c - low)
    rest = distance - call("floor", distance / period) * period
    return low + minimum(rest, period - rest)


def _limits(extent: Expr, attrs: GridSampleAttrs) -> tuple[Expr, Expr]:
    """The lower and upper coordinates at which reflection mirrors, for a dimension of `extent` elements."""
    length = cast(extent, f64)
    if attrs.align_corners:
        return scalar(0, f64), length - 1.0
    return scalar(-0.5, f64), length - 0.5


def _coordinate(g: Expr, extent: Expr, attrs: GridSampleAttrs) -> Expr:
    """A grid coordinate in units of input elements. NaN (with reflection, infinity too) counts as outside for nearest;
    where coordinates are clamped, it becomes the first element as in PyTorch; otherwise the result is NaN."""
    g, length = cast(g, f64), cast(extent, f64)
    c = (g + 1.0) * 0.5 * (length - 1.0) if attrs.align_corners else ((g + 1.0) * length - 1.0) * 0.5
    if attrs.mode == "nearest" and not attrs.reflects_first:
        c = call("round", c)
    if attrs.padding == "border" and attrs.mode != "cubic":
        c = minimum(maximum(c, scalar(0, f64)), length - 1.0)
    c = _reflected(c, *_limits(extent, attrs)) if attrs.padding == "reflection" else c
    c = call("round", c) if attrs.reflects_first else c
    nowhere = _nowhere(attrs)
    return c if nowhere is None else select(call("isnan", c), scalar(nowhere, f64), c)


def _nowhere(attrs: GridSampleAttrs) -> float | None:
    """The coordinate that takes the place of a NaN; None if a NaN stays one."""
    if attrs.padding == "zeros":
        return -4.0 if attrs.mode == "nearest" else None
    return None if attrs.mode == "cubic" else 0.0


def _weights(fraction: Expr, mode: str) -> list[Expr]:
    """The weights of the taps of interpolation by `mode` ("nearest", "linear" or "cubic") for a coordinate that exceeds
    its integer part by `fraction`."""
    if mode == "nearest":
        return [scalar(1, f64)]
    if mode == "linear":
        return [scalar(1, f64) - fraction, fraction]
    return [_cubic(call("abs", fraction - float(k))) for k in range(-1, 3)]


def _cubic(d: Expr) -> Expr:
    """The weight of a tap at distance `d`, by cubic convolution."""
    inner = ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1.0
    outer = ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC
    return select(d <= 1.0, inner, outer)


def _tap(at: Expr, extent: Expr, attrs: GridSampleAttrs) -> tuple[Expr, Expr]:
    """(index, whether it lies inside) of a tap at position `at` along a dimension of `extent` elements."""
    if attrs.padding == "reflection":
        at = _reflected(at, *_limits(extent, attrs))
    # Far away places must not wrap when they become integers.
    at = minimum(maximum(at, scalar(-4, f64)), cast(extent, f64) + 4.0)
    index = cast(call("round", at), i64)
    inside = (index >= 0) & (index < extent) if attrs.padding == "zeros" else const(True)
    return minimum(maximum(index, 0), extent - 1), inside


def tap_of(g: Expr, t: Expr, extent: Expr, attrs: GridSampleAttrs) -> tuple[Expr, Expr]:
    """(index, weight) of tap number `t` of the coordinate `g` along a dimension of `extent` elements; the index is -1
    if the tap counts as zero."""
    at = _coordinate(g, extent, attrs)
    floor, step = call("floor", at), cast(t + FIRST[attrs.mode], f64)
    index, inside = _tap(floor + step, extent, attrs)
    fraction = at - floor
    weight: Expr = scalar(1, f64)
    if attrs.mode == "linear":
        weight = select(equal(t, 0), scalar(1, f64) - fraction, fraction)
    elif attrs.mode == "cubic":
        weight = _cubic(call("abs", fraction - step))
    return select(inside, index, const(-1)), weight


def _grid_compute(inputs: Tensors, attrs: GridSampleAttrs, out: Out) -> tuple[Tensor, ...]:
    x, grid, (type,) = need(inputs[0]), need(inputs[1]), out
    rank, mode = x.ndim - 2, attrs.mode
    first = FIRST[mode]
    shape = (x.shape[0], *type.shape[2:])
    acc = f64 if x.dtype is f64 else f32

    def stage(k: int) -> Tensor:
        which = const(rank - 1 - k)
        return te.compute(shape, lambda *i: _coordinate(grid[(*i, which)], x.shape[2 + k], attrs), name=f"place{k}")  # type: ignore[no-any-return]

    places = [stage(k) for k in range(rank)]

    def element(n: Expr, c: Expr, *space: Expr) -> Expr:
        axes = []
        for k in range(rank):
            at = places[k][(n, *space)]
            floor = call("floor", at)
            taps = [_tap(floor + float(first + t), x.shape[2 + k], attrs) for t in range(TAPS[mode])]
            axes.append(list(zip(taps, _weights(at - floor, mode), strict=True)))
        total: Expr | None = None
        for corner in itertools.product(*axes):
            inside: Expr = const(True)
            weight: Expr = scalar(1, f64)
            for (_, valid), w in corner:
                inside, weight = inside & valid, w if weight is scalar(1, f64) else weight * w
            value = select(inside, x[(n, c, *(index for (index, _), _ in corner))], scalar(0, x.dtype))
            term = cast(value, acc) * cast(weight, acc)
            total = term if total is None else total + term
        assert total is not None
        return cast(total, type.dtype)

    return (te.compute(type.shape, lambda *i: element(*i), name="grid_sample"),)


def _grid_numpy(arrays: Sequence[Any], attrs: GridSampleAttrs) -> tuple[Any, ...]:
    array = np.asarray(arrays[0])
    x, grid = wide(array), np.asarray(arrays[1]).astype(np.float64)
    rank, mode = x.ndim - 2, attrs.mode
    axes = [known_taps(grid[..., rank - 1 - k], x.shape[2 + k], attrs) for k in range(rank)]
    indices, inside, weights = zip(*axes, strict=True)
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * rank)
    y = np.zeros((*grid.shape[:-1], x.shape[1]), np.float64)
    for corner in itertools.product(range(TAPS[mode]), repeat=rank):
        place = tuple(indices[k][..., t] for k, t in enumerate(corner))
        valid = np.logical_and.reduce([inside[k][..., t] for k, t in enumerate(corner)])
        weight = math.prod(weights[k][..., t] for k, t in enumerate(corner))
        values = x[(batch, slice(None), *place)]
        y += np.where(valid[..., None], values, 0) * np.asarray(weight)[..., None]
    return (np.ascontiguousarray(np.moveaxis(y, -1, 1)).astype(array.dtype),)


def known_taps(g: Any, length: int, attrs: GridSampleAttrs) -> tuple[Any, Any, Any]:
    """The taps of coordinates `g` along a dimension of `length` elements: indices, which of them lie inside, and
    weights, [..., taps] each."""
    first = FIRST[attrs.mode]
    c = (g + 1) / 2 * (length - 1) if attrs.align_corners else ((g + 1) * length - 1) / 2
    c = np.rint(c) if attrs.mode == "nearest" and not attrs.reflects_first else c
    low, high = (0.0, length - 1.0) if attrs.align_corners else (-0.5, length - 0.5)
    c = np.clip(c, 0, length - 1) if attrs.padding == "border" and attrs.mode != "cubic" else c
    c = _mirror(c, low, high) if attrs.padding == "reflection" else c
    c = np.rint(c) if attrs.reflects_first else c
    nowhere = _nowhere(attrs)
    c = c if nowhere is None else np.where(np.isnan(c), nowhere, c)
    floor = np.floor(c)
    at = floor[..., None] + first + np.arange(TAPS[attrs.mode])
    at = _mirror(at, low, high) if attrs.padding == "reflection" else at
    at = np.rint(np.clip(at, -4, length + 4)).astype(np.int64)
    inside = (at >= 0) & (at < length) if attrs.padding == "zeros" else np.ones(at.shape, bool)
    return np.clip(at, 0, length - 1), inside, _tap_weights(c - floor, attrs.mode)


def _mirror(c: Any, low: float, high: float) -> Any:
    period = max(2 * (high - low), 1e-30)
    rest = np.abs(c - low) % period
    return low + np.minimum(rest, period - rest)


def _tap_weights(fraction: Any, mode: str) -> Any:
    if mode == "nearest":
        return np.ones((*fraction.shape, 1))
    if mode == "linear":
        return np.stack([1 - fraction, fraction], axis=-1)
    d = np.abs(fraction[..., None] - np.arange(-1, 3))
    inner = ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1
    outer = ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC
    return np.where(d <= 1, inner, outer)


register(OpDef("grid_sample", "injective", GridSampleAttrs, _grid_infer, _grid_numpy, compute=_grid_compute))


# --- regions of interest --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoiAlignAttrs(Attrs):
    """Attributes of `roi_align`, which divides regions of an image into `height` x `width` cells, takes `samples`
    samples along each side of a cell and reduces them by `mode`, avg or max. `scale` is the number of pixels for a unit
    of the regions' coordinates; `half_pixel` shifts coordinates by half a pixel. Where an input gives each region its
    own number of samples, `samples` is the number that is evaluated: all, or at least all that lie in the image."""

    height: int
    width: int
    samples: Dim
    scale: float
    mode: str
    half_pixel: bool


def _roi_infer(types: Types, attrs: RoiAlignAttrs) -> Out:
    """The type rule of `roi_align`: x [N, C, H, W], regions [R, 4] (x1, y1, x2, y2), batch entries [R], samples along
    both sides of a cell of each region [R, 2]? (x, y) to [R, C, height, width]. Attributes `height`, `width`, `samples`
    (along each side of a cell), `scale`, `half_pixel`, `mode` avg or max."""
    x, rois, batch = (present(types[k]) for k in range(3))
    check_kind(x.dtype, ("float",))
    if x.rank != 4 or rois.rank != 2 or as_int(rois.shape[1]) != 4 or batch.rank != 1 or rois.dtype is not x.dtype:
        raise ShapeError(
            "roi_align needs an image, regions [R, 4] and their batch entries", got=f"{x}, {rois}, {batch}"
        )
    counts = types[3] if len(types) > 3 else None
    if counts is not None and (counts.dtype is not i64 or counts.rank != 2 or as_int(counts.shape[1]) != 2):
        raise ShapeError("roi_align needs two numbers of samples for each region", got=counts)
    return (TensorType(x.dtype, (rois.shape[0], x.shape[1], *dims((attrs.height, attrs.width)))),)


def most_samples(height: Expr, width: Expr) -> Expr:
    """The largest number of samples along one side of a cell that may lie in an image of `height` x `width`, as
    neighbouring samples differ by half a pixel or more."""
    return (height + width) * 2 + 6


def _first_sample(begin: Any, step: Any, count: Any, most: Any, t: DType) -> Expr:
    """The first sample to evaluate of the `count` along one side of a cell, sample k being at `begin` + (k + 1/2)
    `step`: 0 if there are at most `most`, else one not after the first sample in the image."""
    floor = call("floor", (scalar(-1, t) - begin) / step - 0.5)
    first = cast(minimum(maximum(floor, scalar(0, t)), cast(count, t)), i64)
    return select(count <= most, const(0), first)


def _roi_compute(inputs: Tensors, attrs: RoiAlignAttrs, out: Out) -> tuple[Tensor, ...]:
    x, rois, batch, (type,) = need(inputs[0]), need(inputs[1]), need(inputs[2]), out
    counts = inputs[3] if len(inputs) > 3 else None
    t, samples = x.dtype, dim(attrs.samples)
    offset = 0.5 if attrs.half_pixel else 0.0

    def along(r: Expr, cell: Expr, sample: Expr, which: int, cells: int) -> tuple[Expr, Expr]:
        """(the coordinate of a sample, whether that sample exists) in x (`which` is 0) or y (1), for number `sample` of
        the samples in the cell `cell` of `cells` in region `r`."""
        start = rois[r, const(which)] * attrs.scale - offset
        length = rois[r, const(which + 2)] * attrs.scale - offset - start
        if not attrs.half_pixel:
            length = maximum(length, scalar(1, t))
        size: Expr = length / scalar(cells, t)
        if counts is None:
            return start + size * (cast(cell, t) + (cast(sample, t) + 0.5) / cast(samples, t)), const(True)
        count = counts[r, const(which)]
        begin, step = start + size * cast(cell, t), size / cast(maximum(count, 1), t)
        sample = sample + _first_sample(begin, step, count, samples, t)
        return begin + step * (cast(sample, t) + 0.5), sample < count

    def corners(c: Expr, extent: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """(lower index, upper index, weight of the upper one, whether the sample counts) of a coordinate `c` along a
        dimension of `extent` pixels."""
        valid = (c >= -1.0) & (c <= cast(extent, t))
        c = minimum(maximum(c, scalar(0, t)), cast(extent - 1, t))
        low = minimum(maximum(cast(call("floor", c), i64), 0), extent - 1)
        return low, minimum(low + 1, extent - 1), c - cast(low, t), valid

    sy, sx = te.reduce_axis(samples, "sy"), te.reduce_axis(samples, "sx")

    def element(r: Expr, c: Expr, h: Expr, w: Expr) -> Any:
        n = minimum(maximum(cast(batch[r], i64), 0), x.shape[0] - 1)
        (y, is_y), (z, is_x) = along(r, h, sy.var, 1, attrs.height), along(r, w, sx.var, 0, attrs.width)
        y0, y1, fy, in_y = corners(y, x.shape[2])
        x0, x1, fx, in_x = corners(z, x.shape[3])
        one = scalar(1, t)
        parts = [
            x[n, c, y0, x0] * ((one - fy) * (one - fx)),
            x[n, c, y0, x1] * ((one - fy) * fx),
            x[n, c, y1, x0] * (fy * (one - fx)),
            x[n, c, y1, x1] * (fy * fx),
        ]
        exists, inside = is_y & is_x, in_y & in_x
        if attrs.mode == "avg":
            value = parts[0] + parts[1] + parts[2] + parts[3]
            return te.sum(select(exists & inside, value, scalar(0, t)), axis=[sy, sx])
        value = maximum(maximum(parts[0], parts[1]), maximum(parts[2], parts[3]))
        value = select(inside, value, scalar(0, t))
        return te.max(value if counts is None else select(exists, value, const(t.min, t)), axis=[sy, sx])

    total = te.compute(type.shape, element, name="total")
    if counts is None and attrs.mode == "max":
        return (total,)
    if counts is None:
        share = scalar(1 / number(attrs.samples) ** 2, t)
        return (te.compute(type.shape, lambda *i: total[i] * share, name="roi_align"),)

    def of_all(r: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        """The mean or the maximum of all samples of the cell (h, w) of region `r` in channel `c`; samples outside of
        the image count as 0."""
        wide, high = counts[r, const(0)], counts[r, const(1)]
        if attrs.mode == "avg":
            return total[r, c, h, w] / cast(maximum(wide * high, 1), t)  # type: ignore[no-any-return]
        left_out = (wide > samples) | (high > samples)
        value = select(left_out, maximum(total[r, c, h, w], scalar(0, t)), total[r, c, h, w])
        return select((wide < 1) | (high < 1), scalar(0, t), value)

    return (te.compute(type.shape, of_all, name="roi_align"),)


def _roi_numpy(arrays: Sequence[Any], attrs: RoiAlignAttrs) -> tuple[Any, ...]:
    x, rois, batch = (np.asarray(a) for a in arrays[:3])
    most = number(attrs.samples)
    samples = np.asarray(arrays[3]) if len(arrays) > 3 and arrays[3] is not None else np.full((len(rois), 2), most)
    y = np.zeros((len(rois), x.shape[1], attrs.height, attrs.width), np.float64)
    for r, region in enumerate(rois.astype(np.float64) * attrs.scale - (0.5 if attrs.half_pixel else 0.0)):
        image = x[np.clip(batch[r], 0, x.shape[0] - 1)].astype(np.float64)
        length = region[2:] - region[:2] if attrs.half_pixel else np.maximum(region[2:] - region[:2], 1)
        sizes, counts = length / [attrs.width, attrs.height], samples[r]
        for h, w in np.ndindex(attrs.height, attrs.width):
            if min(counts) < 1:
                continue
            begin = region[:2] + sizes * [w, h]
            (x0, x1, fx, in_x), (y0, y1, fy, in_y) = (
                _roi_samples(begin[k], sizes[k] / counts[k], int(counts[k]), most, x.shape[3 - k]) for k in (0, 1)
            )
            fy, in_y = fy[:, None], in_y[:, None]
            parts = [
                image[:, y0[:, None], x0] * ((1 - fy) * (1 - fx)),
                image[:, y0[:, None], x1] * ((1 - fy) * fx),
                image[:, y1[:, None], x0] * (fy * (1 - fx)),
                image[:, y1[:, None], x1] * (fy * fx),
            ]
            values = np.where(in_y & in_x, sum(parts) if attrs.mode == "avg" else np.maximum.reduce(parts), 0)
            if attrs.mode == "avg":
                y[r, :, h, w] = values.sum(axis=(1, 2)) / (int(counts[0]) * int(counts[1]))
            else:
                y[r, :, h, w] = np.maximum(values.max(axis=(1, 2)), 0 if max(counts) > most else -np.inf)
    return (y.astype(x.dtype),)


def _roi_samples(begin: float, step: float, count: int, most: int, extent: int) -> tuple[Any, Any, Any, Any]:
    """The evaluated samples along one side of a cell, as arrays: the two pixels that each lies between, the weight of
    the second, and whether it lies in the image of `extent` pixels. Of `count` samples, at `begin` + (k + 1/2) `step`,
    at most `most` are evaluated, from one not after the first in the image."""
    first = 0 if count <= most else int(np.clip(np.floor((-1 - begin) / step - 0.5), 0, count))
    c = begin + step * (np.arange(first, min(first + most, count)) + 0.5)
    valid = (c >= -1) & (c <= extent)
    c = np.clip(c, 0, extent - 1)
    low = np.floor(c).astype(np.int64)
    return low, np.minimum(low + 1, extent - 1), c - low, valid


register(OpDef("roi_align", "reduction", RoiAlignAttrs, _roi_infer, _roi_numpy, compute=_roi_compute))


# --- maxima of regions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoiMaxAttrs(Attrs):
    """Attributes of `roi_max_pool`: each region has `height` x `width` cells, and one unit of its coordinates is
    `scale` pixels."""

    height: int
    width: int
    scale: float


def _roi_max_infer(types: Types, attrs: RoiMaxAttrs) -> Out:
    """The type rule of `roi_max_pool`: x [N, C, H, W] and regions [R, 5] (batch entry, x1, y1, x2, y2) to [R, C,
    height, width], the maxima of whole pixels (Girshick 2015); 0 where a cell has none. Attributes `height`, `width`,
    `scale`."""
    x, rois = present(types[0]), present(types[1])
    check_kind(x.dtype, ("float",))
    if x.rank != 4 or rois.rank != 2 or as_int(rois.shape[1]) != 5 or rois.dtype is not x.dtype:
        raise ShapeError("roi_max_pool needs an image and regions [R, 5]", got=f"{x}, {rois}")
    if min(attrs.height, attrs.width) < 1:
        raise ShapeError("a region has at least one cell", got=f"{attrs.height}, {attrs.width}")
    return (TensorType(x.dtype, (rois.shape[0], x.shape[1], *dims((attrs.height, attrs.width)))),)


def _roi_max_compute(inputs: Tensors, attrs: RoiMaxAttrs, out: Out) -> tuple[Tensor, ...]:
    """The stages of `roi_max_pool`: a cell is a rectangle, so that columns are reduced first, then rows."""
    x, rois, (type,) = need(inputs[0]), need(inputs[1]), out
    t, least, (regions, channels) = x.dtype, const(x.dtype.min, x.dtype), type.shape[:2]

    def whole(v: Expr) -> Expr:
        """The nearest integer, halves away from 0."""
        v = minimum(maximum(v, scalar(-FARTHEST, t)), scalar(FARTHEST, t))
        up = cast(call("floor", call("abs", v) + 0.5), i64)
        return select(v < 0.0, 0 - up, up)

    def ends(r: Expr, cell: Expr, which: int, cells: int, extent: Expr) -> tuple[Expr, Expr]:
        """(first pixel, pixel after the last) of the cell `cell` of `cells` in region `r` along x (`which` is 0) or y
        (1), limited to an image of `extent` pixels."""
        start = whole(rois[r, const(1 + which)] * attrs.scale)
        length = cast(maximum(whole(rois[r, const(3 + which)] * attrs.scale) - start + 1, 1), t) / scalar(cells, t)
        low = cast(call("floor", cast(cell, t) * length), i64) + start
        high = cast(call("ceil", cast(cell + 1, t) * length), i64) + start
        return minimum(maximum(low, 0), extent), minimum(maximum(high, 0), extent)

    def columns(r: Expr, c: Expr, h: Expr, w: Expr) -> Any:
        low, high = ends(r, h, 1, attrs.height, x.shape[2])
        n = minimum(maximum(cast(rois[r, const(0)], i64), 0), x.shape[0] - 1)
        inside = (row.var >= low) & (row.var < high)
        return te.max(select(inside, x[n, c, row.var, w], least), axis=[row])

    def rows(r: Expr, c: Expr, h: Expr, w: Expr) -> Any:
        low, high = ends(r, w, 0, attrs.width, x.shape[3])
        return te.max(
            select((column.var >= low) & (column.var < high), tall[r, c, h, column.var], least), axis=[column]
        )

    def filled(r: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        """The maximum of the cell (h, w) of region `r` in channel `c`; 0 if the cell is empty."""
        (top, bottom), (left, right) = ends(r, h, 1, attrs.height, x.shape[2]), ends(r, w, 0, attrs.width, x.shape[3])
        return select((top < bottom) & (left < right), most[r, c, h, w], scalar(0, t))

    row, column = te.reduce_axis(x.shape[2], "y"), te.reduce_axis(x.shape[3], "x")
    tall = te.compute((regions, channels, *dims((attrs.height,)), x.shape[3]), columns, name="columns")
    most = te.compute(type.shape, rows, name="rows")
    return (te.compute(type.shape, filled, name="roi_max_pool"),)


FARTHEST = 2.0**30
"""The largest magnitude of the coordinates of regions; larger ones are clamped."""


def _roi_max_numpy(arrays: Sequence[Any], attrs: RoiMaxAttrs) -> tuple[Any, ...]:
    x, rois = (np.asarray(a) for a in arrays)
    y = np.zeros((len(rois), x.shape[1], attrs.height, attrs.width), x.dtype)
    for r, (entry, *corners) in enumerate(rois):
        scaled = np.clip(np.array(corners, x.dtype) * x.dtype.type(attrs.scale), -FARTHEST, FARTHEST)
        place = (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(np.int64)
        lengths = np.maximum(place[2:] - place[:2] + 1, 1).astype(x.dtype)
        sizes = lengths / np.array([attrs.width, attrs.height], x.dtype)
        image = x[np.clip(int(entry), 0, x.shape[0] - 1)]
        for h, w in np.ndindex(attrs.height, attrs.width):
            low = np.floor(np.array([w, h], x.dtype) * sizes).astype(np.int64) + place[:2]
            high = np.ceil(np.array([w + 1, h + 1], x.dtype) * sizes).astype(np.int64) + place[:2]
            (x0, y0), (x1, y1) = (np.clip(v, 0, [x.shape[3], x.shape[2]]) for v in (low, high))
            if x0 < x1 and y0 < y1:
                y[r, :, h, w] = image[:, y0:y1, x0:x1].max(axis=(1, 2))
    return (y,)


register(OpDef("roi_max_pool", "reduction", RoiMaxAttrs, _roi_max_infer, _roi_max_numpy, compute=_roi_max_compute))
