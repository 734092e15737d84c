"""Rules for sampling, Fourier transforms, col2im, unpooling, caches."""

from __future__ import annotations

import math

from tilewright.frontend.common.resize import affine_places
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import check, rule
from tilewright.frontend.onnx.scope import Item
from tilewright.ir.dtype import f64, i64
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of, dim, dims, is_size, static
from tilewright.ops.sample import most_samples
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError

SAMPLES_LIMIT = 1 << 30
"""The largest number of samples along a side of a cell, so that the product of two fits an i64."""
_MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}


@rule("GridSample")
def grid_sample(n: Call) -> Value:
    mode = n.text("mode", "linear")
    x = n.value(0)
    x = n.nonempty(x, range(2, x.type.rank))
    y = n.emit(
        "grid_sample",
        x if x.dtype.is_float else n.cast(x, f64),
        n.value(1),
        mode=_MODES.get(mode, mode),
        padding=n.text("padding_mode", "zeros"),
        align_corners=bool(n.integer("align_corners", 0)),
    )
    return n.cast(y, x.dtype)


@rule("AffineGrid")
def affine_grid(n: Call) -> Value:
    """`AffineGrid` from theta [N, rank, rank + 1] and the size (N, C, spatial...). (ONNX's function drops a batch of
    one.)"""
    theta, size = n.value(0), n.dimensions(1, "the size of AffineGrid") or []
    rank = len(size) - 2
    if rank not in (2, 3) or theta.type.rank != 3 or not is_size(theta.shape[0], dim(size[0])):
        raise ShapeError("the size does not fit the matrices", expected="N, C and 2 or 3 extents", got=theta.type)
    if [as_int(d) for d in theta.shape[1:]] != [rank, rank + 1]:
        raise ShapeError("the matrices do not fit the size", expected=f"[N, {rank}, {rank + 1}]", got=theta.type)
    extents = [as_int(d) for d in size[2:]]
    if any(e is None for e in extents):
        raise UnsupportedError("AffineGrid of a size that is a symbol is not supported", got=size)
    known = [e for e in extents if e is not None]
    if min(known) < 1:
        raise ShapeError("a size is not positive", got=size)
    corners = bool(n.integer("align_corners", 0))
    return affine_places(n, theta, known, corners, (*theta.shape[:1], *known, rank))


@rule("RoiAlign")
def roi_align(n: Call) -> Value:
    mode = n.text("mode", "avg")
    if mode not in ("avg", "max"):
        raise ModelError("attribute mode must be avg or max", got=mode)
    half = n.text("coordinate_transformation_mode", "half_pixel" if n.opset >= 16 else "output_half_pixel")
    x, rois, samples = n.value(0), n.value(1), n.integer("sampling_ratio", 0)
    cells = n.integer("output_width", 1), n.integer("output_height", 1)
    scale, counts, seen = n.real("spatial_scale", 1.0), None, samples
    if samples < 1:
        counts = _samples(n, rois, cells, scale, half == "half_pixel")
        most = n.emit("max", n.emit("reduce_max", counts, axes=(0, 1), keepdims=False), n.constant(1, i64))
        bound = dim(most_samples(*x.shape[2:4]))
        seen = n.bounded(n.emit("min", most, n.symbols([bound], i64, ())), bound)
    return n.emit(
        "roi_align",
        n.nonempty(x, (2, 3)),
        rois,
        n.value(2),
        *([] if counts is None else [counts]),
        height=cells[1],
        width=cells[0],
        samples=seen,
        scale=scale,
        half_pixel=half == "half_pixel",
        mode=mode,
    )


def _samples(n: Call, rois: Value, cells: tuple[int, int], scale: float, half: bool) -> Value:
    """RoiAlign's adaptive number of samples per cell along both sides, i64[R, 2], for regions `rois` [R, 4] that are
    multiplied by `scale` and divided into `cells` (rows, columns): the size of a cell in pixels, rounded up. `half`
    says that pixel centres lie at 1/2. Raises ShapeError for other shapes."""
    if rois.type.rank != 2 or as_int(rois.shape[1]) != 4 or min(cells) < 1:
        raise ShapeError("RoiAlign needs regions [R, 4] and cells", got=f"{rois.type}, {cells}")
    factor, offset = n.like(scale, rois), n.like(0.5 if half else 0.0, rois)
    moved = n.emit("sub", n.emit("mul", rois, factor), offset)
    length = n.emit("sub", n.slice(moved, 1, 2, 2), n.slice(moved, 1, 0, 2))
    length = length if half else n.emit("max", length, n.like(1.0, length))
    count = n.emit("ceil", n.emit("div", length, n.constant([float(c) for c in cells], rois.dtype)))
    return n.cast(n.emit("clip", count, min=0.0, max=float(SAMPLES_LIMIT)), i64)


@rule("MaxRoiPool")
def max_roi_pool(n: Call) -> Value:
    cells = n.ints("pooled_shape") or []
    if len(cells) != 2:
        raise ModelError("attribute pooled_shape needs two numbers", got=cells)
    x, rois, scale = n.value(0), n.value(1), n.real("spatial_scale", 1.0)
    return n.emit("roi_max_pool", n.nonempty(x, (2, 3)), rois, height=cells[0], width=cells[1], scale=scale)


@check("BlackmanWindow", "HammingWindow", "HannWindow")
def window(n: Call) -> None:
    """Check that the size of a window is positive, where it is known; at run time 0 is accepted, as in ONNX Runtime."""
    known, what = n.known(0), "the size of a window is not positive"
    if known is None:
        size = n.within(n.value(0), 0, None, what)
        n.items[0] = Item(size.type, size)
    elif known.dtype != object and known.size and int(known.min()) < 1:
        raise ShapeError(what, got=known.tolist())


@rule("DFT")
def dft(n: Call) -> Value:
    x = n.value(0)
    rank = x.type.rank
    if n.opset < 20:
        axis = axis_of(n.integer("axis", 1), rank)
    else:
        specified = n.number(2, "the axis of DFT")
        axis = axis_of(-2 if specified is None else int(specified), rank)
    inverse, onesided = bool(n.integer("inverse", 0)), bool(n.integer("onesided", 0))
    length = n.number(1, "the length of DFT")
    if inverse and onesided:
        return _real_inverse(n, x, axis, length)
    return n.emit("dft", _fitted(n, x, axis, length), axis=axis, inverse=inverse, onesided=onesided)


def _real_inverse(n: Call, x: Value, axis: int, length: int | None) -> Value:
    """The inverse Fourier transform along `axis` with a real result of `length`, from half of the spectrum `x`: the
    other half is its conjugate in reverse order."""
    half = static(x.shape[axis], "the length of DFT")
    total = 2 * (half - 1) if length is None else int(length)
    x = _fitted(n, x, axis, total // 2 + 1)
    if x.shape[-1] is not const(2) or total < 1:
        raise ShapeError("the inverse of a one-sided DFT needs complex numbers", got=x.type)
    mirrored = total - total // 2 - 1
    if mirrored:
        begin = [mirrored if k == axis else 0 for k in range(x.type.rank)]
        size = [mirrored if k == axis else d for k, d in enumerate(x.shape)]
        step = tuple(-1 if k == axis else 1 for k in range(x.type.rank))
        other = n.emit("slice", x, begin=dims(begin), size=dims(size), step=step)
        other = n.emit("mul", other, n.constant([1.0, -1.0], x.dtype))
        x = n.emit("concat", x, other, axis=axis)
    y = n.emit("dft", x, axis=axis, inverse=True, onesided=False)
    return n.slice(y, y.type.rank - 1, 0, 1)


def _fitted(n: Call, x: Value, axis: int, length: int | None) -> Value:
    """`x` with `axis` cut or zero-padded to `length` (None: as it is)."""
    extent = static(x.shape[axis], "the length of DFT")
    if length is None or length == extent:
        return x
    if length < extent:
        return n.slice(x, axis, 0, int(length))
    after = [int(length) - extent if k == axis else 0 for k in range(x.type.rank)]
    return n.emit("pad", x, before=dims([0] * x.type.rank), after=dims(after), mode="constant", value=0)


@rule("STFT")
def stft(n: Call) -> Value:
    """STFT: frames of the signal [batch, length, 1 or 2] times the window, then a transform of each. Inputs: signal,
    step, window?, frame length?."""
    x = n.value(0)
    step, length = n.number(1, "the step of STFT"), n.number(3, "the frame length of STFT")
    window = n.optional(2)
    if length is None:
        if window is None:
            raise ModelError("STFT needs a window or a frame length")
        length = static(window.shape[0], "the window of STFT")
    total = static(x.shape[1], "the signal of STFT")
    frames = (total - int(length)) // int(step) + 1 if step and step > 0 else 0
    if frames < 1:
        raise ShapeError("the signal of STFT is shorter than a frame", got=x.type)
    begin = n.emit("range", start=0, step=int(step), size=frames, dtype=i64)
    within = n.emit("range", start=0, step=1, size=int(length), dtype=i64)
    indices = n.emit("add", n.reshape(begin, (frames, 1)), within)
    parts = n.emit("gather", x, indices, axis=1)
    if window is not None:
        parts = n.emit("mul", parts, n.reshape(window, (int(length), 1)))
    return n.emit("dft", parts, axis=2, inverse=False, onesided=bool(n.integer("onesided", 1)))


@rule("Col2Im")
def col2im(n: Call) -> Value:
    image, block = n.integers(1, "the image's shape"), n.integers(2, "the block's shape")
    if image is None or block is None or len(image) != len(block):
        raise ModelError("Col2Im needs an image's and a block's shape of one rank")
    rank = len(image)
    attrs = {
        "strides": n.ints("strides", [1] * rank) or [],
        "dilations": n.ints("dilations", [1] * rank) or [],
        "pads": n.ints("pads", [0] * 2 * rank) or [],
    }
    if [len(v) for v in attrs.values()] != [rank, rank, 2 * rank] or min(*attrs["strides"], *attrs["dilations"], 1) < 1:
        raise ShapeError("strides, dilations and pads do not fit the image", got=attrs)
    return n.emit(
        "col2im", n.value(0), image=tuple(image), block=tuple(block), **{k: tuple(v) for k, v in attrs.items()}
    )


@rule("MaxUnpool")
def max_unpool(n: Call) -> Value:
    """MaxUnpool: each input is stored at the flat position that pooling recorded for it in input 1; all other elements
    are 0."""
    x, indices = n.value(0), n.value(1)
    rank = x.type.rank - 2
    kernel = n.ints("kernel_shape") or []
    strides, pads = n.ints("strides", [1] * rank) or [], n.ints("pads", [0] * 2 * rank) or []
    if rank < 1 or len(kernel) != rank or len(strides) != rank or len(pads) != 2 * rank:
        raise ShapeError("kernel_shape, strides and pads need one entry for each spatial dimension", expected=rank)
    shape = [static(d, "the input of MaxUnpool") for d in x.shape[:2]]
    shape += [
        (static(d, "the input of MaxUnpool") - 1) * strides[k] + kernel[k] - pads[k] - pads[rank + k]
        for k, d in enumerate(x.shape[2:])
    ]
    wanted = n.integers(2, "the output's shape")
    n.check_indices(1, const(math.prod(shape)))
    zeros = n.emit("broadcast", n.like(0, x), shape=dims((math.prod(shape),)))
    flat = (x.type.size,)
    placed = n.emit("scatter_elements", zeros, n.reshape(indices, flat), n.reshape(x, flat), axis=0, reduction="none")
    result = n.reshape(placed, shape)
    if wanted is None or wanted == shape:
        return result
    after = [w - s for w, s in zip(wanted, shape, strict=True)]
    if min(after) < 0:
        raise ShapeError("the output's shape is smaller than what the pooling covered", expected=shape, got=wanted)
    return n.emit("pad", result, before=dims([0] * x.type.rank), after=dims(after), mode="constant", value=0)


@rule("TensorScatter")
def tensor_scatter(n: Call) -> Value:
    mode = n.text("mode", "linear")
    if mode not in ("linear", "circular"):
        raise ModelError("attribute mode must be linear or circular", got=mode)
    axis = axis_of(n.integer("axis", -2), n.rank(0))
    last = dim(n.shape(0)[axis] - n.shape(1)[axis]) if mode == "linear" else const(1 << 62)
    where = n.limited(2, 0, last, "what is written does not lie inside the tensor") if n.has(2) else None
    return n.emit("insert", n.value(0), n.value(1), where, axis=axis, circular=mode == "circular")
