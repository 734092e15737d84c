"""Products by instructions on matrix registers of 16 rows of 64 bytes (see `targets/isa.py`).

Weights are packed as for dot instructions (`dots.py`, `dot_conv.py`), with the depth zero-padded to whole registers.
The number of rows is rounded up to whole registers too, and the excess results are dropped. Rows whose depth does not
fill registers are copied first and zero-padded, so that no register load reads past them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, as_expr, as_int, cast, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.dims import need, present, static
from tilewright.ops.lowered.dot_conv import conv_of_panels
from tilewright.ops.lowered.dots import accumulator, product_reference
from tilewright.ops.lowered.packed import convolved, cropped, layout_name
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


# products


@dataclass(frozen=True, slots=True)
class MatmulTilesAttrs(Attrs):
    """Attributes of a product by matrix instructions: the columns of the result, and the rows of a matrix register."""

    columns: int
    rows: int


def _matmul_infer(types: Types, attrs: MatmulTilesAttrs) -> Out:
    """The type rule of `lowered.matmul_tiles`: `x[..., M, K]` and panels `w[P, D/group, width, group]`, D at least K,
    to `[..., M, columns]` of f32 or i32."""
    x, w = present(types[0]), present(types[1])
    depth, own = static(w.shape[-3] * w.shape[-1], "the depth"), static(x.shape[-1], "the depth")
    if w.rank != 4 or x.rank < 2 or own > depth or x.dtype.is_float is not w.dtype.is_float:
        raise ShapeError("the packed weights do not fit the rows", expected=w, got=x)
    return (TensorType(accumulator(x.dtype), (*x.shape[:-1], as_expr(attrs.columns))),)


def _matmul_compute(inputs: Tensors, attrs: MatmulTilesAttrs, out: Out) -> tuple[Tensor, ...]:
    x, w = need(inputs[0]), need(inputs[1])
    panels, steps, width, group = w.shape
    k, inner = te.reduce_axis(steps, "k"), te.reduce_axis(group, "p")
    acc, (*lead, count, own) = out[0].dtype, x.shape
    rows, depth = ceildiv(count, attrs.rows) * attrs.rows, steps * group
    whole = as_int(count) is not None and as_int(count) == as_int(rows) and as_int(own) == as_int(depth)

    def padded(*at: Expr) -> Expr:
        *_, m, d = at
        return select((m < count) & (d < own), x[at], const(0, x.dtype))

    values = x if whole else te.compute((*lead, rows, depth), padded, name="pad")

    def element(*at: Expr) -> Expr:
        *place, n = at
        weight = w[n // width, k.var, n % width, inner.var]
        value = values[(*place, k.var * group + inner.var)]
        return te.sum(cast(value, acc) * cast(weight, acc), axis=[k, inner])  # type: ignore[no-any-return]

    product: Tensor = te.compute((*lead, rows, panels * width), element, name="matmul")
    return (cropped(product, out[0].shape),)


MATMUL_TILES = register(
    OpDef("lowered.matmul_tiles", "contraction", MatmulTilesAttrs, _matmul_infer, product_reference, _matmul_compute)
)


# convolutions


@dataclass(frozen=True, slots=True)
class ConvTilesAttrs(Attrs):
    """Attributes of a convolution by matrix instructions: those of `conv` (with `groups` of whole panels); channels of
    the result; pixels of a register; `flat`: whether a register's pixels may continue on the next row. `gathered`: the
    window, and how many of its rows and columns are side by side in the depth of the product: all columns, perhaps
    followed by some with weight 0. Without it the depth has only the channels of one pixel."""

    strides: Ints
    dilations: Ints
    pads: Ints
    channels: int
    rows: int
    flat: bool = False
    gathered: Ints = ()
    groups: int = 1


def _conv_infer(types: Types, attrs: ConvTilesAttrs) -> Out:
    """The type rule of `lowered.conv_tiles`: blocked `x[N, ceil(C/b), H, W, b]`, packed `w[P, 1, kh, kw, D/group,
    width, group]`, and a zero point `[]` of x's type or none, to blocks as wide as the panels, of i32 or f32. D is at
    least a group's channels in x's blocks, or the number of elements gathered (then kh counts groups of rows, and kw is
    1)."""
    x, w = present(types[0]), present(types[1])
    channels = static(x.shape[1] * x.shape[4], "channels") if x.rank == 5 else 0
    window: Sequence[Expr] = w.shape[2:4]
    if attrs.gathered:
        height, width, lines, columns = attrs.gathered
        window, channels = (as_expr(height), as_expr(width)), channels * lines * columns
    panels = static(w.shape[0], "panels") if w.rank == 7 else 0
    if attrs.groups < 1 or channels % attrs.groups or panels % attrs.groups or (attrs.gathered and attrs.groups > 1):
        raise ShapeError("the groups are not of whole panels", expected=f"{attrs.groups} groups", got=f"{x}, {w}")
    channels //= attrs.groups
    if w.rank != 7 or as_int(w.shape[1]) != 1 or not 0 < channels <= static(w.shape[4] * w.shape[6], "the depth"):
        raise ShapeError("the packed weights do not fit the blocks of channels", expected=w, got=x)
    space = convolved(x.shape[2:4], window, attrs.strides, attrs.dilations, attrs.pads)
    lanes = as_int(w.shape[5]) or 1
    shape = (x.shape[0], const(-(-attrs.channels // lanes)), *space, const(lanes))
    return (TensorType(accumulator(x.dtype), shape, layout_name(lanes)),)


def chosen(which: Expr, values: Sequence[Expr]) -> Expr:
    """`values[which]`, by selects."""
    result = values[-1]
    for k in reversed(range(len(values) - 1)):
        result = select(which < k + 1, values[k], result)
    return result


def together(lines: int) -> int:
    """`lines`, rounded up to an even number if that adds no more than a seventh: two rows (or registers of a flat
    product) then share each load of weights."""
    return lines if lines < 7 else lines + lines % 2


@dataclass(frozen=True, slots=True)
class Side:
    """How a convolution's input is copied along one direction (height or width), so that windows at a distance of a
    stride read contiguous elements. There is one copy for each of `phases` offsets modulo the stride. A window reads
    the element of its own position and up to `reach` elements after it. Each copy of a row has `length` elements, of
    which the last `shared` ones are padding that the first ones of the next row can provide."""

    phases: int
    reach: int
    length: int
    shared: int


def phases_of(window: int, stride: int, dilation: int) -> int:
    """The number of different offsets, modulo the stride, at which windows read: element `f` of a window belongs to
    phase `f % phases`."""
    return 1 if window == 1 or dilation % stride == 0 else min(stride, (window - 1) * dilation + 1)


def _side(size: int, out: int, window: int, stride: int, dilation: int, before: int) -> Side:
    """The `Side` of an image of `size` elements along one direction, with `before` elements of padding in front, from
    which windows of `window` elements, with `stride` and `dilation`, compute `out` elements of the output."""
    outer, phases = (window - 1) * dilation, phases_of(window, stride, dilation)
    length = out + outer // stride
    first = max(0, -(-(before - phases + 1) // stride))
    last = length - min(length, -(-(size + before) // stride))
    return Side(phases, outer // stride, length, min(first, last))


@dataclass(frozen=True, slots=True)
class Pixels:
    """The order of the pixels of a convolution's product: `lines` lines of `rows` pixels, or for a product over a whole
    map one line of all pixels. `down` and `across` say how the input is copied along both directions, `pitch` is the
    distance in pixels between lines of the copy, in which the padding right of a line also serves as the padding left
    of the next, and `copied` is the number of pixels that the product reads of each copy."""

    down: Side
    across: Side
    lines: int
    rows: int

    @property
    def pitch(self) -> int:
        return self.across.length - self.across.shared

    @property
    def phases(self) -> int:
        return self.down.phases * self.across.phases

    @property
    def copied(self) -> int:
        last = (self.lines - 1 + self.down.reach) * self.pitch + self.rows + self.across.reach
        return last + -last % self.pitch


def pixels_of(attrs: ConvTilesAttrs, size: Sequence[int], window: Sequence[int]) -> Pixels:
    """The order of the pixels of a convolution's product, for an input map of `size` (height, width) and a `window`
    (height, width) of the weights."""
    (sh, sw), (dh, dw), (top, left, bottom, right) = attrs.strides, attrs.dilations, attrs.pads
    kh, kw, lines, _ = attrs.gathered or (*window, 1, 1)
    height = (size[0] + top + bottom - (kh - 1) * dh - 1) // sh + 1
    width = (size[1] + left + right - (kw - 1) * dw - 1) // sw + 1
    down = _side(size[0], height, window[0], sh, dh * lines, top)
    across = _side(size[1], width, window[1], sw, dw, left)
    if attrs.gathered:
        across = Side(1, 0, width, 0)
    if attrs.flat:
        count = height * (across.length - across.shared)
        return Pixels(down, across, 1, together(-(-count // attrs.rows)) * attrs.rows)
    return Pixels(down, across, together(height), width + -width % attrs.rows)


def _conv_compute(inputs: Tensors, attrs: ConvTilesAttrs, out: Out) -> tuple[Tensor, ...]:
    return convolution(inputs, attrs, out)


Pieces = Callable[[Expr], list[Expr]]
"""A function from an f32 element to its bf16 pieces (`split.py`)."""


def convolution(
    inputs: Tensors,
    attrs: ConvTilesAttrs,
    out: Out,
    terms: Sequence[tuple[int, int]] = (),
    pieces_of: Pieces | None = None,
) -> tuple[Tensor, ...]:
    """The convolution as a product over pixels, in stages.

    The input is copied with channels innermost and with padding, each phase of the strides separately, so that
    neighbouring pixels of the output read neighbours of the copy. Pixels of the product that lie outside of the output
    are dropped. `terms`: pairs of pieces that are multiplied; a pixel's pieces are adjacent, those of weights are in
    their second dimension.
    """
    x, w, (type,) = need(inputs[0]), need(inputs[1]), out
    zero = inputs[2][()] if len(inputs) > 2 and inputs[2] is not None else const(0, x.dtype)
    panels, _, height, width, steps, lanes, group = w.shape
    (sh, sw), (dh, dw), (top, left, *_) = attrs.strides, attrs.dilations, attrs.pads
    images, blocks, h, v, block = x.shape
    size, window = ([static(d, "a map") for d in two] for two in ((h, v), (height, width)))
    result = pixels_of(attrs, size, window)
    pitch, phases = result.pitch, (result.down.phases, result.across.phases)

    depth, (*_, selected, beside) = blocks * block // attrs.groups, attrs.gathered or (1, 1)
    deep, several = steps * group, attrs.groups > 1

    def spread(*at: Expr) -> Expr:
        n, above, before, q, *piece, c = at
        y, z = q // pitch * sh + above - top, q % pitch * sw + before - left
        if attrs.gathered:
            y, z, c = y + c // (beside * depth) * dh, z + c // depth % beside * dw, c % depth
        inside = (y >= 0) & (y < h) & (z >= 0) & (z < v)
        channel, c = (c // deep * depth + c % deep, c % deep) if several else (c, c)
        known = select(c < depth, x[n, channel // block, y, z, channel % block], const(0, x.dtype))
        value = select(inside, known, zero)
        return value if pieces_of is None else chosen(piece[0], pieces_of(value))

    parts = [w.shape[1]] if terms else []
    copied = (images, *map(const, phases), const(result.copied), *parts, attrs.groups * deep)
    pixels = te.compute(copied, spread, name="pad")
    kinds = [(height, "kh"), (width, "kw"), *([(const(len(terms)), "t")] if terms else []), (steps, "ci"), (group, "p")]
    axes = [te.reduce_axis(size, name) for size, name in kinds]
    kh, kw, *t, ci, member = (axis.var for axis in axes)
    which = [[chosen(t[0], [const(pair[side]) for pair in terms])] if terms else [] for side in (0, 1)]

    def element(n: Expr, k: Expr, i: Expr, j: Expr, lane: Expr) -> Expr:
        further = kh * (selected * dh), kw * dw
        outer = (i + further[0] // sh) * pitch + j + further[1] // sw
        above, before = (f % n if n > 1 else const(0) for f, n in zip(further, phases, strict=True))
        first = k // (panels // attrs.groups) * deep if several else const(0)
        value = pixels[(n, above, before, outer, *which[0], first + ci * group + member)]
        weight = w[(k, *(which[1] or [const(0)]), kh, kw, ci, lane, member)]
        return te.sum(cast(value, type.dtype) * cast(weight, type.dtype), axis=axes)  # type: ignore[no-any-return]

    product: Tensor = te.compute((images, panels, result.lines, result.rows, lanes), element, name="conv")
    if not attrs.flat:
        return (cropped(product, type.shape),)

    def pixel(n: Expr, k: Expr, i: Expr, j: Expr, lane: Expr) -> Expr:
        return product[n, k, 0, i * pitch + j, lane]

    return (te.compute(type.shape, pixel, name="crop"),)


def _conv_reference(arrays: Sequence[Any], attrs: ConvTilesAttrs) -> tuple[Any, ...]:
    x, w, *zero = arrays
    ordinary = ConvAttrs(attrs.strides, attrs.dilations, attrs.pads, attrs.groups)
    if attrs.gathered:
        whole = np.moveaxis(x, 1, 3).reshape(x.shape[0], 1, *x.shape[2:4], -1)
        x = _gathered(whole, attrs, zero[0] if zero else 0)
        ordinary = ConvAttrs((attrs.strides[0], 1), (attrs.dilations[0] * attrs.gathered[2], 1), (0,) * 4, attrs.groups)
    blocks = -(-attrs.channels // attrs.groups // w.shape[5]) * attrs.groups
    return conv_of_panels(x, w, zero, ordinary, blocks * w.shape[5], w.shape[5])


def _gathered(x: Any, attrs: ConvTilesAttrs, zero: Any) -> Any:
    """`x[N, 1, H, W, C]` padded, where the last dimension of a pixel has the channels of all pixels of a window, or
    of some of its lines, that begins there (`attrs.gathered`)."""
    kh, kw, lines, columns = attrs.gathered
    (dh, dw), (top, left, bottom, right) = attrs.dilations, attrs.pads
    height, width = x.shape[2] + top + bottom, x.shape[3] + left + right
    groups = -(-kh // lines) * lines
    enclosing = (top, bottom + (groups - kh) * dh), (left, right + (columns - kw) * dw)
    x = np.pad(x, ((0, 0), (0, 0), *enclosing, (0, 0)), constant_values=np.asarray(zero))
    high, outer = height + (groups - kh - lines + 1) * dh, width - (kw - 1) * dw
    parts = [
        x[:, :, i * dh : i * dh + high, j * dw : j * dw + outer : attrs.strides[1]]
        for i in range(lines)
        for j in range(columns)
    ]
    return np.concatenate(parts, -1)


CONV_TILES = register(
    OpDef("lowered.conv_tiles", "contraction", ConvTilesAttrs, _conv_infer, _conv_reference, _conv_compute)
)
