"""Distinct elements: groups of equal elements in a sorted list, and groups of equal rows. The number of groups depends
on data (`ops/extent.py`).

    %first, %inverse, %counts, %count = unique_sorted(%values, %order) : i64[8], i64[8], i64[8], i64[]

`first` has the place of each group's first member, `inverse` the group of each element, `counts` the sizes of groups;
after `count` groups `first` and `counts` hold zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, call, const
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
class SortedAttrs(Attrs):
    """Attributes of `unique_sorted`. With `equal_nan` all NaN form one group of equal elements; otherwise each is a
    group of its own, as in PyTorch."""

    equal_nan: bool = True


@dataclass(frozen=True, slots=True)
class UniqueAttrs(Attrs):
    """Attributes of `unique_rows`, which finds groups of equal rows: with `sorted`, groups are in the order of their
    values, else in that of their first members."""

    sorted: bool = True


def _results(extent: Expr) -> Out:
    places = TensorType(i64, (extent,))
    return places, places, places, NUMBER


def _sorted_infer(types: Types, attrs: SortedAttrs) -> Out:
    """The type rule of `unique_sorted`. Inputs: elements [n], of which each is compared with the next one, and their
    original positions [n], ascending among equal elements. Equal elements form one group if the elements are sorted."""
    values, order = present(types[0]), present(types[1])
    if values.rank != 1 or order != TensorType(i64, values.shape):
        raise ShapeError("sorted elements need a list and their places", got=f"{values}, {order}")
    return _results(values.shape[0])


def _rows_infer(types: Types, attrs: UniqueAttrs) -> Out:
    """The type rule of `unique_rows`. Input: rows [n, m], which are compared lexicographically."""
    x = present(types[0])
    if x.rank != 2:
        raise ShapeError("rows have two dimensions", got=x)
    return _results(x.shape[0])


def _differs(a: Expr, b: Expr, equal_nan: bool) -> Expr:
    """Whether the elements `a` and `b` are different, so that they belong to different groups; with `equal_nan` all NaN
    are equal, otherwise no two are."""
    if not (a.dtype.is_float and equal_nan):
        return call("ne", a, b)
    return call("and", call("ne", a, b), call("or", call("eq", a, a), call("eq", b, b)))


def _below(a: Expr, b: Expr) -> Expr:
    """Whether element `a` comes before element `b`; NaN comes after all numbers."""
    if not a.dtype.is_float:
        return call("lt", a, b)
    return call("or", call("lt", a, b), call("and", call("eq", a, a), call("ne", b, b)))


def _sorted_loops(types: Types, attrs: SortedAttrs, out: Out) -> PrimFunc:
    """The loop program of `unique_sorted`: one pass, in which a group begins at each element that differs from the one
    before it."""
    (values, order), (first, inverse, counts, count) = buffers(types, out)
    assert values is not None and order is not None
    (number,) = values.shape
    nest = Nest("unique", [values, order, first, inverse, counts, count])
    _zeros(nest, number, (first, counts))
    with nest.local("found", i64) as result:
        result.set(0)
        with nest.loop("i", number) as i:
            with nest.when(call("eq", i, const(0))):
                _begin(nest, first, result, order[i])
            with nest.when(call("gt", i, const(0))), nest.when(_differs(values[i], values[i - 1], attrs.equal_nan)):
                _begin(nest, first, result, order[i])
            with nest.let("group", result.value - 1) as group:
                nest.store(inverse, (order[i],), group)
                nest.store(counts, (group,), counts[group] + 1)
        nest.store(count, (), result.value)
    return nest.finish()


def _begin(nest: Nest, first: Any, result: Any, place: Expr) -> None:
    nest.store(first, (result.value,), place)
    result.set(result.value + 1)


def _zeros(nest: Nest, number: Expr, rows: Sequence[Any]) -> None:
    with nest.loop("z", number) as z:
        for row in rows:
            nest.store(row, (z,), 0)


def _rows_loops(types: Types, attrs: UniqueAttrs, out: Out) -> PrimFunc:
    """The loop program of `unique_rows`, in which each row is compared with all others. `inverse` first holds the first
    row that is equal to each row, and then the row's group, which is the number of groups before it."""
    (x,), (first, inverse, counts, count) = buffers(types, out)
    assert x is not None
    number, width = x.shape
    nest = Nest("unique", [x, first, inverse, counts, count])
    _zeros(nest, number, (first, counts))
    with nest.allocate("leader", i64, (number,)) as leader, nest.local("sign", i64) as sign:
        with nest.loop("i", number) as i:
            nest.store(leader, (i,), i)
            with nest.loop("j", i) as j, nest.when(call("eq", leader[i], i)):
                _compare(nest, x, sign, i, j, width)
                with nest.when(call("eq", sign.value, const(0))):
                    nest.store(leader, (i,), j)
        with nest.local("found", i64) as result, nest.local("rank", i64) as rank:
            result.set(0)
            with nest.loop("g", number) as g, nest.when(call("eq", leader[g], g)):
                rank.set(result.value)
                result.set(result.value + 1)
                if attrs.sorted:
                    rank.set(0)
                    with nest.loop("h", number) as h, nest.when(call("eq", leader[h], h)):
                        _compare(nest, x, sign, g, h, width)
                        with nest.when(call("gt", sign.value, const(0))):
                            rank.set(rank.value + 1)
                nest.store(inverse, (g,), rank.value)
                with nest.let("group", rank.value) as group:
                    nest.store(first, (group,), g)
            nest.store(count, (), result.value)
        with nest.loop("e", number) as e:
            with nest.let("mine", leader[e]) as mine:
                nest.store(inverse, (e,), inverse[mine])
            with nest.let("counted", inverse[e]) as counted:
                nest.store(counts, (counted,), counts[counted] + 1)
    return nest.finish()


def _compare(nest: Nest, x: Any, sign: Any, a: Expr, b: Expr, width: Expr) -> None:
    """Emit a comparison of rows of `width` elements: `sign` becomes -1, 0 or 1 if row `a` is before, equal to, or after
    row `b`."""
    sign.set(0)
    with nest.loop("m", width) as m, nest.when(call("eq", sign.value, const(0))):
        with nest.when(_below(x[a, m], x[b, m])):
            sign.set(-1)
        with nest.when(_below(x[b, m], x[a, m])):
            sign.set(1)


def _grouped(keys: Sequence[tuple[Any, ...]], in_order: bool) -> tuple[Any, ...]:
    """The results of the NumPy reference for elements or rows, which are compared by their `keys`; with `in_order`
    groups are in the keys' order."""
    members: dict[tuple[Any, ...], list[int]] = {}
    for place, k in enumerate(keys):
        members.setdefault(k, []).append(place)
    groups = [members[k] for k in sorted(members)] if in_order else list(members.values())
    first, inverse, counts = (np.zeros(len(keys), np.int64) for _ in range(3))
    for number, group in enumerate(groups):
        first[number], counts[number] = group[0], len(group)
        inverse[group] = number
    return first, inverse, counts, np.asarray(len(groups), np.int64)


def _key(v: Any) -> tuple[bool, Any]:
    """The key by which a number is compared: all NaN are equal and come last."""
    return (True, 0) if v != v else (False, v)


def _sorted_reference(arrays: Sequence[Any], attrs: SortedAttrs) -> tuple[Any, ...]:
    """The NumPy reference of `unique_sorted`, by neighbours that are equal: elements need not be sorted for that."""
    values, order = arrays
    first, inverse, counts = (np.zeros(len(order), np.int64) for _ in range(3))
    count = 0
    for k, place in enumerate(order.tolist()):
        a, b = values[k], values[max(k - 1, 0)]
        if k == 0 or (a != b and not (attrs.equal_nan and a != a and b != b)):
            first[count] = place
            count += 1
        inverse[place] = count - 1
        counts[count - 1] += 1
    return first, inverse, counts, np.asarray(count, np.int64)


def _rows_reference(arrays: Sequence[Any], attrs: UniqueAttrs) -> tuple[Any, ...]:
    return _grouped([tuple(_key(v) for v in row) for row in np.asarray(arrays[0]).tolist()], attrs.sorted)


register(OpDef("unique_sorted", "opaque", SortedAttrs, _sorted_infer, _sorted_reference, loops=_sorted_loops))
register(OpDef("unique_rows", "opaque", UniqueAttrs, _rows_infer, _rows_reference, loops=_rows_loops))
