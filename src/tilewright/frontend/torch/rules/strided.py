"""Rules for diagonals, sliding windows and strided views, whose elements have positions known when compiling."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import rule
from tilewright.frontend.torch.rules.reduce import root
from tilewright.ir.attributes import same
from tilewright.ir.dtype import f64, i64
from tilewright.ir.expr import Expr, as_int, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, static

# --- diagonals ------------------------------------------------------------------------------------------------------


@rule("diagonal", "diagonal_copy", "linalg_diagonal")
def diagonal(n: Call, x: Value, offset: int = 0, first: int = 0, second: int = 1, **named: int) -> Value:
    """The diagonal of the axes `first` and `second` of `x`, `offset` columns to the right of the main one, as its last
    axis: every (columns + 1)-th element of each flattened matrix."""
    first, second = named.get("dim1", first), named.get("dim2", second)
    x, rows, columns = _planes(n, x, first, second)
    lead = x.shape[:-2]
    count = _diagonal_length(rows, columns, offset)
    if count == 0:
        return n.filled(0, x.dtype, (*lead, 0))
    begin = offset if offset >= 0 else -offset * columns
    flat = n.reshape(x, (*lead, rows * columns))
    return n.slice(flat, len(lead), begin, count, columns + 1)


def _planes(n: Call, x: Value, first: int, second: int) -> tuple[Value, int, int]:
    """(`x` with dimensions `first` and `second` moved to the end, their two extents)."""
    a, b = n.axis(first, x), n.axis(second, x)
    order = [k for k in range(x.type.rank) if k not in (a, b)]
    what = "an axis of a diagonal"
    return n.transpose(x, [*order, a, b]), static(x.shape[a], what), static(x.shape[b], what)


def _diagonal_length(rows: int, columns: int, offset: int) -> int:
    return max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))


@rule("diag_embed")
def diag_embed(n: Call, x: Value, offset: int = 0, first: int = -2, second: int = -1) -> Value:
    """Matrices of zeros with the last axis of `x` on diagonal number `offset`; their rows and columns are the axes
    `first` and `second`."""
    rank = x.type.rank + 1
    a, b = first % rank, second % rank
    size = static(x.shape[-1], "a diagonal") + abs(offset)
    rows, columns = np.indices((size, size))
    places = np.clip(rows if offset >= 0 else columns, 0, max(size - abs(offset) - 1, 0)).reshape(-1)
    if size == abs(offset):
        return n.filled(0, x.dtype, n.shape)
    wide = n.emit("gather", x, n.constant(places, i64), axis=x.type.rank - 1)
    square = n.reshape(wide, (*x.shape[:-1], size, size))
    square = n.emit("select", n.constant(columns - rows == offset), square, n.like(0, square))
    order = [k for k in range(rank) if k not in (a, b)]
    return n.transpose(square, _inverse([*order, a, b]))


def _inverse(order: Sequence[int]) -> list[int]:
    return [list(order).index(k) for k in range(len(order))]


@rule("diagonal_scatter")
def diagonal_scatter(n: Call, x: Value, part: Value, offset: int = 0, first: int = 0, second: int = 1) -> Value:
    """`x` with the diagonal number `offset` of the axes `first` and `second` replaced by `part`."""
    a, b = n.axis(first, x), n.axis(second, x)
    planes, rows, columns = _planes(n, x, first, second)
    row, column = np.indices((rows, columns))
    on = column - row == offset
    if not on.any():
        return x
    along = np.clip(row if offset >= 0 else column, 0, _diagonal_length(rows, columns, offset) - 1)
    wide = n.emit("gather", n.cast(part, x.dtype), n.constant(along.reshape(-1), i64), axis=part.type.rank - 1)
    wide = n.reshape(wide, planes.shape)
    order = [k for k in range(x.type.rank) if k not in (a, b)]
    return n.transpose(n.emit("select", n.constant(on), wide, planes), _inverse([*order, a, b]))


@rule("trace", single=True)
def trace(n: Call, x: Value) -> Value:
    return n.emit("reduce_sum", n.cast(diagonal(n, x), n.dtype), axes=(0,), keepdims=False)


# --- windows --------------------------------------------------------------------------------------------------------


@rule("unfold", "unfold_copy")
def unfold(n: Call, x: Value, dimension: int, size: int, step: int) -> Value:
    """Windows of `size` elements at every `step`-th position along the axis `dimension` of `x`: that axis counts the
    windows, and a new last axis their elements."""
    if x.type.rank == 0:
        return n.reshape(x, n.shape)
    axis = n.axis(dimension, x)
    windows = n.shape[axis]
    starts = n.emit("range", start=0, step=step, size=windows, dtype=i64)
    inner = n.emit("range", start=0, step=1, size=size, dtype=i64)
    places = n.emit("add", n.reshape(starts, (windows, 1)), n.reshape(inner, (1, size)))
    if as_int(product(n.shape)) == 0:
        return n.filled(0, x.dtype, n.shape)
    y = n.emit("gather", x, places, axis=axis)
    order = [k for k in range(y.type.rank) if k != axis + 1]
    return n.transpose(y, [*order, axis + 1])


# --- strides --------------------------------------------------------------------------------------------------------


def _memory(n: Call, x: Value) -> Value:
    """The elements of `x` as a vector in the order of memory, which PyTorch's strides state. Raises UnsupportedError if
    there are gaps or overlaps."""
    fake = n.operands[0]
    if fake is None or any(as_int(d) is None for d in x.shape):
        raise n.unsupported("of symbolic sizes")
    strides = [int(s) for s in fake.stride()]
    order = sorted(range(x.type.rank), key=lambda k: (-strides[k], k))
    expected = 1
    for k in reversed(order):
        extent = static(x.shape[k], "a dimension")
        if extent != 1 and strides[k] != expected:
            raise n.unsupported("of a tensor whose memory has gaps", got=strides)
        expected *= extent
    if int(fake.storage_offset()):
        raise n.unsupported("of a tensor that does not begin where its memory does")
    return n.reshape(n.transpose(x, order), (x.type.size,))


def _places(n: Call, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> Any:
    """For each element of a view of `size` and `stride` its position in memory, from `offset` on."""
    if not all(isinstance(v, int) for v in (*size, *stride)) or not isinstance(offset, int | None):
        raise n.unsupported("with symbolic sizes")
    places = np.full(tuple(size), offset or 0, np.int64)
    for k, (extent, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(extent) * step).reshape([-1 if k == j else 1 for j in range(len(size))])
    return places


@rule("as_strided", "as_strided_copy")
def as_strided(n: Call, x: Value, size: Any, stride: Any, offset: Any = None) -> Value:
    places, flat = _places(n, size, stride, offset), _memory(n, x)
    if not places.size:
        return n.filled(0, x.dtype, size)
    if places.max() >= static(flat.shape[0], "memory"):
        raise n.unsupported("beyond the elements of the tensor")
    return n.reshape(n.emit("gather", flat, n.constant(places.reshape(-1), i64), axis=0), size)


@rule("as_strided_scatter")
def as_strided_scatter(n: Call, x: Value, part: Value, size: Any, stride: Any, offset: Any = None) -> Value:
    """`x` with the elements of a view of it, with `size`, `stride` and `offset` in elements, replaced by `part`. Views
    with overlapping elements are refused."""
    places, flat = _places(n, size, stride, offset).reshape(-1), _memory(n, x)
    if as_int(flat.shape[0]) == 0 or not places.size:
        return x
    if places.max() >= static(flat.shape[0], "memory") or len(set(places.tolist())) != len(places):
        raise n.unsupported("with elements that overlap")
    updates = n.reshape(n.cast(part, x.dtype), (len(places),))
    y = n.emit("scatter_elements", flat, n.constant(places, i64), updates, axis=0, reduction="none")
    if [int(s) for s in n.operands[0].stride()] != _dense([as_int(d) or 0 for d in x.shape]):
        raise n.unsupported("into a tensor that is not contiguous")
    return n.reshape(y, x.shape)


def _dense(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    return list(itertools.accumulate(reversed(shape[1:]), lambda a, b: a * max(b, 1), initial=1))[::-1]


# --- products of small parts ------------------------------------------------------------------------------------------


@rule("_trilinear", single=True)
def trilinear(
    n: Call, a: Value, b: Value, c: Value, ea: Any, eb: Any, ec: Any, summed: Sequence[int], unroll: int = 1
) -> Value:
    """The product of the three tensors `a`, `b` and `c` summed over the axes `summed`. `ea`, `eb`, `ec`: axes of size 1
    that each tensor gets first. `unroll` has no effect."""
    spread = [_with_axes(n, v, axes) for v, axes in ((a, ea), (b, eb), (c, ec))]
    product_ = n.emit("mul", n.emit("mul", spread[0], spread[1]), spread[2])
    return n.emit("reduce_sum", product_, axes=tuple(sorted(summed)), keepdims=False) if summed else product_


def _with_axes(n: Call, x: Value, axes: Sequence[int]) -> Value:
    shape = list(x.shape)
    for axis in sorted(axes):
        shape.insert(axis, dim(1))
    return n.reshape(x, shape)


@rule("_cdist_forward", single=True)
def cdist(n: Call, a: Value, b: Value, p: float, mode: Any = None) -> Value:
    """Distances between all rows of `a` and all rows of `b`."""
    wide = n.emit("sub", n.reshape(a, (*a.shape[:-1], 1, a.shape[-1])), n.reshape(b, _before(b, b.type.rank - 2)))
    return distance(n, wide, float(p))


def _before(x: Value, axis: int) -> tuple[Any, ...]:
    return (*x.shape[:axis], 1, *x.shape[axis:])


def distance(n: Call, difference: Value, p: float) -> Value:
    """The p-norm of `difference` over its last axis."""
    axes = {"axes": (difference.type.rank - 1,), "keepdims": False}
    size = n.emit("abs", difference)
    if p == 0:
        return n.emit("reduce_sum", n.cast(n.emit("ne", size, n.like(0, size)), size.dtype), **axes)
    if p == float("inf"):
        empty = as_int(difference.shape[-1]) == 0
        return n.filled(0, size.dtype, difference.shape[:-1]) if empty else n.emit("reduce_max", size, **axes)
    if p == 1:
        return n.emit("reduce_sum", size, **axes)
    if p == 2:
        return root(n, n.emit("reduce_sum", n.emit("mul", difference, difference), **axes))
    powers = n.emit("reduce_sum", root(n, size, p), **axes)
    return root(n, powers, 1 / p)


@rule("_pdist_forward", "pdist", single=True)
def pdist(n: Call, x: Value, p: float = 2.0) -> Value:
    """Distances between all pairs of different rows, the first row's first."""
    rows = as_int(x.shape[0])
    if rows is None:
        first, second = _pairs(n, x.shape[0])
    else:
        first, second = (n.constant(i, i64) for i in np.triu_indices(rows, 1))
        if rows < 2:
            return n.filled(0, x.dtype, (0,))
    a, b = (n.emit("gather", x, i, axis=0) for i in (first, second))
    return distance(n, n.emit("sub", a, b), float(p))


def _pairs(n: Call, rows: Expr) -> tuple[Value, Value]:
    """The indices of both rows of each pair, for a symbolic number of rows, in `pdist`'s order. Pairs are counted from
    the last one; the row then follows from the inverse of the triangular numbers, by a square root."""
    count = n.shape[0]
    k = n.emit("range", start=dim(count - 1), step=-1, size=count, dtype=i64)
    root_ = n.emit("sqrt", n.emit("add", n.emit("mul", n.cast(k, f64), n.constant(8.0, f64)), n.constant(1.0, f64)))
    one, two = n.constant(1, i64), n.constant(2, i64)
    back = n.emit("truncdiv", n.emit("add", n.cast(n.emit("floor", root_), i64), one), two)  # rows from the end, from 1
    before = n.emit("truncdiv", n.emit("mul", back, n.emit("sub", back, one)), two)
    last = n.operand(dim(rows - 1), i64)
    return n.emit("sub", last, back), n.emit("sub", last, n.emit("sub", k, before))


@rule("addbmm")
def addbmm(n: Call, x: Value, a: Value, b: Value, beta: Operand = 1, alpha: Operand = 1) -> Value:
    """beta x + alpha times the sum of the batch's products, computed as one product over batch and depth."""
    batch, rows, depth = a.shape
    left = n.reshape(n.transpose(a, (1, 0, 2)), (rows, dim(batch * depth)))
    total = n.emit("matmul", left, n.reshape(b, (dim(batch * depth), b.shape[2])))
    if not same(alpha, 1):
        total = n.emit("mul", total, n.operand(alpha, total.dtype))
    if same(beta, 0):
        return total
    return n.emit("add", x if same(beta, 1) else n.emit("mul", x, n.operand(beta, x.dtype)), total)
