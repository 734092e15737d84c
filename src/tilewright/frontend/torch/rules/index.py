"""Rules for gathers, scatters, embeddings and one-hot encodings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilewright.arith import simplify
from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import rule
from tilewright.ir.attributes import same
from tilewright.ir.dtype import DType, boolean, i32, i64
from tilewright.ir.expr import Expr, as_expr, as_int, is_const
from tilewright.ir.graph import Value
from tilewright.ops.dims import broadcast_shapes
from tilewright.ops.shape import RangeAttrs
from tilewright.support.errors import UnsupportedError


@rule("embedding")
def embedding(
    n: Call, table: Value, indices: Value, padding: Any = -1, by_frequency: bool = False, sparse: bool = False
) -> Value:
    """The rows of `table` that `indices` name. The row `padding` gets no gradient; `by_frequency` divides each row's
    gradient by how often it is read. `sparse` only affects PyTorch's storage of the gradient."""
    n.check_indices(indices, table.shape[0])
    rows = n.emit("gather", table, indices, axis=0)
    number = as_int(padding)
    ignored = number if number is not None and number >= 0 else None
    return _trained(n, rows, table, indices, ignored, by_frequency)


def _trained(n: Call, rows: Value, table: Value, indices: Value, padding: int | None, by_frequency: bool) -> Value:
    """`rows`, looked up in `table` at `indices`, with PyTorch's gradient in training: none to row `padding`, and
    divided by how often a row is read if `by_frequency`."""

    def counted() -> Value:
        result = rows
        if by_frequency:
            result = n.emit("div", result, n.reshape(_frequencies(n, table, indices), (*indices.shape, 1)))
        if padding is not None:
            trained = n.reshape(n.emit("ne", indices, n.like(padding, indices)), (*indices.shape, 1))
            result = n.emit("select", trained, result, n.like(0, result))
        return result

    return rows if padding is None and not by_frequency else n.surrogate(rows, counted)


def _frequencies(n: Call, table: Value, indices: Value) -> Value:
    """For each of `indices`, how often it occurs among all of them, in the type of `table`."""
    flat = n.reshape(indices, (indices.type.size, 1))
    ones, none = n.filled(1, table.dtype, flat.shape[:1]), n.filled(0, table.dtype, table.shape[:1])
    return n.emit("gather", n.emit("scatter_nd", none, flat, ones, reduction="add"), indices, axis=0)


@rule("index_select")
def index_select(n: Call, x: Value, dim: int, index: Value) -> Value:
    axis = n.axis(dim, x)
    n.check_indices(index, x.shape[axis] if x.type.rank else as_expr(1))
    y = n.emit("gather", x, n.reshape(index, (index.type.size,)), axis=axis)
    return n.reshape(y, n.shape)


@rule("gather")
def gather(n: Call, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    if x.type.rank == 0:
        return n.broadcast(x, index.shape)
    axis = n.axis(dim, x)
    n.check_indices(index, x.shape[axis])
    return n.emit("gather_elements", x, index, axis=axis)


@rule("take_along_dim")
def take_along_dim(n: Call, x: Value, index: Value, dim: int | None = None) -> Value:
    if dim is None:
        raise n.unsupported("over all elements")
    axis = n.axis(dim, x)
    shape = broadcast_shapes(x.shape[:axis] + x.shape[axis + 1 :], index.shape[:axis] + index.shape[axis + 1 :])
    wide = n.broadcast(index, (*shape[:axis], index.shape[axis], *shape[axis:]))
    return gather(n, n.broadcast(x, (*shape[:axis], x.shape[axis], *shape[axis:])), dim, wide)


@rule("index.Tensor")
def index(n: Call, x: Value, indices: Sequence[Value | None]) -> Value:
    """x[i, :, j ...]: integer tensors broadcast together; adjacent ones keep their position, else the indexed
    dimensions come first. A mask is replaced by the coordinates where it is true."""
    masks = [i for i in indices if i is not None and _is_mask(i)]
    if len(masks) == 1 and indices[0] is masks[0] and all(i is None for i in indices[1:]):
        return of_mask(n, x, masks[0])
    if masks:
        indices = _coordinates(n, indices, masks)
    places = [k for k, i in enumerate(indices) if i is not None]
    present = [i for i in indices if i is not None]
    for k, i in zip(places, present, strict=True):
        n.check_indices(i, x.shape[k], from_end=True)
    if len(places) == 1:
        return n.emit("gather", x, present[0], axis=places[0])
    shape = broadcast_shapes(*(i.shape for i in present))
    joined = n.emit(
        "concat", *(n.reshape(n.broadcast(n.cast(i, i64), shape), (*shape, 1)) for i in present), axis=len(shape)
    )
    rest = [k for k in range(x.type.rank) if k not in places]
    y = n.emit("gather_nd", n.transpose(x, [*places, *rest]), joined, batch_dims=0)
    if places != list(range(places[0], places[-1] + 1)) or places[0] == 0:
        return y
    before, wide = places[0], len(shape)
    order = [*range(wide, wide + before), *range(wide), *range(wide + before, y.type.rank)]
    return n.transpose(y, order)


def _is_mask(index: Value) -> bool:
    return index.dtype is boolean or index.dtype.name == "u8"


def _coordinates(
    n: Call, indices: Sequence[Value | None], masks: Sequence[Value], *, reads: bool = True
) -> list[Value | None]:
    """`indices` with each mask, which covers as many dimensions as it has, replaced by the coordinates of its true
    elements along them. `reads`: whether the node's result has a dimension of these elements. Raises UnsupportedError
    for several masks, and beside indices of several elements, which must be as many as are true."""
    others = [i for i in indices if i is not None and not _is_mask(i)]
    if len(masks) > 1 or any(not is_const(d, 1) for i in others for d in i.shape):
        what = "a mask beside another index of several elements is not supported"
        raise UnsupportedError(what, hint="index first by the mask, then within the result; or use torch.where")
    covered = [k for i in indices for k in ([i is not None] * (i.type.rank if i is not None and _is_mask(i) else 1))]
    first, last = covered.index(True), len(covered) - covered[::-1].index(True)
    wide = max([1, *(i.type.rank for i in others)])
    axis = (first if all(covered[first:last]) else 0) + wide - 1  # of the last dimension of the indices, broadcast
    result: list[Value | None] = []
    for i in indices:
        if i is None or not _is_mask(i):
            result.append(i)
            continue
        rows = n.places(i, axis if reads else None)
        result += [n.reshape(n.slice(rows, 1, k, 1), rows.shape[:1]) for k in range(i.type.rank)]
    return result


def of_mask(n: Call, x: Value, mask: Value) -> Value:
    """x[mask]: the elements where a mask of the first dimensions is true."""
    rows = n.places(mask)
    if mask.type.rank == 1:
        return n.emit("gather", x, n.reshape(rows, rows.shape[:1]), axis=0)
    return n.emit("gather_nd", x, rows, batch_dims=0)


@rule("nonzero")
def nonzero(n: Call, x: Value) -> Value:
    """The coordinates of elements that are not zero, one row each."""
    return n.places(x)


@rule("masked_select")
def masked_select(n: Call, x: Value, mask: Value) -> Value:
    shape = broadcast_shapes(x.shape, mask.shape)
    flat = [n.broadcast(v, shape) for v in (x, mask)]
    flat = [n.reshape(v, (v.type.size,)) for v in flat]
    return of_mask(n, flat[0], flat[1])


@rule("one_hot")
def one_hot(n: Call, x: Value, classes: int = -1) -> Value:
    if classes < 0:
        raise n.unsupported("without a number of classes")
    return n.emit("one_hot", x, n.constant([0, 1], i64), axis=x.type.rank, depth=classes)


_COMBINED = {None: "none", "add": "add", "sum": "add", "mean": "add", "multiply": "mul", "prod": "mul"}
_COMBINED |= {"amax": "max", "amin": "min"}
"""Our names of the reductions of scatters."""


@rule("scatter.src", "scatter.value", "scatter_add", "scatter.reduce", "scatter.value_reduce")
def scatter(n: Call, x: Value, dim: int, index: Value, source: Operand, reduce: str | None = None) -> Value:
    updates = n.cast(source, x.dtype) if isinstance(source, Value) else n.filled(source, x.dtype, index.shape)
    kind = "add" if n.name == "aten.scatter_add" else _COMBINED[reduce]
    _check_scattered(n, x, dim, index)
    return _scattered(n, x, dim, index, updates, kind)


def _check_scattered(n: Call, x: Value, dim: int, index: Value) -> None:
    n.check_indices(index, x.shape[n.axis(dim, x)] if x.type.rank else as_expr(1))


def _scattered(n: Call, x: Value, dim: int, index: Value, updates: Value, kind: str) -> Value:
    """`x` with `updates` combined by `kind` at the positions `index` along `dim`. Updates may be larger than `index`,
    and are cut; scalars count as vectors of one element."""
    if x.type.rank == 0:
        parts = (n.reshape(v, (1,)) for v in (x, index, updates))
        one, index, updates = parts
        return n.reshape(_scattered(n, one, 0, index, updates, kind), ())
    if index.type.rank == 0:
        index, updates = n.reshape(index, (1,)), n.reshape(updates, (1,))
    if as_int(index.type.size) == 0:
        return x
    if updates.shape != index.shape:
        for axis, size in enumerate(index.shape):
            updates = n.slice(updates, axis, 0, size)
    if x.dtype is boolean:
        x, updates = n.cast(x, i32), n.cast(updates, i32)
        kind = {"add": "max", "mul": "min"}.get(kind, kind)
        y = n.emit("scatter_elements", x, index, updates, axis=n.axis(dim, x), reduction=kind)
        return n.cast(y, boolean)
    return n.emit("scatter_elements", x, index, updates, axis=n.axis(dim, x), reduction=kind)


@rule("scatter_reduce.two")
def scatter_reduce(
    n: Call, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    """PyTorch's `scatter_reduce`: elements of `source` are reduced by `reduce` into the elements of `x` that `index`
    names along `dim`. With `include_self` false, elements that updates reach start from the reduction's identity."""
    updates = n.cast(source, x.dtype)
    _check_scattered(n, x, dim, index)
    start = x
    if not include_self:
        identity = n.filled(_identity(reduce, x.dtype), x.dtype, index.shape)
        start = _scattered(n, x, dim, index, identity, "none")
    total = _scattered(n, start, dim, index, updates, _COMBINED[reduce])
    if reduce in ("amax", "amin") and not include_self:
        return n.surrogate(total, lambda: _shared(n, x, dim, index, updates, total))
    return _mean(n, total, dim, index, include_self) if reduce == "mean" else total


def _identity(reduce: str, t: DType) -> Any:
    if reduce in ("amax", "amin"):
        if t.is_float:
            return float("-inf") if reduce == "amax" else float("inf")
        return t.min if reduce == "amax" else t.max
    return 1 if reduce == "prod" else 0


def _shared(n: Call, x: Value, dim: int, index: Value, updates: Value, total: Value) -> Value:
    """For `total`, the maximum or minimum that `scatter_reduce` computes from `x` and the `updates` at `index` along
    `dim`, the function whose gradient PyTorch gives it: updates that equal the result share its gradient equally. An
    element of `x` that equals the result counts as one more, though it gets no gradient."""
    selected = n.emit("gather_elements", total, index, axis=n.axis(dim, x))
    own, same = (n.cast(n.emit("eq", *pair), x.dtype) for pair in ((x, total), (updates, selected)))
    several = n.emit("gather_elements", _scattered(n, own, dim, index, same, "add"), index, axis=n.axis(dim, x))
    zeros = n.filled(0, x.dtype, index.shape)
    share = n.emit("div", n.emit("select", n.emit("eq", updates, selected), updates, zeros), several)
    return _scattered(n, _scattered(n, x, dim, index, zeros, "none"), dim, index, share, "add")


def _mean(n: Call, total: Value, dim: int, index: Value, include_self: bool) -> Value:
    """`total`, sums by `index` along `dim`, divided by the number of elements in each; `include_self` counts the
    original element."""
    start = n.filled(1 if include_self else 0, total.dtype, total.shape)
    counts = _scattered(n, start, dim, index, n.filled(1, total.dtype, index.shape), "add")
    counts = n.emit("max", counts, n.like(1, counts))
    return n.emit("div" if total.dtype.is_float else "floordiv", total, counts)


@rule("index_fill")
def index_fill(n: Call, x: Value, dim: int, index: Value, value: Operand) -> Value:
    """`x` with `value` at the places `index` along `dim`: a select by a mask of the indexed places, as an index may
    occur twice."""
    if as_int(index.type.size) == 0:
        return x
    flat = x if x.type.rank else n.reshape(x, (1,))
    axis, rank = n.axis(dim, flat), flat.type.rank
    places = n.reshape(index, (index.type.size,))
    n.check_indices(places, flat.shape[axis], from_end=True)
    zeros = n.filled(0, i32, (flat.shape[axis],))
    ones = n.filled(1, i32, places.shape)
    flags = n.cast(n.emit("scatter_elements", zeros, places, ones, axis=0, reduction="none"), boolean)
    flags = n.reshape(flags, [flat.shape[axis] if k == axis else 1 for k in range(rank)])
    result = n.emit("select", flags, n.filled(value, x.dtype, ()), flat)
    return n.reshape(result, x.shape)


@rule("index_add", "index_copy", "index_reduce")
def index_slices(
    n: Call,
    x: Value,
    dim: int,
    index: Value,
    source: Operand,
    reduce: str | None = None,
    *,
    alpha: Any = 1,
    include_self: bool = True,
) -> Value:
    """`x` with whole slices of `source`, times `alpha`, added, copied or (by `reduce`) reduced into its slices number
    `index` along `dim`: a scatter whose index vector is broadcast to the source's shape. With `include_self` false, the
    old slices of `x` do not count in a reduction."""
    name = n.name.removeprefix("aten.").split(".")[0]
    if x.type.rank == 0:
        x, shape = n.reshape(x, (1,)), x.shape
        source = n.reshape(source, (1,)) if isinstance(source, Value) and source.type.rank == 0 else source
    else:
        shape = x.shape
    axis = n.axis(dim, x)
    if name == "index_add" and as_int(x.type.size) == 0:
        return n.reshape(x, shape)  # and PyTorch does not look at indices
    n.check_indices(index, x.shape[axis])
    count = index.type.size
    whole = tuple(count if k == axis else d for k, d in enumerate(x.shape))
    assert isinstance(source, Value)
    updates = n.reshape(n.cast(source, x.dtype), whole)
    if not same(alpha, 1):
        updates = n.emit("mul", updates, n.like(alpha, updates))
    if as_int(updates.type.size) == 0:
        return n.reshape(x, shape)
    lone = n.reshape(index, [count if k == axis else 1 for k in range(x.type.rank)])
    places = n.broadcast(lone, whole)
    if name == "index_reduce":
        assert reduce is not None
        result = scatter_reduce(n, x, axis, places, updates, reduce, include_self=include_self)
    else:
        result = _scattered(n, x, axis, places, updates, "add" if name == "index_add" else "none")
    return n.reshape(result, shape)


@rule("take")
def take(n: Call, x: Value, index: Value) -> Value:
    if as_int(index.type.size) == 0:
        return n.filled(0, x.dtype, index.shape)
    n.check_indices(index, x.type.size, from_end=True)
    return n.emit("gather", n.reshape(x, (x.type.size,)), index, axis=0)


@rule("put")
def put(n: Call, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    n.check_indices(index, x.type.size, from_end=True)
    flat, places, updates = (n.reshape(v, (v.type.size,)) for v in (x, index, n.cast(source, x.dtype)))
    y = _scattered(n, flat, 0, places, updates, "add" if accumulate else "none")
    return n.reshape(y, x.shape)


@rule("masked_scatter")
def masked_scatter(n: Call, x: Value, mask: Value, source: Value) -> Value:
    """Elements of `x` where the mask is true are replaced by the elements of `source` in order; a running count of the
    mask gives the position."""
    shape = broadcast_shapes(x.shape, mask.shape)
    x, mask = n.broadcast(x, shape), n.broadcast(n.cast(mask, boolean), shape)
    if as_int(x.type.size) == 0 or as_int(source.type.size) == 0:
        return x
    flat = n.reshape(mask, (mask.type.size,))
    counts = n.emit("cumsum", n.cast(flat, i64), axis=0, exclusive=True, reverse=False)
    selected = n.emit("gather", n.reshape(n.cast(source, x.dtype), (source.type.size,)), counts, axis=0)
    return n.emit("select", mask, n.reshape(selected, shape), x)


@rule("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(n: Call, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    """x[i, :, j ...] = values, or += with `accumulate`: the axes indexed by `indices` (None: not indexed) are moved to
    the front, and back afterwards."""
    present = [i for i in indices if i is not None]
    if len(present) == 1 and present[0].dtype is boolean and indices[0] is not None:
        if accumulate and x.dtype is boolean:
            raise n.unsupported("by a mask, truths added up")
        mask, chosen = present[0], _of_places(n, x, present[0], n.cast(values, x.dtype))
        mask = n.broadcast(n.reshape(mask, (*mask.shape, *([1] * (x.type.rank - mask.type.rank)))), x.shape)
        return n.emit("select", mask, n.emit("add", x, chosen) if accumulate else chosen, x)
    if masks := [i for i in present if i.dtype is boolean]:
        indices = _coordinates(n, indices, masks, reads=False)
        present = [i for i in indices if i is not None]
    places = [k for k, i in enumerate(indices) if i is not None]
    for k, i in zip(places, present, strict=True):
        n.check_indices(i, x.shape[k], from_end=True)
    rest = [k for k in range(x.type.rank) if k not in places]
    shape = broadcast_shapes(*(i.shape for i in present))
    together = places == list(range(places[0], places[-1] + 1))
    before = places[0] if together else 0
    lead, tail = [x.shape[k] for k in rest[:before]], [x.shape[k] for k in rest[before:]]
    updates = n.broadcast(n.cast(values, x.dtype), (*lead, *shape, *tail))
    order = [*range(before, before + len(shape)), *range(before), *range(before + len(shape), updates.type.rank)]
    updates = n.transpose(updates, order)
    if as_int(updates.type.size) == 0:
        return x
    parts = [n.reshape(n.broadcast(n.cast(i, i64), shape), (*shape, 1)) for i in present]
    joined = parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=len(shape))
    front = n.transpose(x, [*places, *rest])
    logical = x.dtype is boolean
    if logical:
        front, updates = n.cast(front, i32), n.cast(updates, i32)
    kind = ("max" if logical else "add") if accumulate else "none"
    y = n.emit("scatter_nd", front, joined, updates, reduction=kind)
    back = [[*places, *rest].index(k) for k in range(x.type.rank)]
    return n.transpose(n.cast(y, boolean) if logical else y, back)


def _of_places(n: Call, x: Value, mask: Value, values: Value) -> Value:
    """The numbers that x[mask] = values stores, in the shape of x: row k of `values` at the k-th place where the mask,
    which covers the first dimensions of x, is true.

    A row of zeros precedes them, so that the running count of the mask is a valid index even where it is still 0.
    """
    rest = x.shape[mask.type.rank :]
    lead = values.type.rank - len(rest)
    if lead <= 0 or is_const(values.shape[0], 1):
        return n.broadcast(n.reshape(values, values.shape[1:]) if lead > 0 else values, x.shape)
    rows = n.emit("concat", n.filled(0, x.dtype, (1, *rest)), n.broadcast(values, (values.shape[0], *rest)), axis=0)
    flat = n.cast(n.reshape(mask, (mask.type.size,)), i64)
    counts = n.emit("cumsum", flat, axis=0, exclusive=False, reverse=False)
    return n.reshape(n.emit("gather", rows, counts, axis=0), x.shape)


# --- bags of embeddings -----------------------------------------------------------------------------------------------


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    n: Call,
    table: Value,
    indices: Value,
    offsets: Value,
    scale_grad: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Value | None = None,
    include_last: bool = False,
    padding: int = -1,
) -> list[Value]:
    """Sums (`mode` 0), means (1) or maxima (2) of the rows of `table` that `indices` name, by bags; `offsets` are the
    first places of the bags. `weights` multiply rows, and rows number `padding` do not count. A row belongs to the last
    bag whose offset is not after it. Only the first result is supported.

    Gradients by frequency are refused: PyTorch 2.13 divides by a wrong count: for the k-th distinct index it uses that
    of the k-th entry in the sorted list of all indices (`EmbeddingBag.cpp`).
    """
    if scale_grad and n.random is not None:
        raise n.unsupported("with scale_grad_by_freq in training", hint="nn.Embedding has it, before a sum")
    bags = n.shape[0]
    if as_int(indices.type.size) == 0 or as_int(bags) == 0:
        return [n.filled(0, table.dtype, n.shape)]
    n.check_indices(indices, table.shape[0])
    rows = n.wide(n.emit("gather", table, indices, axis=0))
    column = (indices.shape[0], 1)
    unpadded = None if padding < 0 else n.reshape(n.emit("ne", indices, n.like(padding, indices)), column)
    if unpadded is not None:
        rows = n.emit("select", unpadded, rows, n.like(float("-inf") if mode == 2 else 0.0, rows))
    if weights is not None:
        rows = n.emit("mul", rows, n.reshape(n.cast(weights, rows.dtype), column))
    counted = n.filled(1, rows.dtype, column) if unpadded is None else n.cast(unpadded, rows.dtype)
    reduced = _reduction(n, offsets, bags, indices)
    total = reduced(rows, "max" if mode == 2 else "add")
    if mode == 0:
        return [n.cast(total, table.dtype)]
    counts = reduced(counted, "add")
    if mode == 1:
        return [n.cast(n.emit("div", total, n.emit("max", counts, n.like(1, counts))), table.dtype)]
    result = n.emit("select", n.emit("gt", counts, n.like(0, counts)), total, n.like(0, total))
    return [n.cast(result, table.dtype)]


def _reduction(n: Call, offsets: Value, bags: Expr, indices: Value) -> Callable[[Value, str], Value]:
    """A function (rows, kind) that reduces the rows of each of `bags` bags, which begin at `offsets` in `indices`, by
    "add" or "max", for equal bags or for arbitrary ones."""
    length = _equal_bags(n, offsets, bags, indices)
    if length is not None:
        return partial(_of_equal_bags, n, bags, length)
    return partial(_of_bags, n, bags, _bag_of_each(n, offsets, bags, indices.shape[0]))


def _equal_bags(n: Call, offsets: Value, bags: Expr, indices: Value) -> Expr | None:
    """The number of rows of each of `bags` bags if `offsets` is the range 0, k, 2k, ..., as for two-dimensional
    indices; None for other offsets."""
    node = next((node for node in reversed(n.builder.nodes) if offsets in node.outputs), None)
    if node is None or node.op != "range":
        return None
    steps = node.of(RangeAttrs)
    start, step = as_expr(steps.start), as_expr(steps.step)
    return step if is_const(start, 0) and is_const(simplify(bags * step - indices.shape[0]), 0) else None


def _of_equal_bags(n: Call, bags: Expr, length: Expr, rows: Value, kind: str) -> Value:
    """The sums (`kind` "add") or maxima of `rows` [bags * length, columns] over each bag of `length` rows; a maximum's
    gradient flows to the first largest element."""
    x = n.reshape(rows, (bags, length, rows.shape[1]))
    if kind == "add":
        return n.emit("reduce_sum", x, axes=(1,), keepdims=False)
    result = n.emit("reduce_max", x, axes=(1,), keepdims=False)
    place = n.emit("argmax", x, axis=1, keepdims=True, select_last_index=False)
    return n.picked(result, x, place, 1)


def _bag_of_each(n: Call, offsets: Value, bags: Expr, count: Expr) -> Value:
    """The number of the bag that each of `count` rows is in, [count, 1]: the offsets that are not after it, minus 1.
    Offsets after the last row have no effect."""
    starts = n.reshape(n.slice(n.cast(offsets, i64), 0, 0, bags), (bags, 1))
    begun = n.emit("scatter_nd", n.filled(0, i64, (count + 1,)), starts, n.filled(1, i64, (bags,)), reduction="add")
    begun = n.emit("cumsum", n.slice(begun, 0, 0, count), axis=0, exclusive=False, reverse=False)
    return n.reshape(n.emit("sub", begun, n.like(1, begun)), (count, 1))


def _of_bags(n: Call, bags: Expr, bag: Value, rows: Value, kind: str) -> Value:
    start = n.filled(float("-inf") if kind == "max" else 0.0, rows.dtype, (bags, rows.shape[1]))
    return n.emit("scatter_nd", start, bag, rows, reduction=kind)
