"""Rules for `unique`: each value once. The number of results depends on the data."""

from __future__ import annotations

import torch

from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import boolean, i64, u8
from tilewright.ir.graph import Value


@rule("_unique2")
def unique(n: Call, x: Value, sorted: bool = True, inverse: bool = False, counts: bool = False) -> list[Value]:
    """[the distinct values of `x` in ascending order, with `inverse` the number of each element's value, with `counts`
    how often each occurs]. PyTorch sorts values even with `sorted=False`, and so does this rule, since sorting makes
    equal elements neighbours."""
    flat = n.reshape(x, (x.type.size,))
    key = n.cast(flat, u8) if flat.dtype is boolean else flat
    values, order = n.emit_all("topk", key, axis=0, k=x.type.size, largest=False)
    return _groups(n, x, flat, values, order, inverse, counts)


@rule("unique_consecutive")
def unique_consecutive(
    n: Call, x: Value, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> list[Value]:
    if dim is not None:
        raise n.unsupported("along a dimension")
    flat = n.reshape(x, (x.type.size,))
    order = n.emit("range", start=0, step=1, size=x.type.size, dtype=i64)
    return _groups(n, x, flat, flat, order, inverse, counts)


def _groups(n: Call, x: Value, flat: Value, values: Value, order: Value, inverse: bool, counts: bool) -> list[Value]:
    """[the distinct elements of `x`, for each element the number of its value, how often each value occurs] from
    `flat`, the elements in one dimension, the sorted `values` and their positions `order`. The second result is empty
    unless `inverse`, the third unless `counts`."""
    first, group, members, count = n.emit_all("unique_sorted", values, order, equal_nan=False)
    places = n.head(first, count)
    size = n.results[0].shape[0]
    if isinstance(size, torch.SymInt):
        n.sizes.known[str(size.node.expr)] = places.shape[0]
    groups = n.reshape(group, x.shape) if inverse else n.slice(group, 0, 0, 0)
    return [n.emit("gather", flat, places, axis=0), groups, n.slice(members, 0, 0, places.shape[0] if counts else 0)]
