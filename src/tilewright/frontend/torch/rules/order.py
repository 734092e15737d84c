"""Rules for operators that depend on the order of elements: medians, modes, running maxima, search in sorted rows,
histograms."""

from __future__ import annotations

from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import DType, boolean, i32, i64
from tilewright.ir.expr import as_int, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, known


def _sorted(n: Call, x: Value, axis: int) -> tuple[Value, Value]:
    """(the elements of `x` along `axis` in ascending order, NaN last; their original positions)."""
    values, index = n.emit_all("topk", x, axis=axis, k=x.shape[axis], largest=False)
    return values, index


def _without(n: Call, x: Value, axis: int, keepdim: bool) -> Value:
    """`x` without its dimension `axis` of extent 1, unless `keepdim`."""
    return x if keepdim else n.reshape(x, (*x.shape[:axis], *x.shape[axis + 1 :]))


@rule("kthvalue")
def kthvalue(n: Call, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> list[Value]:
    if x.type.rank == 0:
        return [x, n.filled(0, i64, ())]
    axis = n.axis(dim, x)
    values, index = n.emit_all("topk", x, axis=axis, k=k, largest=False)
    return [_without(n, n.slice(v, axis, k - 1, 1), axis, keepdim) for v in (values, index)]


@rule("median.dim", "nanmedian.dim")
def median(n: Call, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    """[the lower of the two middle elements along `dim`, its position]; `keepdim` keeps that dimension with extent 1. A
    row with a NaN has it as its median, unless the operator leaves NaN out (`nanmedian`)."""
    if x.type.rank == 0:
        return [x, n.filled(0, i64, ())]
    axis = n.axis(dim, x)
    results = _median(n, n.nonempty(x, [axis]), axis)
    return [_without(n, v, axis, keepdim) for v in results]


def _median(n: Call, x: Value, axis: int) -> list[Value]:
    """The median along an axis and its place, whose dimension stays; numbers without meaning where it is empty."""
    values, index = _sorted(n, x, axis)
    extent = n.operand(x.shape[axis], i64)
    place = n.filled((x.shape[axis] - 1) // 2, i64, [1 if k == axis else d for k, d in enumerate(x.shape)])
    if x.dtype.is_float:
        unknown = n.cast(n.emit("isnan", values), i64)
        count = n.emit("sub", extent, n.emit("reduce_sum", unknown, axes=(axis,), keepdims=True))
        if "nanmedian" in n.name:
            below = n.emit("max", n.emit("sub", count, n.like(1, count)), n.like(0, count))
            place = n.emit("truncdiv", below, n.like(2, below))
        else:  # the first NaN
            place = n.emit("select", n.emit("lt", count, extent), count, place)
    return [n.emit("gather_elements", v, place, axis=axis) for v in (values, index)]


@rule("median.default", "nanmedian.default")
def median_of_all(n: Call, x: Value) -> Value:
    if as_int(x.type.size) == 0:
        return n.filled(float("nan"), x.dtype, ())
    flat = n.reshape(x, (product(x.shape),))
    result = n.reshape(_median(n, flat if x.dtype.is_float else n.nonempty(flat, [0]), 0)[0], ())
    if x.dtype.is_float and not known(flat.shape[0] >= 1):
        empty = n.emit("eq", n.symbols([flat.shape[0]], i64, ()), n.constant(0, i64))
        result = n.emit("select", empty, n.like(float("nan"), result), result)
    return n.surrogate(result, lambda: shared(n, x, result))


def shared(n: Call, x: Value, result: Value) -> Value:
    """`result`, an element of `x`, as the mean of all elements equal to it (NaN equals NaN), so that they share its
    gradient."""
    same = n.emit("or", n.emit("eq", x, result), n.emit("and", n.emit("isnan", x), n.emit("isnan", result)))
    axes = tuple(range(x.type.rank))
    count = n.emit("reduce_sum", n.cast(same, x.dtype), axes=axes, keepdims=False)
    chosen = n.emit("select", same, x, n.like(0, x))
    return n.emit("div", n.emit("reduce_sum", chosen, axes=axes, keepdims=False), count)


@rule("mode")
def mode(n: Call, x: Value, dim: int = -1, keepdim: bool = False) -> list[Value]:
    """[the most frequent element along `dim` (the smallest of several), its last position], by comparing all elements
    with each other; `keepdim` keeps that dimension with extent 1."""
    if x.type.rank == 0:
        return [x, n.filled(0, i64, ())]
    axis = n.axis(dim, x)
    x = n.nonempty(x, [axis])
    values, _ = _sorted(n, x, axis)
    one = n.reshape(values, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    other = n.reshape(values, (*x.shape[:axis], 1, *x.shape[axis:]))
    counts = n.emit("reduce_sum", n.cast(n.emit("eq", one, other), i32), axes=(axis + 1,), keepdims=False)
    best = n.emit("argmax", counts, axis=axis, keepdims=True, select_last_index=False)
    value = n.emit("gather_elements", values, best, axis=axis)
    same = n.cast(n.emit("eq", x, value), i32)
    place = n.emit("argmax", same, axis=axis, keepdims=True, select_last_index=True)
    value = n.picked(value, x, place, axis)
    return [_without(n, v, axis, keepdim) for v in (value, place)]


@rule("cummax", "cummin")
def running_extreme(n: Call, x: Value, dim: int) -> list[Value]:
    if x.type.rank == 0:
        return [x, n.filled(0, i64, ())]
    return list(n.emit_all("running_extreme", x, axis=n.axis(dim, x), largest=n.name.startswith("aten.cummax")))


@rule("logcumsumexp", "_logcumsumexp")
def logcumsumexp(n: Call, x: Value, dim: int) -> Value:
    return x if x.type.rank == 0 else n.emit("cumulative_logsumexp", x, axis=n.axis(dim, x))


# --- places in sorted rows ------------------------------------------------------------------------------------------


@rule("searchsorted")
def searchsorted(
    n: Call,
    row: Value,
    values: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """For each of `values` the number of elements of `row` (sorted, or sorted by the indices `sorter`) that are below
    it, or, with `right` or the `side` "right", not above it."""
    if sorter is not None:
        row = n.emit("gather_elements", row, sorter, axis=row.type.rank - 1)
    row, operand = n.together(row, values)
    shape = operand.shape
    if row.type.rank == 1:
        operand = n.reshape(operand, (product(shape),))
    elif operand.type.rank == 0:
        raise n.unsupported("of one value in several rows")
    places = n.emit("search_sorted", row, operand, right=bool(right) or side == "right")
    return n.cast(n.reshape(places, shape), n.dtype)


@rule("bucketize")
def bucketize(n: Call, values: Operand, row: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return searchsorted(n, row, values, right=right)


@rule("isin")
def isin(n: Call, elements: Operand, tests: Operand, *, assume_unique: bool = False, invert: bool = False) -> Value:
    """Whether each of `elements` is among `tests`, or with `invert` is not, by comparing it with all of them."""
    x, among = n.together(elements, tests)
    flat = n.reshape(among, (product(among.shape),))
    if as_int(flat.shape[0]) == 0:
        return n.filled(invert, boolean, x.shape)
    if x.dtype is boolean:
        x, flat = n.cast(x, i32), n.cast(flat, i32)
    same = n.emit("eq", n.reshape(x, (*x.shape, 1)), flat)
    result = n.cast(n.emit("reduce_max", n.cast(same, i32), axes=(x.type.rank,), keepdims=False), boolean)
    return n.emit("not", result) if invert else result


# --- counts in bins ---------------------------------------------------------------------------------------------------


@rule("histc")
def histc(n: Call, x: Value, bins: int = 100, low: float = 0, high: float = 0) -> Value:
    """A histogram of elements from `low` to `high` in `bins` equal intervals, the last one closed; if both bounds are
    0, from the least element to the greatest."""
    flat = n.reshape(x, (product(x.shape),))
    if as_int(flat.shape[0]) == 0:
        return n.filled(0, x.dtype, (bins,))
    work = flat if flat.dtype.is_float else n.cast(flat, n.dtype)
    if low == high:
        first = n.emit("reduce_min", work, axes=(0,), keepdims=False)
        last = n.emit("reduce_max", work, axes=(0,), keepdims=False)
    else:
        first, last = n.like(low, work), n.like(high, work)
    equal = n.emit("eq", first, last)
    one = n.like(1, first)
    first, last = (n.emit("select", equal, n.emit(op, v, one), v) for op, v in (("sub", first), ("add", last)))
    span = n.emit("sub", last, first)
    scaled = n.emit("div", n.emit("mul", n.emit("sub", work, first), n.like(bins, work)), span)
    inside = n.emit("and", n.emit("ge", work, first), n.emit("le", work, last))
    place = n.emit("min", n.cast(scaled, i64), n.constant(bins - 1, i64))
    place = n.emit("select", inside, place, n.constant(bins, i64))  # one more bin takes what is outside
    return _counted(n, place, n.filled(1, x.dtype, place.shape), bins, x.dtype)


def _counted(n: Call, place: Value, weights: Value, bins: int, t: DType) -> Value:
    """For each of `bins` places, the sum of `weights` whose entry in `place` it is; entries equal to `bins` are
    dropped."""
    zeros = n.filled(0, t, (bins + 1,))
    total = n.emit("scatter_elements", zeros, place, weights, axis=0, reduction="add")
    return n.slice(total, 0, 0, dim(bins))
