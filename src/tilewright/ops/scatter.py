"""Scatters: a copy of a tensor in which elements at run-time indices are replaced by, or combined with, updates.

Updates happen in order, so that the last of several to one element wins. Indices outside are clamped, as in
`ops.index`; updates of an empty tensor do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.arith import prove
from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Buffer, Expr, all_of, as_int, cast, const, maximum, minimum
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import LoopKind, PrimFunc
from tilewright.ops.dims import accumulator, axis_of, present, same_dtype, same_shape
from tilewright.ops.index import check_choice, check_within, integer, nearest, wrapped, wrapped_numpy
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError, UnsupportedError

Out = tuple[TensorType, ...]

COMBINE: dict[str, tuple[Callable[[Expr, Expr], Expr], Any]] = {
    "none": (lambda old, new: new, None),
    "add": (lambda old, new: old + new, np.add),
    "mul": (lambda old, new: old * new, np.multiply),
    "max": (maximum, np.maximum),
    "min": (minimum, np.minimum),
}


@dataclass(frozen=True, slots=True)
class ScatterAttrs(Attrs):
    """Attributes of scattering: `reduction`, a key of `COMBINE`, says how an element and its updates are combined."""

    reduction: str


def _check(types: Types, attrs: ScatterAttrs) -> tuple[TensorType, TensorType, TensorType]:
    data, indices, updates = present(types[0]), present(types[1]), present(types[2])
    integer(indices)
    same_dtype([data, updates])
    if attrs.reduction not in COMBINE:
        raise UnsupportedError(f"the reduction {attrs.reduction} of a scatter is not supported")
    sums = attrs.reduction in ("add", "mul")
    if (sums and data.dtype.kind == "bool") or (attrs.reduction != "none" and data.dtype.is_minifloat):
        raise UnsupportedError(f"the reduction {attrs.reduction} is not defined on {data.dtype}")
    return data, indices, updates


def _copy(nest: Nest, x: Buffer, y: Buffer) -> None:
    with nest.loops("c", x.shape, inner=_in_lanes(x.shape)) as point:
        nest.store(y, point, x[point])


def _in_lanes(shape: Sequence[Expr]) -> LoopKind:
    """The kind of a loop over the last, contiguous dimension of `shape`: vectorized if its extent is known."""
    return "vectorized" if shape and as_int(shape[-1]) is not None else "serial"


def _combined(old: Expr, new: Expr, reduction: str) -> Expr:
    acc = accumulator(old.dtype)
    return cast(COMBINE[reduction][0](cast(old, acc), cast(new, acc)), old.dtype)


def _some(chosen: Sequence[Expr]) -> Expr:
    """A condition: every dimension that data indexes, with an extent in `chosen`, has elements."""
    return all_of(d > 0 for d in chosen if not prove(d > 0))


# --- elements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScatterElementsAttrs(ScatterAttrs):
    """Attributes of `scatter_elements`: the indices are positions along the dimension `axis`."""

    axis: int


def _elements_infer(types: Types, attrs: ScatterElementsAttrs) -> Out:
    """The type rule of `scatter_elements`. Inputs data, indices, updates: each update goes to its own position, except
    that its position on `axis` is its index. `reduction` combines them."""
    data, indices, updates = _check(types, attrs)
    axis = axis_of(attrs.axis, data.rank)
    if indices.rank != data.rank or not same_shape(indices.shape, updates.shape):
        raise ShapeError("indices and updates must have one shape, of the data's rank", got=f"{indices}, {updates}")
    check_within(indices, data, axis)
    check_choice(indices, data.shape)
    return (data,)


def _elements_loops(types: Types, attrs: ScatterElementsAttrs, out: Out) -> PrimFunc:
    (data, indices, updates), (y,) = buffers(types, out)
    assert data is not None and indices is not None and updates is not None
    axis = attrs.axis % len(data.shape)
    nest = Nest("scatter_elements", [data, indices, updates, y])
    _copy(nest, data, y)
    with nest.loops("i", updates.shape) as point, nest.let("at", wrapped(indices[point], data.shape[axis])) as at:
        reduced = [nearest(p, n, d) for p, n, d in zip(point, updates.shape, data.shape, strict=True)]
        place = (*reduced[:axis], at, *reduced[axis + 1 :])
        with nest.when(_some(data.shape)):
            nest.store(y, place, _combined(y[place], updates[point], attrs.reduction))
    return nest.finish()


def _elements_numpy(arrays: Sequence[Any], attrs: ScatterElementsAttrs) -> tuple[Any, ...]:
    data, indices, updates = (np.asarray(a) for a in arrays)
    axis = attrs.axis % data.ndim
    grid = list(np.indices(indices.shape, sparse=False))
    grid[axis] = wrapped_numpy(indices, data.shape[axis])
    return (_scattered(data, tuple(g.reshape(-1) for g in grid), updates.reshape(-1), attrs.reduction),)


def _scattered(data: Any, places: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    result = data.copy()
    combine = COMBINE[reduction][1]
    if combine is None:
        result[places] = updates
    else:
        for k in range(len(updates)):
            place = tuple(p[k] for p in places)
            result[place] = combine(result[place], updates[k])
    return result


register(
    OpDef("scatter_elements", "opaque", ScatterElementsAttrs, _elements_infer, _elements_numpy, loops=_elements_loops)
)


# --- n-d ------------------------------------------------------------------------------------------------------------


def _nd_infer(types: Types, attrs: ScatterAttrs) -> Out:
    """The type rule of `scatter_nd`. The last dimension of the indices is a position in the first dimensions of the
    data; an update covers the remaining dimensions."""
    data, indices, updates = _check(types, attrs)
    depth = as_int(indices.shape[-1]) if indices.rank else None
    if depth is None or not 1 <= depth <= data.rank:
        raise ShapeError("the indices' last dimension does not fit the data", expected=f"1 to {data.rank}", got=indices)
    expected = (*indices.shape[:-1], *data.shape[depth:])
    if not same_shape(updates.shape, expected):
        raise ShapeError("the updates do not fit the indices and the data", expected=list(expected), got=updates)
    check_choice(indices, data.shape[:depth])
    return (data,)


def _nd_loops(types: Types, attrs: ScatterAttrs, out: Out) -> PrimFunc:
    (data, indices, updates), (y,) = buffers(types, out)
    assert data is not None and indices is not None and updates is not None
    lead = len(indices.shape) - 1
    depth = as_int(indices.shape[-1]) or 0
    nest = Nest("scatter_nd", [data, indices, updates, y])
    _copy(nest, data, y)
    with nest.loops("i", updates.shape, inner=_in_lanes(data.shape[depth:])) as point:
        at = [wrapped(indices[(*point[:lead], const(k))], data.shape[k]) for k in range(depth)]
        place = (*at, *point[lead:])
        with nest.when(_some(data.shape[:depth])):
            nest.store(y, place, _combined(y[place], updates[point], attrs.reduction))
    return nest.finish()


def _nd_numpy(arrays: Sequence[Any], attrs: ScatterAttrs) -> tuple[Any, ...]:
    data, indices, updates = (np.asarray(a) for a in arrays)
    depth = indices.shape[-1]
    flat = indices.reshape(-1, depth)
    places = tuple(wrapped_numpy(flat[:, k], data.shape[k]) for k in range(depth))
    return (_scattered(data, places, updates.reshape(len(flat), *data.shape[depth:]), attrs.reduction),)


register(OpDef("scatter_nd", "opaque", ScatterAttrs, _nd_infer, _nd_numpy, loops=_nd_loops))
