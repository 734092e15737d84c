"""Products with weights of 4 bits.

    codes[P, K/2, width]        u8: byte j of row k holds column j of rows 2k (low half) and 2k + 1 (high half)
    scales[P, K/group, width]   f32, one for `group` rows of a column
    zeros[P, K/group, width]    f32, the code of 0 there; 8 everywhere if absent
    y[m, n] = sum over k of x[m, k] * (code[k, n] - zero[k // group, n]) * scale[k // group, n]

Panels of `width` columns lie as those of `lowered.matmul_packed`. Of few rows, weights are decoded in registers and the
scale is taken once a group:

    y[m, n] = sum over g of (sum over k in g of x[m, k] * code[k, n] - zero[g, n] * sum over k in g of x[m, k])
              * scale[g, n]

Of more rows, weights are decoded to f32 once a call, and multiplied as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.dtype import f32, i32, u8
from tilewright.ir.expr import Expr, as_expr, as_int, call, cast, const
from tilewright.ir.graph import Node, TensorType
from tilewright.ops.lowered.packed import Arrays, ColumnsAttrs, cropped, only, present
from tilewright.ops.registry import OpDef, Types, Version, register
from tilewright.support.errors import DTypeError
from tilewright.te import Tensor

ZERO = 8
"""The code of 0 where nothing else is said."""

FEW = 4
"""Rows up to which weights are decoded in registers. Weights of 1024x4096 in the third level of a Zen 3, one core, 29
November 2026 (`Model.profile`): one row takes 305 us, in f32 360, decoded before 840 to 980; four rows take 710, in f32
430 to 490, decoded before 1,300 to 1,490."""


def _infer(types: Types, attrs: ColumnsAttrs) -> tuple[TensorType, ...]:
    x, codes, scales = (only(types, k) for k in range(3))
    zeros = types[3] if len(types) > 3 else None
    if (x.dtype, codes.dtype, scales.dtype) != (f32, u8, f32) or (zeros is not None and zeros != scales):
        expected = "f32, u8, f32 and zeros as scales"
        raise DTypeError("weights of 4 bits are bytes of two", expected=expected, got=[str(t) for t in types])
    return (TensorType(f32, (*x.shape[:-1], as_expr(attrs.columns))),)


def _level(codes: Tensor, panel: Expr, k: Expr, lane: Expr) -> Expr:
    """One code, i32."""
    pair = cast(codes[(panel, k // 2, lane)], i32)
    return call("bitand", call("shr", pair, cast(k % 2 * 4, i32)), const(15, i32))


def _zero(inputs: Sequence[Tensor | None], panel: Expr, group: Expr, lane: Expr) -> Expr:
    """The code of 0 of a group of a column, f32."""
    zeros = inputs[3] if len(inputs) > 3 else None
    return const(float(ZERO), f32) if zeros is None else zeros[(panel, group, lane)]


def _sizes(codes: Tensor, scales: Tensor) -> tuple[int, int, int, int]:
    """Panels, depth, width of a panel, rows of a group."""
    panels, pairs, width = (as_int(d) or 1 for d in codes.shape)
    return panels, 2 * pairs, width, 2 * pairs // (as_int(scales.shape[1]) or 1)


def _compute(inputs: Sequence[Tensor | None], attrs: ColumnsAttrs, types: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    x, codes, scales = (present(inputs, k) for k in range(3))
    panels, depth, width, group = _sizes(codes, scales)
    rows, columns = types[0].shape[:-1], panels * width
    j = te.reduce_axis(group, "j")
    sums = te.compute(
        (*rows, depth // group), lambda *at: te.sum(x[(*at[:-1], at[-1] * group + j.var)], axis=j), name="sums"
    )
    k = te.reduce_axis(group, "k")

    def part(*at: Expr) -> Expr:
        *row, g, n = at
        level = _level(codes, n // width, g * group + k.var, n % width)
        return te.sum(x[(*row, g * group + k.var)] * cast(level, f32), axis=k)  # type: ignore[no-any-return]

    parts = te.compute((*rows, depth // group, columns), part, name="parts")
    g = te.reduce_axis(depth // group, "g")

    def element(*at: Expr) -> Expr:
        *row, n = at
        at_group = (n // width, g.var, n % width)
        shifted = parts[(*row, g.var, n)] - sums[(*row, g.var)] * _zero(inputs, *at_group)
        return te.sum(shifted * scales[at_group], axis=g)  # type: ignore[no-any-return]

    product: Tensor = te.compute((*rows, columns), element, name="matmul")
    return (cropped(product, types[0].shape),)


def _decoded_compute(
    inputs: Sequence[Tensor | None], attrs: ColumnsAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    x, codes, scales = (present(inputs, k) for k in range(3))
    panels, depth, width, group = _sizes(codes, scales)

    def weight(panel: Expr, k: Expr, lane: Expr) -> Expr:
        level = cast(_level(codes, panel, k, lane), f32) - _zero(inputs, panel, k // group, lane)
        return level * scales[(panel, k // group, lane)]

    weights = te.compute((panels, depth, width), weight, name="weights")
    k = te.reduce_axis(depth, "k")

    def element(*at: Expr) -> Expr:
        *row, n = at
        return te.sum(x[(*row, k.var)] * weights[(n // width, k.var, n % width)], axis=k)  # type: ignore[no-any-return]

    product: Tensor = te.compute((*types[0].shape[:-1], panels * width), element, name="matmul")
    return (cropped(product, types[0].shape),)


def _reference(arrays: Arrays, attrs: ColumnsAttrs) -> tuple[Any, ...]:
    x, codes, scales = arrays[:3]
    zeros = arrays[3] if len(arrays) > 3 else np.full_like(scales, ZERO)
    panels, pairs, width = codes.shape
    group = 2 * pairs // scales.shape[1]
    levels = np.stack((codes & 15, codes >> 4), axis=2).reshape(panels, 2 * pairs, width).astype(np.float32)
    weights = (levels - np.repeat(zeros, group, axis=1)) * np.repeat(scales, group, axis=1)
    full = np.swapaxes(weights, 0, 1).reshape(2 * pairs, panels * width)
    return (np.matmul(x, full)[..., : as_int(attrs.columns)],)


MATMUL_NIBBLES = register(OpDef("lowered.matmul_nibbles", "contraction", ColumnsAttrs, _infer, _reference, _compute))
MATMUL_DECODED = register(
    OpDef("lowered.matmul_decoded", "contraction", ColumnsAttrs, _infer, _reference, _decoded_compute)
)


def _versions(node: Node) -> tuple[Version, ...]:
    """Weights decoded in registers for few rows, before the product for more."""
    few, many = (Node(op.name, node.inputs, node.outputs, node.attrs) for op in (MATMUL_NIBBLES, MATMUL_DECODED))
    return Version(node.output.shape[-2] <= FEW, few), Version(None, many)


register(
    OpDef(
        "lowered.matmul_codes_by_rows",
        "contraction",
        ColumnsAttrs,
        _infer,
        _reference,
        _decoded_compute,
        versions=_versions,
    )
)
