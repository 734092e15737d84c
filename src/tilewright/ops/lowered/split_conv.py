"""Convolutions of f32 by products of bf16 pieces (`split.py`), by matrix instructions (`tiles.py`).

    conv_pieces   x[N, C/b, H, W, b] of f32, panels [P, pieces, kh, kw, D/2, 16, 2] of bf16   ->  blocks of f32
    conv_x3, _x6  x, packed w, panels of pieces, a[n]                                          ->  blocks of f32

The input is split into pieces while it is copied. `conv_x3` computes the convolution in f32 where n is not 0, as
products do. If there are few channels, those of several lines and columns are laid side by side, as `tiles.py` gathers
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.ir.dtype import bf16, f32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Node, TensorType
from tilewright.ops.dims import present
from tilewright.ops.lowered.packed import ConvBlockedAttrs
from tilewright.ops.lowered.packed_windows import ConvWindowsAttrs
from tilewright.ops.lowered.split import PIECES, TERMS, PiecesAttrs, count_of, pieces_of
from tilewright.ops.lowered.tiles import CONV_TILES, ConvTilesAttrs, convolution
from tilewright.ops.registry import OpDef, Types, Version, get, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class ConvPiecesAttrs(ConvTilesAttrs):
    """Attributes of a convolution by matrix instructions whose f32 products are sums of `terms` products of bf16
    pieces."""

    terms: int = 3


def _product_infer(types: Types, attrs: ConvPiecesAttrs) -> Out:
    """The type rule of `lowered.conv_pieces`: blocked x of f32 and panels of pieces, to blocks of f32 as wide as the
    panels."""
    x, w = present(types[0]), present(types[1])
    if attrs.terms not in TERMS or x.dtype is not f32 or w.dtype is not bf16 or w.rank != 7:
        raise ShapeError("pieces are of f32 maps", expected=f"terms {', '.join(map(str, TERMS))}", got=f"{x}, {w}")
    if as_int(w.shape[1]) != count_of(attrs.terms):
        raise ShapeError("the pieces do not fit the terms", expected=count_of(attrs.terms), got=w)
    one = TensorType(bf16, (w.shape[0], const(1), *w.shape[2:]))
    return CONV_TILES.infer((TensorType(bf16, x.shape), one), attrs)


def _product_compute(inputs: Tensors, attrs: ConvPiecesAttrs, out: Out) -> tuple[Tensor, ...]:
    return convolution(inputs, attrs, out, TERMS[attrs.terms], partial(pieces_of, count=count_of(attrs.terms)))


def _product_reference(arrays: Sequence[Any], attrs: ConvPiecesAttrs) -> tuple[Any, ...]:
    x, w = arrays
    (pieces,) = PIECES.reference([x], PiecesAttrs(count_of(attrs.terms), first=True))
    each = (
        CONV_TILES.reference([pieces[left], w[:, right : right + 1]], attrs)[0] for left, right in TERMS[attrs.terms]
    )
    with np.errstate(all="ignore"):
        return (sum(each),)


CONV_PIECES = register(
    OpDef("lowered.conv_pieces", "contraction", ConvPiecesAttrs, _product_infer, _product_reference, _product_compute)
)


def versions(node: Node) -> tuple[Version, ...]:
    """(condition, node) of both versions of a convolution: by pieces if no overflow is possible, else in f32."""
    x, packed, panels, away = node.inputs
    assert away is not None
    split = Node(CONV_PIECES.name, (x, panels), node.outputs, node.attrs)
    op, how = _ordinary(node.of(ConvPiecesAttrs))
    return Version(away.shape[0] < 1, split), Version(None, Node(op, (x, packed), node.outputs, how))


def _ordinary(attrs: ConvPiecesAttrs) -> tuple[str, ConvBlockedAttrs | ConvWindowsAttrs]:
    """(operator, attributes) of the convolution in f32 that has the strides, dilations, pads and groups of `attrs`."""
    steps, channels, block = (attrs.strides, attrs.dilations, attrs.pads), attrs.channels, attrs.rows
    if attrs.groups > 1:
        return "lowered.conv_windows", ConvWindowsAttrs(*steps, attrs.groups, channels, out_block=block)
    return "lowered.conv_blocked", ConvBlockedAttrs(*steps, channels, out_block=block, flat=False)


def _split_infer(types: Types, attrs: ConvPiecesAttrs) -> Out:
    """The type rule of `lowered.conv_x3` and `lowered.conv_x6`: blocked x, filters packed for f32, panels of pieces,
    and the overflow flag `[n]`."""
    if present(types[3]).rank != 1:
        raise ShapeError("whether there are pieces is the size of a vector", got=present(types[3]))
    return _product_infer((types[0], types[2]), attrs)


def _split_compute(inputs: Tensors, attrs: ConvPiecesAttrs, out: Out) -> tuple[Tensor, ...]:
    op, how = _ordinary(attrs)
    compute = get(op).compute
    assert compute is not None
    return compute((inputs[0], inputs[1]), how, out)


def _split_reference(arrays: Sequence[Any], attrs: ConvPiecesAttrs) -> tuple[Any, ...]:
    x, packed, panels, away = arrays
    if len(away) < 1:
        return _product_reference((x, panels), attrs)
    op, how = _ordinary(attrs)
    return get(op).reference((x, packed), how)


for _terms in TERMS:
    register(
        OpDef(
            f"lowered.conv_x{_terms}",
            "contraction",
            ConvPiecesAttrs,
            _split_infer,
            _split_reference,
            _split_compute,
            versions=versions,
        )
    )

__all__ = ["CONV_PIECES", "ConvPiecesAttrs"]
