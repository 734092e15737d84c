"""Extents that data decides: an operator computes rows, up to a bound, and their number; `head` then cuts the rows to
that number.

    %rows, %count = nonzero(%x) : i64[8, 1], i64[]
    %first = head(%rows, %count) {defines = $n} : i64[n, 1]

`head` defines a symbol, whose value is that number, and which the shapes of all readers contain. As rows of the first
dimension are contiguous, `head` only refers to the front of the computed array and needs no kernel.

A number without a bound (the end of a range) is the number of rows of a room (`ops/rooms.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.dtype import f32, i64
from tilewright.ir.expr import Expr, Var, call, const, maximum, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.control import NUMBER
from tilewright.ops.dims import present
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError

Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class HeadAttrs(Attrs):
    """Attributes of `head`, which takes the first rows of a tensor. `defines`: a new symbol for their number, not
    negative, that no other node defines. `reason`: the error message of a call in which the number is invalid."""

    defines: Dim
    reason: str = ""


def _head_infer(types: Types, attrs: HeadAttrs) -> Out:
    """The type rule of `head`: the first rows of the first input; the second input is their number."""
    x, count = present(types[0]), present(types[1])
    if count != NUMBER or not x.shape:
        raise ShapeError(
            "the first rows need a tensor and their number", expected=f"rows, {NUMBER}", got=f"{x}, {count}"
        )
    if not isinstance(attrs.defines, Var):
        raise ShapeError("only a symbol can be defined", got=attrs.defines)
    return (TensorType(x.dtype, (attrs.defines, *x.shape[1:])),)


def _head_reference(arrays: Sequence[Any], attrs: HeadAttrs) -> tuple[Any, ...]:
    return (arrays[0][: int(arrays[1])],)


HEAD = register(OpDef("head", "opaque", HeadAttrs, _head_infer, _head_reference, alias=True))

# --- nonzero ----------------------------------------------------------------------------------------------------------


def _nonzero_infer(types: Types, attrs: Attrs) -> Out:
    """The type rule of `nonzero`: coordinates of the elements that are not zero, one row each, in order; and their
    number."""
    x = present(types[0])
    return TensorType(i64, (x.size, const(x.rank))), NUMBER


def _nonzero_loops(types: Types, attrs: Attrs, out: Out) -> PrimFunc:
    (x,), (rows, count) = buffers(types, out)
    assert x is not None
    nest = Nest("nonzero", [x, rows, count])
    with nest.local("found", i64) as result:
        result.set(0)
        with nest.loops("i", x.shape) as place, nest.when(call("ne", x[place], const(0, x.dtype))):
            for k, index in enumerate(place):
                nest.store(rows, (result.value, k), index)
            result.set(result.value + 1)
        nest.store(count, (), result.value)
    return nest.finish()


def _nonzero_reference(arrays: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    x = arrays[0]
    rows = np.zeros((x.size, x.ndim), np.int64)
    result = np.argwhere(x != 0)
    rows[: len(result)] = result
    return rows, np.asarray(len(result), np.int64)


NONZERO = register(OpDef("nonzero", "opaque", Attrs, _nonzero_infer, _nonzero_reference, loops=_nonzero_loops))


# --- suppression of boxes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SuppressAttrs(Attrs):
    """Attributes of non-maximum suppression, which selects at most `most` boxes of each class. A box is given by two
    corners, or with `center` by its center and its sizes."""

    most: int
    center: bool = False


def _suppress_infer(types: Types, attrs: SuppressAttrs) -> Out:
    """The type rule of non-maximum suppression. Inputs: boxes [batch, boxes, 4], scores [batch, classes, boxes], the
    largest allowed overlap, the lowest score or None, optionally the most boxes of each class, i64."""
    boxes, scores, overlap = (present(t) for t in types[:3])
    if boxes.rank != 3 or scores.rank != 3 or {boxes.dtype, scores.dtype, overlap.dtype} != {f32}:
        raise ShapeError("boxes and scores have three dimensions, of f32", got=f"{boxes}, {scores}")
    if overlap.rank or (types[3] is not None and present(types[3]) != TensorType(f32, ())):
        raise ShapeError("the thresholds are scalars", got=overlap)
    if len(types) > 4 and types[4] is not None and types[4] != NUMBER:
        raise ShapeError("the number of boxes is a scalar", expected=NUMBER, got=types[4])
    rows = boxes.shape[0] * scores.shape[1] * _chosen(attrs.most, boxes.shape[1])
    return TensorType(i64, (rows, const(3))), NUMBER


def _chosen(most: int, boxes: Expr) -> Expr:
    """The bound of the number of boxes that are selected for a class: `most` up to `EXACT_BOXES`, else the number of
    boxes. Their minimum would be no polynomial of the symbols."""
    return const(max(most, 0)) if most <= EXACT_BOXES else boxes


EXACT_BOXES = 4096
"""The largest limit on the number of boxes that is used as a bound; for larger limits the number of boxes is the
bound."""


def _corners(center: bool, box: Sequence[Expr]) -> tuple[Expr, ...]:
    """The smaller and the larger coordinates, (x1, y1, x2, y2), of `box`: two opposite corners or, if `center`, its
    centre, width and height."""
    if center:
        x, y, w, h = box
        half = const(0.5, f32)
        return x - w * half, y - h * half, x + w * half, y + h * half
    a, b, c, d = box
    return minimum(a, c), minimum(b, d), maximum(a, c), maximum(b, d)


def _overlaps(a: Sequence[Expr], b: Sequence[Expr], most: Expr) -> Expr:
    """Whether the intersection of two boxes, as corners, exceeds the share `most` of their union."""
    zero = const(0.0, f32)
    size = [minimum(a[k + 2], b[k + 2]) - maximum(a[k], b[k]) for k in range(2)]
    inner = maximum(size[0], zero) * maximum(size[1], zero)
    areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    union = areas[0] + areas[1] - inner
    valid = call("and", call("gt", inner, zero), call("and", call("gt", areas[0], zero), call("gt", areas[1], zero)))
    return call("and", valid, call("gt", inner, most * union))


def _suppress_loops(types: Types, attrs: SuppressAttrs, out: Out) -> PrimFunc:
    inputs, (rows, count) = buffers(types, out)
    boxes, scores, most, least, limit = (*inputs, None)[:5]
    assert boxes is not None and scores is not None and most is not None
    nest = Nest("suppress", [b for b in (*inputs, rows, count) if b is not None])
    (batch, number, _), classes = boxes.shape, scores.shape[1]
    with nest.local("found", i64) as result, nest.allocate("alive", f32, (number,)) as alive:
        result.set(0)
        with nest.loop("b", batch) as b, nest.loop("c", classes) as c:
            with nest.loop("m", number) as m:
                score = scores[b, c, m]
                worth = const(True) if least is None else call("gt", score, least[()])
                nest.store(alive, (m,), select(worth, const(1.0, f32), const(0.0, f32)))
            with nest.loop("turn", minimum(const(max(attrs.most, 0)), number)) as turn:
                open_ = const(True) if limit is None else call("lt", turn, limit[()])
                with nest.when(open_), nest.local("best", i64) as best, nest.local("top", f32) as top:
                    best.set(-1)
                    top.set(0.0)
                    with nest.loop("n", number) as n, nest.when(call("gt", alive[n], const(0.0, f32))):
                        first = call("lt", best.value, const(0))
                        better = call("or", first, call("gt", scores[b, c, n], top.value))
                        with nest.when(better):
                            best.set(n)
                            top.set(scores[b, c, n])
                    with nest.when(call("ge", best.value, const(0))), nest.let("taken", best.value) as selected:
                        for k, index in enumerate((b, c, selected)):
                            nest.store(rows, (result.value, k), index)
                        result.set(result.value + 1)
                        nest.store(alive, (selected,), 0.0)
                        with nest.loop("o", number) as o:
                            corners = [
                                _corners(attrs.center, [boxes[b, i, const(k)] for k in range(4)]) for i in (selected, o)
                            ]
                            covered = _overlaps(corners[0], corners[1], most[()])
                            nest.store(alive, (o,), select(covered, const(0.0, f32), alive[o]))
        nest.store(count, (), result.value)
    return nest.finish()


def _suppress_reference(arrays: Sequence[Any], attrs: SuppressAttrs) -> tuple[Any, ...]:
    boxes, scores, most, least, wanted = (*arrays, None)[:5]
    batch, classes, number = scores.shape
    limit = min(max(attrs.most, 0), number)
    limit = limit if wanted is None else min(limit, max(int(wanted), 0))
    bound = max(attrs.most, 0) if attrs.most <= EXACT_BOXES else number
    rows = np.zeros((batch * classes * bound, 3), np.int64)
    count = 0
    for b in range(batch):
        low, high = _numpy_corners(boxes[b], attrs.center)
        area = np.prod(high - low, axis=1)
        for c in range(classes):
            chosen: list[int] = []
            for m in np.argsort(-scores[b, c], kind="stable"):
                if len(chosen) == limit or (least is not None and not scores[b, c, m] > least):
                    break
                inner = np.prod(
                    np.maximum(np.minimum(high[m], high[chosen]) - np.maximum(low[m], low[chosen]), 0), axis=1
                )
                met = (inner > 0) & (area[m] > 0) & (area[chosen] > 0)
                if not np.any(met & (inner > most * (area[m] + area[chosen] - inner))):
                    chosen.append(int(m))
            for m in chosen:
                rows[count] = b, c, m
                count += 1
    return rows, np.asarray(count, np.int64)


def _numpy_corners(boxes: Any, center: bool) -> tuple[Any, Any]:
    a, b = boxes[:, :2], boxes[:, 2:]
    if center:
        half = b * np.float32(0.5)
        return a - half, a + half
    return np.minimum(a, b), np.maximum(a, b)


SUPPRESS = register(
    OpDef("suppress", "opaque", SuppressAttrs, _suppress_infer, _suppress_reference, loops=_suppress_loops)
)
