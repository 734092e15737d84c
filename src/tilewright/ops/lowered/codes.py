"""Matrix products with weights that are quantised to codes of 4 or 8 bits.

    codes[P, K/2, width]         u8: byte j of row k holds column j of rows 2k (low half) and 2k + 1 (high half)
    codes[P, K, width]           u8 or i8: a code of 8 bits each
    scales[P, K/group, width]    f32, one for `group` rows of a column
    offsets[P, K/group, width]   f32, subtracted from the scaled numbers; zero * scale if absent
    y[m, n] = sum over k of x[m, k] * (level(code[k, n]) * scale[k // group, n] - offset[k // group, n])

The level of a code is its number, or its entry in a book of sixteen numbers. Panels of `width` columns are laid out as
for `lowered.matmul_packed`. For few rows of x, weights are decoded in registers, and the scale is applied once for each
group:

    y[m, n] = sum over g of (sum over k in g of x[m, k] * level[k, n]) * scale[g, n]
                            - offset[g, n] * sum over k in g of x[m, k]

For more rows, each call first decodes the weights to f32 and then multiplies those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, ConstantArray, Dim
from tilewright.ir.dtype import f32, i8, i32, u8
from tilewright.ir.expr import Expr, as_expr, as_int, call, cast, const
from tilewright.ir.graph import Node, TensorType
from tilewright.ops.book import entry
from tilewright.ops.dims import need, present
from tilewright.ops.lowered.packed import Arrays, cropped
from tilewright.ops.registry import OpDef, Types, Version, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import DTypeError
from tilewright.te import Tensor

ZERO = 8
"""The 4-bit code whose number is 0, if nothing else is stated."""

MAX_DECODED_ROWS = 4
"""The largest number of rows for which weights are decoded in registers. Weights of 1024x4096 in the third level of a
Zen 3, one core, 29 November 2026 (`Model.profile`): one row takes 305 us, in f32 360, decoded before 840 to 980; four
rows take 710, in f32 430 to 490, decoded before 1,300 to 1,490."""


@dataclass(frozen=True, slots=True)
class CodesAttrs(Attrs):
    """Attributes that say how codes are decoded.

    columns  of the result: a last panel may have more
    zero     the level that stands for 0 in every group, if there are no offsets
    book     the levels of the codes 0 to 15, f32[16]; None: a code is its level
    """

    columns: Dim
    zero: float = 0.0
    book: ConstantArray | None = None


def _infer(types: Types, attrs: CodesAttrs) -> tuple[TensorType, ...]:
    x, codes, scales = (present(types[k]) for k in range(3))
    offsets = types[3] if len(types) > 3 else None
    is_codes = codes.dtype in (u8, i8)
    if (x.dtype, scales.dtype) != (f32, f32) or not is_codes or (offsets is not None and offsets != scales):
        expected = "f32, u8 or i8, f32 and offsets as scales"
        raise DTypeError("weights are codes with scales", expected=expected, got=[str(t) for t in types])
    return (TensorType(f32, (*x.shape[:-1], as_expr(attrs.columns))),)


def _level(codes: Tensor, layout: _Layout, attrs: CodesAttrs, panel: Expr, k: Expr, lane: Expr) -> Expr:
    """The level, f32, of the code at row `k` and column `lane` of a panel."""
    if layout.paired:
        pair = cast(codes[(panel, k // 2, lane)], i32)
        number = call("bitand", call("shr", pair, cast(k % 2 * 4, i32)), const(15, i32))
    else:
        number = cast(codes[(panel, k, lane)], i32)
    return cast(number, f32) if attrs.book is None else entry(attrs.book, number)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of codes: panels, depth, width of a panel, rows of a group, and whether a byte holds two codes."""

    panels: int
    depth: int
    width: int
    group: int
    paired: bool


def _layout(x: Tensor, codes: Tensor, scales: Tensor) -> _Layout:
    panels, rows, width = (as_int(d) or 1 for d in codes.shape)
    depth = as_int(x.shape[-1]) or 1
    return _Layout(panels, depth, width, depth // (as_int(scales.shape[1]) or 1), rows != depth)


def _offset(inputs: Sequence[Tensor | None], attrs: CodesAttrs, at: tuple[Expr, Expr, Expr]) -> Expr | None:
    """The f32 number that is subtracted from the scaled levels of a group; None if there is none."""
    offsets = inputs[3] if len(inputs) > 3 else None
    if offsets is not None:
        return offsets[at]
    return need(inputs[2])[at] * const(attrs.zero, f32) if attrs.zero else None


def _compute(inputs: Sequence[Tensor | None], attrs: CodesAttrs, types: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    x, codes, scales = (need(inputs[k]) for k in range(3))
    layout = _layout(x, codes, scales)
    width, group, groups = layout.width, layout.group, layout.depth // layout.group
    rows, columns = types[0].shape[:-1], layout.panels * width
    j = te.reduce_axis(group, "j")
    sums = te.compute((*rows, groups), lambda *at: te.sum(x[(*at[:-1], at[-1] * group + j.var)], axis=j), name="sums")
    k = te.reduce_axis(group, "k")

    def part(*at: Expr) -> Expr:
        *row, g, n = at
        level = _level(codes, layout, attrs, n // width, g * group + k.var, n % width)
        return te.sum(x[(*row, g * group + k.var)] * level, axis=k)  # type: ignore[no-any-return]

    parts = te.compute((*rows, groups, columns), part, name="parts")
    g = te.reduce_axis(groups, "g")

    def element(*at: Expr) -> Expr:
        *row, n = at
        at_group = (n // width, g.var, n % width)
        scaled = parts[(*row, g.var, n)] * scales[at_group]
        offset = _offset(inputs, attrs, at_group)
        summand = scaled if offset is None else scaled - sums[(*row, g.var)] * offset
        return te.sum(summand, axis=g)  # type: ignore[no-any-return]

    product: Tensor = te.compute((*rows, columns), element, name="matmul")
    return (cropped(product, types[0].shape),)


def _decoded_compute(
    inputs: Sequence[Tensor | None], attrs: CodesAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    x, codes, scales = (need(inputs[k]) for k in range(3))
    layout = _layout(x, codes, scales)

    def weight(panel: Expr, k: Expr, lane: Expr) -> Expr:
        at_group = (panel, k // layout.group, lane)
        scaled = _level(codes, layout, attrs, panel, k, lane) * scales[at_group]
        offset = _offset(inputs, attrs, at_group)
        return scaled if offset is None else scaled - offset

    weights = te.compute((layout.panels, layout.depth, layout.width), weight, name="weights")
    k = te.reduce_axis(layout.depth, "k")

    def element(*at: Expr) -> Expr:
        *row, n = at
        panel, lane = n // layout.width, n % layout.width
        return te.sum(x[(*row, k.var)] * weights[(panel, k.var, lane)], axis=k)  # type: ignore[no-any-return]

    product: Tensor = te.compute((*types[0].shape[:-1], layout.panels * layout.width), element, name="matmul")
    return (cropped(product, types[0].shape),)


def _reference(arrays: Arrays, attrs: CodesAttrs) -> tuple[Any, ...]:
    x, codes, scales = arrays[:3]
    offsets = arrays[3] if len(arrays) > 3 else scales * np.float32(attrs.zero)
    panels, _, width = codes.shape
    depth = x.shape[-1]
    if codes.shape[1] != depth:
        codes = np.stack((codes & 15, codes >> 4), axis=2).reshape(panels, depth, width)
    levels = codes.astype(np.float32) if attrs.book is None else attrs.book.array[codes & 15]
    group = depth // scales.shape[1]
    weights = levels * np.repeat(scales, group, axis=1) - np.repeat(offsets, group, axis=1)
    full = np.swapaxes(weights, 0, 1).reshape(depth, panels * width)
    return (np.matmul(x, full)[..., : as_int(attrs.columns)],)


MATMUL_CODES = register(OpDef("lowered.matmul_codes", "contraction", CodesAttrs, _infer, _reference, _compute))
MATMUL_DECODED = register(
    OpDef("lowered.matmul_decoded", "contraction", CodesAttrs, _infer, _reference, _decoded_compute)
)


def _versions(node: Node) -> tuple[Version, ...]:
    """(condition, node) of both versions of a product: weights decoded in registers for few rows, and decoded before it
    for more."""
    short, long = (Node(op.name, node.inputs, node.outputs, node.attrs) for op in (MATMUL_CODES, MATMUL_DECODED))
    return Version(node.output.shape[-2] <= MAX_DECODED_ROWS, short), Version(None, long)


register(
    OpDef(
        "lowered.matmul_codes_by_rows",
        "contraction",
        CodesAttrs,
        _infer,
        _reference,
        _decoded_compute,
        versions=_versions,
    )
)
