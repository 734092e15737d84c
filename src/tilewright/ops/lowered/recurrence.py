"""`lowered.recurrence`: a recurrent layer whose weights are packed in panels, with all gates of a state element
adjacent.

    w[H, gates * H]  ->  [ceil(H / width), H, gates, width]

`transform/layout/recurrence.py` creates it from the operator `recurrence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Buffer, Expr, as_int, cast, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import present, scalar
from tilewright.ops.lowered.index_maps import register_map
from tilewright.ops.registry import OpDef, Types, register
from tilewright.ops.rnn import RecurrenceAttrs, recurrent_loops, reference, results
from tilewright.ops.rnn_loops import Tile, Weight
from tilewright.support.classes import dataclass
from tilewright.te import Tensor

Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class PackGatesAttrs(Attrs):
    """Attributes of packing the weights of a recurrent cell: the number of `gates` side by side, and the number of
    state elements of a panel, `width`."""

    gates: int
    width: int


def _pack_infer(types: Types, attrs: PackGatesAttrs) -> Out:
    w = present(types[0])
    hidden = w.shape[0]
    shape = (ceildiv(hidden, attrs.width), hidden, const(attrs.gates), const(attrs.width))
    return (TensorType(w.dtype, shape),)


def _pack_compute(inputs: Sequence[Tensor | None], attrs: PackGatesAttrs, types: Out) -> tuple[Tensor, ...]:
    w = inputs[0]
    assert w is not None
    hidden = w.shape[0]

    def element(panel: Expr, k: Expr, gate: Expr, lane: Expr) -> Expr:
        j = panel * attrs.width + lane
        value: Expr = select(j < hidden, w[k, gate * hidden + j], scalar(0, w.dtype))
        return value

    return (te.compute(types[0].shape, element, name="pack_gates"),)


@dataclass(frozen=True, slots=True)
class PackedRecurrenceAttrs(RecurrenceAttrs):
    """Attributes of `recurrence`, and the register tile: `rows` rows, `tiles` tiles for each panel, `unrolled` steps of
    k in a loop body."""

    rows: int = 1
    tiles: int = 1
    unrolled: int = 1


def _infer(types: Types, attrs: PackedRecurrenceAttrs) -> Out:
    """The type rule of `lowered.recurrence`: inputs and outputs as of `recurrence`, but with packed weights. Weights of
    i8 are codes, whose products are multiplied by an eighth input, f32[gates * H]."""
    return results(types, present(types[2]).shape[1], attrs)


def _loops(types: Types, attrs: PackedRecurrenceAttrs, out: Out) -> PrimFunc:
    _, hidden, gates, width = present(types[1]).shape
    tile = Tile(attrs.rows, as_int(width) or 1, attrs.tiles, attrs.unrolled)

    def weight(packed: Buffer) -> Weight:
        return lambda panel, k, gate, lane: cast(packed[panel, k, gate, lane], present(types[0]).dtype)

    return recurrent_loops(types, attrs, out, tile, weight, hidden, as_int(gates) or 1)


def _reference(arrays: Sequence[Any], attrs: PackedRecurrenceAttrs) -> tuple[Any, ...]:
    x, packed, *rest = arrays
    packed = np.asarray(packed)
    panels, hidden, gates, width = packed.shape
    ordinary = packed.transpose(1, 2, 0, 3).reshape(hidden, gates, panels * width)[..., :hidden]
    weights = ordinary.reshape(hidden, gates * hidden)
    if len(rest) > 5:
        weights = weights.astype(np.float32) * np.asarray(rest[5])
    return reference([x, weights, *rest[:5]], attrs)


register_map("lowered.pack_gates", PackGatesAttrs, _pack_infer, _pack_compute)
register(OpDef("lowered.recurrence", "opaque", PackedRecurrenceAttrs, _infer, _reference, loops=_loops))
