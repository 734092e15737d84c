"""Rules for gathers, scatters, embeddings and one-hot encodings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value
from tilewright.ops.dims import broadcast_shapes
from tilewright.support.errors import UnsupportedError


@rule("embedding")
def embedding(n: Call, table: Value, indices: Value, *_: Any, **__: Any) -> Value:
    return n.emit("gather", table, indices, axis=0)


@rule("index_select")
def index_select(n: Call, x: Value, dim: int, index: Value) -> Value:
    y = n.emit("gather", x, n.reshape(index, (index.type.size,)), axis=n.axis(dim, x))
    return n.reshape(y, n.shape)


@rule("gather")
def gather(n: Call, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    if x.type.rank == 0:
        return n.broadcast(x, index.shape)
    return n.emit("gather_elements", x, index, axis=n.axis(dim, x))


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
    """x[i, :, j ...]: integer tensors broadcast together; those side by side stand where they stood, else in front."""
    places = [k for k, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    if any(i.dtype is boolean or i.dtype.name == "u8" for i in given):
        raise UnsupportedError("indexing by a mask has a size that depends on the data", hint="use torch.where")
    if len(places) == 1:
        return n.emit("gather", x, given[0], axis=places[0])
    shape = broadcast_shapes(*(i.shape for i in given))
    joined = n.emit(
        "concat", *(n.reshape(n.broadcast(n.cast(i, i64), shape), (*shape, 1)) for i in given), axis=len(shape)
    )
    rest = [k for k in range(x.type.rank) if k not in places]
    y = n.emit("gather_nd", n.transpose(x, [*places, *rest]), joined, batch_dims=0)
    if places != list(range(places[0], places[-1] + 1)) or places[0] == 0:
        return y
    before, wide = places[0], len(shape)
    order = [*range(wide, wide + before), *range(wide), *range(wide + before, y.type.rank)]
    return n.transpose(y, order)


@rule("one_hot")
def one_hot(n: Call, x: Value, classes: int = -1) -> Value:
    if classes < 0:
        raise n.unsupported("without a number of classes")
    return n.emit("one_hot", x, n.constant([0, 1], i64), axis=x.type.rank, depth=classes)


@rule("scatter.src", "scatter.value", "scatter_add", "scatter.reduce", "scatter.value_reduce")
def scatter(n: Call, x: Value, dim: int, index: Value, source: Operand, reduce: str | None = None) -> Value:
    updates = n.cast(source, x.dtype) if isinstance(source, Value) else n.filled(source, x.dtype, index.shape)
    if updates.shape != index.shape:
        for axis, size in enumerate(index.shape):
            updates = n.slice(updates, axis, 0, size)
    kind = "add" if n.name == "aten.scatter_add" else {None: "none", "add": "add", "multiply": "mul"}[reduce]
    return n.emit("scatter_elements", x, index, updates, axis=n.axis(dim, x), reduction=kind)


@rule("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(n: Call, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype is boolean and len(indices) == 1:
        mask = given[0]
        if as_int(values.type.size) != 1 or accumulate:
            raise n.unsupported("by a mask with several values")
        mask = n.reshape(mask, (*mask.shape, *([1] * (x.type.rank - mask.type.rank))))
        return n.emit("select", mask, n.reshape(n.cast(values, x.dtype), ()), x)
    if len(given) != len(indices) or any(i.dtype is boolean for i in given):
        raise n.unsupported("with these indices")
    shape = broadcast_shapes(*(i.shape for i in given))
    parts = [n.reshape(n.broadcast(n.cast(i, i64), shape), (*shape, 1)) for i in given]
    joined = parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=len(shape))
    updates = n.broadcast(n.cast(values, x.dtype), (*shape, *x.shape[len(given) :]))
    return n.emit("scatter_nd", x, joined, updates, reduction="add" if accumulate else "none")
