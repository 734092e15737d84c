"""Gradients of pooling by its input: each input element sums what its windows send to it.

    d[h] = sum over taps t with h = o * stride + t * dilation - pad of what window o sends to h

As expressions these are gathers: no element is written by two windows. A program takes maxima the other way round,
plane by plane: a window looks for its first maximum, and adds to that place. Planes have nothing in common, so that
threads share them, and of windows that stand side by side in a vector no two add to one place at the same tap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Dims
from tilewright.ir.dtype import i32, i64
from tilewright.ir.expr import Buffer, Expr, as_int, call, cast, const, is_const, maximum, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import LoopKind, PrimFunc
from tilewright.ops.conv import KERNEL, SPATIAL
from tilewright.ops.dims import (
    accumulator,
    check_kind,
    dim,
    dims,
    labelled,
    narrow,
    need,
    number,
    present,
    same_shape,
    scalar,
    wide,
)
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.pool import (
    AveragePoolAttrs,
    MaxPoolIndicesAttrs,
    PoolAttrs,
    covered,
    flat_index,
    indices_compute,
    indices_numpy,
    infer_shape,
)
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]
Sent = Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr]
"""What a window sends to an element: from the places of both."""


def _check(x: TensorType, g: TensorType, attrs: PoolAttrs) -> Out:
    check_kind(x.dtype, ("float",))
    wanted = infer_shape([x], attrs)
    if g.dtype is not x.dtype or not same_shape(wanted.shape, g.shape):
        raise ShapeError("the gradient has another type than the result", expected=wanted, got=g)
    return (x,)


def _gathered(type: TensorType, windows: Sequence[Expr], attrs: PoolAttrs, sent: Sent, name: str) -> Tensor:
    """The sum over taps of what the windows that have an element at that tap send to it."""
    rank, acc = len(windows), accumulator(type.dtype)
    taps = [te.reduce_axis(attrs.kernel[k], KERNEL[rank][k]) for k in range(rank)]

    def element(n: Expr, c: Expr, *space: Expr) -> Any:
        inside: Expr = const(True)
        at: list[Expr] = []
        for k, p in enumerate(space):
            offset = p + attrs.pads[k] - taps[k].var * attrs.dilations[k]
            at.append(offset // attrs.strides[k])
            on = call("eq", offset % attrs.strides[k], const(0)) if attrs.strides[k] > 1 else const(True)
            inside = inside & on & (at[k] >= 0) & (at[k] < windows[k])
        return te.sum(select(inside, sent((n, c, *at), (n, c, *space)), scalar(0, acc)), axis=taps)

    stage = te.compute(type.shape, labelled(element, ("n", "c", *SPATIAL[rank])), name=name)
    return narrow(stage, type.dtype, "rounded")


# --- maximum --------------------------------------------------------------------------------------------------------


def _max_infer(types: Types, attrs: PoolAttrs) -> Out:
    """x and the gradient of its `max_pool`: each window sends its own to its first maximum, NaN being the greatest."""
    return _check(present(types[0]), present(types[1], "the gradient"), attrs)


def _indices(attrs: PoolAttrs) -> MaxPoolIndicesAttrs:
    return MaxPoolIndicesAttrs(
        kernel=attrs.kernel,
        strides=attrs.strides,
        dilations=attrs.dilations,
        pads=attrs.pads,
        ceil_mode=attrs.ceil_mode,
    )


def _max_compute(inputs: Tensors, attrs: PoolAttrs, out: Out) -> tuple[Tensor, ...]:
    x, g, (type,) = need(inputs[0]), need(inputs[1]), out
    acc = accumulator(x.dtype)
    (found,) = indices_compute([x], _indices(attrs), (TensorType(i64, g.shape),))

    def sent(window: tuple[Expr, ...], place: tuple[Expr, ...]) -> Expr:
        mine = call("eq", found[window], flat_index(x.shape, place, 0))
        return select(mine, cast(g[window], acc), scalar(0, acc))

    return (_gathered(type, g.shape[2:], attrs, sent, "max_pool_grad"),)


def _max_numpy(arrays: Sequence[Any], attrs: PoolAttrs) -> tuple[Any, ...]:
    x, g = np.asarray(arrays[0]), wide(arrays[1])
    (at,) = indices_numpy([x], _indices(attrs))
    flat = np.zeros(x.size, g.dtype)
    real = at < x.size  # a window of padding alone has no maximum
    np.add.at(flat, at[real], g[real])
    return (flat.reshape(x.shape).astype(x.dtype),)


def _max_loops(types: Types, attrs: PoolAttrs, out: Out) -> PrimFunc:
    given, (y,) = buffers(types, out)
    x, g = (b for b in given if b is not None)
    acc = accumulator(x.dtype)
    nest = Nest("max_pool_grad", (x, g, y))
    planes, space, windows = x.shape[:2], x.shape[2:], g.shape[2:]
    with ExitStack() as stack:
        plane = stack.enter_context(nest.loop("plane", planes[0] * planes[1], parallel=True))
        n, c = (stack.enter_context(nest.let(v, e)) for v, e in (("n", plane // planes[1]), ("c", plane % planes[1])))
        sums, lead = (y, (n, c)) if acc is x.dtype else (stack.enter_context(nest.allocate("sums", acc, space)), ())
        kind: LoopKind = "serial" if as_int(space[-1]) is None else "vectorized"
        with nest.loops("h", space[:-1]) as at, nest.loop("w", space[-1], kind=kind) as w:
            nest.store(sums, (*lead, *at, w), 0.0)
        with nest.loops("o", windows[:-1]) as at:
            for first, count, lanes in _pieces(windows[-1]):
                with nest.loop("v", count) as v:
                    _windows_side_by_side(nest, attrs, (x, g, sums), (n, c), lead, at, first + v * lanes, lanes)
        if sums is not y:
            with nest.loops("h", space[:-1]) as at, nest.loop("w", space[-1], kind=kind) as w:
                nest.store(y, (n, c, *at, w), cast(sums[(*at, w)], y.dtype))
    return nest.finish()


LANES = (16, 8, 1)
"""Windows that stand side by side: the channels of a block, or as many as a line has."""


def _pieces(extent: Expr) -> list[tuple[Expr, Expr, int]]:
    """A line of windows as (the first, how many pieces, windows of each)."""
    found: list[tuple[Expr, Expr, int]] = []
    first: Expr = const(0)
    for lanes in LANES:
        count = dim((extent - first) // lanes)
        if not is_const(count, 0):
            found.append((first, count, lanes))
        first = dim(first + count * lanes)
    return found


def _windows_side_by_side(
    nest: Nest,
    attrs: PoolAttrs,
    arrays: tuple[Buffer, Buffer, Buffer],
    plane: tuple[Expr, ...],
    lead: tuple[Expr, ...],
    at: tuple[Expr, ...],
    first: Expr,
    lanes: int,
) -> None:
    """Some windows of a line: the tap of the first maximum of each, and what they add there."""
    (x, g, sums), rank = arrays, len(attrs.kernel)
    space, acc = x.shape[2:], sums.dtype

    def taps() -> Iterator[tuple[int, list[Expr], Expr]]:
        """Each tap by its number, where it looks for all but the last dimension, and whether that is inside."""
        for number, tap in enumerate(itertools.product(*map(range, attrs.kernel))):
            places = [
                p * attrs.strides[k] + tap[k] * attrs.dilations[k] - attrs.pads[k] for k, p in enumerate((*at, first))
            ]
            inside: Expr = const(True)
            for k in range(rank - 1):
                inside = inside & _inside(places[k], k)
            yield number, places, inside

    def _inside(place: Expr, k: int) -> Expr:
        always = not any((attrs.pads[k], attrs.pads[rank + k])) and not attrs.ceil_mode
        return const(True) if always else (place >= 0) & (place < space[k])

    with nest.allocate("best", x.dtype, (lanes,)) as best, nest.allocate("which", i32, (lanes,)) as which:
        with nest.loop("l", lanes, kind="vectorized") as v:
            nest.store(best, (v,), const(x.dtype.min, x.dtype))
            nest.store(which, (v,), const(-1, i32))
        for number, places, inside in taps():
            with nest.when(inside), nest.loop("l", lanes, kind="vectorized") as v:
                w = places[-1] + v * attrs.strides[-1]
                there = _inside(w, rank - 1)
                # An index that is kept inside is read faster than one under a condition.
                kept = w if is_const(there, True) else minimum(maximum(w, 0), space[-1] - 1)
                value = x[(*plane, *places[:-1], kept)]
                better = (value > best[v]) | (call("isnan", value) & call("not", call("isnan", best[v])))
                takes = there & (better | call("eq", which[v], const(-1, i32)))
                with nest.let("takes", takes) as takes_it, nest.let("value", value) as seen:
                    nest.store(best, (v,), select(takes_it, seen, best[v]))
                    nest.store(which, (v,), select(takes_it, const(number, i32), which[v]))
        for number, places, inside in taps():
            with nest.when(inside), nest.loop("l", lanes, kind="vectorized") as v:
                w = places[-1] + v * attrs.strides[-1]
                mine, sent = call("eq", which[v], const(number, i32)), cast(g[(*plane, *at, first + v)], acc)
                where = (*lead, *places[:-1], w)
                if is_const(_inside(w, rank - 1), True):  # to add zero is faster than to store under a condition
                    nest.store(sums, where, sums[where] + select(mine, sent, scalar(0, acc)))
                else:
                    with nest.when(mine):
                        nest.store(sums, where, sums[where] + sent)


register(OpDef("max_pool_grad", "opaque", PoolAttrs, _max_infer, _max_numpy, compute=_max_compute, loops=_max_loops))


# --- average --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragePoolGradAttrs(AveragePoolAttrs):
    """`extents` are the input's spatial ones, which the result does not tell."""

    extents: Dims


def _average_infer(types: Types, attrs: AveragePoolGradAttrs) -> Out:
    """The gradient of an `avg_pool`: each window sends equal shares of it to its elements."""
    g = present(types[0], "the gradient")
    return _check(TensorType(g.dtype, (*g.shape[:2], *dims(attrs.extents))), g, attrs)


def _average_compute(inputs: Tensors, attrs: AveragePoolGradAttrs, out: Out) -> tuple[Tensor, ...]:
    g, (type,) = need(inputs[0]), out
    acc = accumulator(g.dtype)

    def share(*point: Expr) -> Expr:
        count: Expr = scalar(1, acc)
        for k, p in enumerate(point[2:]):
            counted = covered(type.shape, attrs, k, p, acc)
            count = count * (scalar(attrs.kernel[k], acc) if counted is None else counted)
        return cast(g[point], acc) / count

    shares = te.compute(g.shape, share, name="share")
    return (_gathered(type, g.shape[2:], attrs, lambda window, _: shares[window], "avg_pool_grad"),)


def _average_numpy(arrays: Sequence[Any], attrs: AveragePoolGradAttrs) -> tuple[Any, ...]:
    """Each tap's view of the padded input gets its windows' shares."""
    g = wide(arrays[0])
    rank, pads = g.ndim - 2, attrs.pads
    extents = [number(d) for d in attrs.extents]
    padded = [before + d + after for before, d, after in zip(pads[:rank], extents, pads[rank:], strict=True)]
    steps = list(zip(g.shape[2:], attrs.strides, attrs.dilations, attrs.kernel, strict=True))
    reach = [max((o - 1) * s + d * (t - 1) + 1, p) for (o, s, d, t), p in zip(steps, padded, strict=True)]
    within = tuple(slice(before, before + d) for before, d in zip(pads[:rank], extents, strict=True))
    counts: Any = np.zeros(reach, g.dtype)
    counts[tuple(slice(p) for p in padded) if attrs.count_include_pad else within] = 1
    views = [
        tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, (o, s, d, _) in zip(taps, steps, strict=True))
        for taps in itertools.product(*map(range, attrs.kernel))
    ]
    share = g / np.maximum(sum(counts[view] for view in views), 1)
    total: Any = np.zeros((*g.shape[:2], *reach), g.dtype)
    for view in views:
        total[(..., *view)] += share
    return (np.ascontiguousarray(total[(..., *within)]).astype(np.asarray(arrays[0]).dtype),)


register(
    OpDef("avg_pool_grad", "reduction", AveragePoolGradAttrs, _average_infer, _average_numpy, compute=_average_compute)
)
