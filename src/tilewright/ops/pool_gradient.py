"""Gradients of pooling by its input: each input element sums the gradients that windows send to it.

    d[h] = sum over taps t with h = o * stride + t * dilation - pad of sent(o, t), what window o sends to its tap t

As tensor expressions these are gathers: no element is written by two windows. The loop program for maxima is a scatter,
plane by plane: each window adds to the position of its first maximum. Threads share the planes, which are independent,
and windows in one vector never add to the same position at the same tap. `max_pool_places` stores the position of a
window's maximum as the tap's number in a byte, so that the backward pass does not read the input.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Dims
from tilewright.ir.dtype import DType, f32, i8, i32
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
    MaxPoolAttrs,
    PoolAttrs,
    compared,
    compared_numpy,
    covered,
    first_max,
    infer_shape,
    out_extents,
    window_views,
)
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]
Sent = Callable[[tuple[Expr, ...], Expr], Expr]
"""The gradient that a window sends to its element at a tap: a function of the window's position and the tap's
number."""


def _check(created: TensorType, g: TensorType, attrs: PoolAttrs) -> Out:
    check_kind(g.dtype, ("float",))
    wanted = infer_shape([created], attrs)
    if not same_shape(wanted.shape, g.shape):
        raise ShapeError("the gradient has another type than the result", expected=wanted, got=g)
    return (created,)


def _gathered(type: TensorType, windows: Sequence[Expr], attrs: PoolAttrs, sent: Sent, name: str) -> Tensor:
    """The stage `name` of `type`: each element is the sum of `sent` over all of `windows` that contain it, each at the
    tap that reads it."""
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
        value = sent((n, c, *at), _number([tap.var for tap in taps], attrs))
        return te.sum(select(inside, value, scalar(0, acc)), axis=taps)

    stage = te.compute(type.shape, labelled(element, ("n", "c", *SPATIAL[rank])), name=name)
    return narrow(stage, type.dtype, "rounded")


@dataclass(frozen=True, slots=True)
class _Padded:
    """The places in a padded input, for NumPy. `reach`: the spatial sizes up to which windows read, from the first
    padded position on. `views`: for each tap of the window, the slices of the places that it reads in all windows.
    `within`: the slices of the input without its padding. `stated`: the slices of the input with the pads that the
    attributes state, beyond which the last windows may reach."""

    reach: list[int]
    views: list[tuple[slice, ...]]
    within: tuple[slice, ...]
    stated: tuple[slice, ...]

    @staticmethod
    def of(attrs: PoolAttrs, extents: Sequence[int], windows: Sequence[int]) -> _Padded:
        rank, pads = len(windows), attrs.pads
        padded = [before + d + after for before, d, after in zip(pads[:rank], extents, pads[rank:], strict=True)]
        steps = list(zip(windows, attrs.strides, attrs.dilations, attrs.kernel, strict=True))
        reach = [max((o - 1) * s + d * (t - 1) + 1, p) for (o, s, d, t), p in zip(steps, padded, strict=True)]
        views = [
            tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, (o, s, d, _) in zip(taps, steps, strict=True))
            for taps in itertools.product(*map(range, attrs.kernel))
        ]
        within = tuple(slice(before, before + d) for before, d in zip(pads[:rank], extents, strict=True))
        return _Padded(reach, views, within, tuple(slice(p) for p in padded))

    def sums(self, sent: Sequence[Any]) -> Any:
        """For each element of the input the sum of what all taps send to it; `sent` has for each tap an array [images,
        channels, windows...]."""
        total: Any = np.zeros((*sent[0].shape[:2], *self.reach), sent[0].dtype)
        for view, share in zip(self.views, sent, strict=True):
            total[(..., *view)] += share
        return np.ascontiguousarray(total[(..., *self.within)])


# --- windows that stand side by side --------------------------------------------------------------------------------

LANES = (16, 8, 1)
"""The numbers of windows that are processed in one vector."""


@dataclass(frozen=True, slots=True)
class _Tap:
    """One tap (position in the kernel) of windows that are adjacent in the last dimension. `number`: the tap's, counted
    row by row. `places`: the position in the input that it reads for the first window. `inside`: whether that is inside
    of the input in all dimensions but the last. `step`: the distance in the last dimension to the position for the next
    window. `extent`: the input's size there, None if every position is inside."""

    number: int
    places: tuple[Expr, ...]
    inside: Expr
    step: int
    extent: Expr | None

    def column(self, v: Expr) -> tuple[Expr, Expr]:
        """The position in the last dimension that the tap reads for window `v`, and whether it is inside."""
        w = self.places[-1] + v * self.step
        return w, const(True) if self.extent is None else (w >= 0) & (w < self.extent)


@dataclass(frozen=True, slots=True)
class _Window:
    """`lanes` windows that are adjacent in the last dimension. `attrs`: those of the pooling. `plane`: the numbers of
    the image and the channel. `space`: the spatial sizes of the input. `at`: the windows' number in each spatial
    dimension but the last; `first`: the number of the first of them in the last one."""

    attrs: PoolAttrs
    plane: tuple[Expr, ...]
    space: tuple[Expr, ...]
    at: tuple[Expr, ...]
    first: Expr
    lanes: int

    def taps(self) -> Iterator[_Tap]:
        attrs, last = self.attrs, len(self.attrs.kernel) - 1
        for count, tap in enumerate(itertools.product(*map(range, attrs.kernel))):
            places = tuple(
                p * attrs.strides[k] + tap[k] * attrs.dilations[k] - attrs.pads[k]
                for k, p in enumerate((*self.at, self.first))
            )
            inside: Expr = const(True)
            for k in range(last):
                if self.overhangs(k):
                    inside = inside & (places[k] >= 0) & (places[k] < self.space[k])
            yield _Tap(count, places, inside, attrs.strides[last], self.space[last] if self.overhangs(last) else None)

    def overhangs(self, k: int) -> bool:
        """Whether windows may reach beyond the input in dimension `k`."""
        attrs = self.attrs
        return attrs.ceil_mode or any((attrs.pads[k], attrs.pads[len(attrs.kernel) + k]))


@contextmanager
def _planes(nest: Nest, shape: Sequence[Expr]) -> Iterator[tuple[Expr, ...]]:
    """Add a loop over the planes of an input of `shape`; yields the numbers of the image and the channel."""
    with (
        nest.loop("plane", shape[0] * shape[1], parallel=True) as plane,
        nest.let("n", plane // shape[1]) as n,
        nest.let("c", plane % shape[1]) as c,
    ):
        yield n, c


def _lines(
    nest: Nest, attrs: PoolAttrs, plane: tuple[Expr, ...], shape: Sequence[Expr], windows: Sequence[Expr]
) -> Iterator[_Window]:
    """Add loops over the windows of a plane, several in a row at once, which it yields."""
    with nest.loops("o", windows[:-1]) as at:
        for first, count, lanes in _pieces(windows[-1]):
            with nest.loop("v", count) as v:
                yield _Window(attrs, plane, tuple(shape[2:]), at, first + v * lanes, lanes)


def _pieces(extent: Expr) -> list[tuple[Expr, Expr, int]]:
    """A row of `extent` windows divided into runs of equal vectors: (first window, number of vectors, windows in each
    vector)."""
    results: list[tuple[Expr, Expr, int]] = []
    first: Expr = const(0)
    for lanes in LANES:
        count = dim((extent - first) // lanes)
        if not is_const(count, 0):
            results.append((first, count, lanes))
        first = dim(first + count * lanes)
    return results


# --- where maxima are -----------------------------------------------------------------------------------------------

NONE = -1
"""The number in place of a tap's for a window that is all padding."""


def _number(taps: Sequence[Expr], attrs: PoolAttrs) -> Expr:
    """The number of the tap that has the index `taps` in the kernel, counted in row-major order."""
    result: Expr = const(0)
    for tap, size in zip(taps, attrs.kernel, strict=True):
        result = result * size + tap
    return result


def _numbers(attrs: PoolAttrs) -> DType:
    """The integer type that holds the numbers of the kernel's taps: i8 if there are at most 128, else i32."""
    return i8 if prod(attrs.kernel) <= i8.max + 1 else i32


def _places_infer(types: Types, attrs: MaxPoolAttrs) -> Out:
    """The type rule of `max_pool_places`: x to the result of `max_pool`, and the number of the tap of each window's
    first maximum, or of its last NaN, which is the largest (with `skips_nan` the least), -1 where all is padding: a
    byte for windows of up to 128 taps, else i32."""
    t = infer_shape(types, attrs)
    check_kind(t.dtype, ("float",))
    return t, TensorType(_numbers(attrs), t.shape, t.layout)


def _places_compute(inputs: Tensors, attrs: MaxPoolAttrs, out: Out) -> tuple[Tensor, ...]:
    x, type = need(inputs[0]), out[1]
    rank = x.ndim - 2
    taps = [te.reduce_axis(attrs.kernel[k], KERNEL[rank][k]) for k in range(rank)]
    reducer = first_max()

    def element(n: Expr, c: Expr, *space: Expr) -> Any:
        inside: Expr = const(True)
        at = [space[k] * attrs.strides[k] + taps[k].var * attrs.dilations[k] - attrs.pads[k] for k in range(rank)]
        for k, p in enumerate(at):
            inside = inside & (p >= 0) & (p < x.shape[2 + k])
        value = select(inside, compared(x[(n, c, *at)], attrs), const(x.dtype.min, x.dtype))
        mine = cast(_number([tap.var for tap in taps], attrs), i32)
        return reducer((value, select(inside, mine, const(i32.max, i32))), axis=taps)

    best, tap = te.compute(type.shape, labelled(element, ("n", "c", *SPATIAL[rank])), name="tap")

    def place(*point: Expr) -> Expr:
        result = tap[point]
        return cast(select(call("eq", result, const(i32.max, i32)), const(NONE, i32), result), type.dtype)

    return (
        te.compute(type.shape, lambda *point: best[point], name="max_pool"),
        te.compute(type.shape, place, name="max_pool_places"),
    )


def _places_numpy(arrays: Sequence[Any], attrs: MaxPoolAttrs) -> tuple[Any, ...]:
    x = compared_numpy(np.asarray(arrays[0]), attrs)
    out = out_extents(x, attrs)
    values = np.stack(window_views(x, attrs, -np.inf, out))
    real = np.stack(window_views(np.ones(x.shape, bool), attrs, False, out))
    best = values.max(axis=0)
    same, nan = real & (values == best), real & (values != values)  # a NaN is greater than every number
    places = np.where(same.any(axis=0), same.argmax(axis=0), NONE)
    places = np.where(nan.any(axis=0), len(nan) - 1 - nan[::-1].argmax(axis=0), places)
    return best, places.astype(_numbers(attrs).numpy)


def _places_loops(types: Types, attrs: MaxPoolAttrs, out: Out) -> PrimFunc:
    (x,), (y, places) = ([b for b in candidate if b is not None] for candidate in buffers(types, out))
    nest = Nest("max_pool_places", (x, y, places))
    with _planes(nest, x.shape) as plane:
        for window in _lines(nest, attrs, plane, x.shape, y.shape[2:]):
            _first_maxima(nest, attrs, window, x, (y, places))
    return nest.finish()


def _first_maxima(nest: Nest, attrs: MaxPoolAttrs, window: _Window, x: Buffer, results: tuple[Buffer, Buffer]) -> None:
    """Emit the computation, for each window in `window`, of its first maximum in `x`, or its last NaN, and of its tap,
    into `results`."""
    lanes, last = window.lanes, x.shape[-1]
    with nest.allocate("best", x.dtype, (lanes,)) as best, nest.allocate("which", i32, (lanes,)) as which:
        with nest.loop("l", lanes, kind="vectorized") as v:
            nest.store(best, (v,), const(x.dtype.min, x.dtype))
            nest.store(which, (v,), const(NONE, i32))
        for tap in window.taps():
            with nest.when(tap.inside), nest.loop("l", lanes, kind="vectorized") as v:
                w, there = tap.column(v)
                # An index that is kept inside is read faster than one under a condition.
                retained = w if is_const(there, True) else minimum(maximum(w, 0), last - 1)
                value = compared(x[(*window.plane, *tap.places[:-1], retained)], attrs)
                better = (value > best[v]) | call("isnan", value)
                takes = there & (better | call("eq", which[v], const(NONE, i32)))
                with nest.let("takes", takes) as takes_it, nest.let("value", value) as seen:
                    nest.store(best, (v,), select(takes_it, seen, best[v]))
                    nest.store(which, (v,), select(takes_it, const(tap.number, i32), which[v]))
        with nest.loop("l", lanes, kind="vectorized") as v:
            here = (*window.plane, *window.at, window.first + v)
            nest.store(results[0], here, best[v])
            nest.store(results[1], here, cast(which[v], results[1].dtype))


register(
    OpDef(
        "max_pool_places",
        "opaque",
        MaxPoolAttrs,
        _places_infer,
        _places_numpy,
        compute=_places_compute,
        loops=_places_loops,
    )
)


# --- what flows back to maxima --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPoolSpreadAttrs(PoolAttrs):
    """Attributes of `max_pool_spread`. `extents`: the input's spatial sizes, which the result's do not determine."""

    extents: Dims


def _spread_infer(types: Types, attrs: MaxPoolSpreadAttrs) -> Out:
    """The type rule of `max_pool_spread`. Inputs: the taps of maxima, as `max_pool_places` returns them, and the
    gradient of `max_pool`: each window sends it to its tap."""
    places, g = present(types[0], "the places"), present(types[1], "the gradient")
    if places.dtype is not _numbers(attrs) or not same_shape(places.shape, g.shape):
        wanted = TensorType(_numbers(attrs), g.shape)
        raise ShapeError("places are of another pooling than the gradient", expected=wanted, got=places)
    return _check(TensorType(g.dtype, (*g.shape[:2], *dims(attrs.extents)), g.layout), g, attrs)


def _spread_compute(inputs: Tensors, attrs: MaxPoolSpreadAttrs, out: Out) -> tuple[Tensor, ...]:
    places, g, (type,) = need(inputs[0]), need(inputs[1]), out
    acc = accumulator(g.dtype)

    def sent(window: tuple[Expr, ...], number: Expr) -> Expr:
        mine = call("eq", cast(places[window], i32), cast(number, i32))
        return select(mine, cast(g[window], acc), scalar(0, acc))

    return (_gathered(type, g.shape[2:], attrs, sent, "max_pool_spread"),)


def _spread_numpy(arrays: Sequence[Any], attrs: MaxPoolSpreadAttrs) -> tuple[Any, ...]:
    places, g = np.asarray(arrays[0]), wide(arrays[1])
    padded = _Padded.of(attrs, [number(d) for d in attrs.extents], g.shape[2:])
    sent = [np.where(places == tap, g, 0) for tap in range(len(padded.views))]
    return (padded.sums(sent).astype(np.asarray(arrays[1]).dtype),)


def _spread_loops(types: Types, attrs: MaxPoolSpreadAttrs, out: Out) -> PrimFunc:
    inputs, (y,) = buffers(types, out)
    places, g = (b for b in inputs if b is not None)
    acc, space = accumulator(g.dtype), y.shape[2:]
    nest = Nest("max_pool_spread", (places, g, y))
    kind: LoopKind = "serial" if as_int(space[-1]) is None else "vectorized"
    with ExitStack() as stack:
        plane = stack.enter_context(_planes(nest, y.shape))
        sums, lead = (y, plane) if acc is y.dtype else (stack.enter_context(nest.allocate("sums", acc, space)), ())
        with nest.loops("h", space[:-1]) as at, nest.loop("w", space[-1], kind=kind) as w:
            nest.store(sums, (*lead, *at, w), 0.0)
        for window in _lines(nest, attrs, plane, y.shape, g.shape[2:]):
            _send(nest, window, (places, g, sums), lead)
        if sums is not y:
            with nest.loops("h", space[:-1]) as at, nest.loop("w", space[-1], kind=kind) as w:
                nest.store(y, (*plane, *at, w), cast(sums[(*at, w)], y.dtype))
    return nest.finish()


def _send(nest: Nest, window: _Window, arrays: tuple[Buffer, Buffer, Buffer], lead: tuple[Expr, ...]) -> None:
    """Emit the additions of adjacent windows' gradients to the elements that were their maxima. `arrays`: the maxima's
    taps, the gradients, and the sums; `lead`: the first indices into the sums."""
    places, g, sums = arrays
    here = (*window.plane, *window.at)
    for tap in window.taps():
        with nest.when(tap.inside), nest.loop("l", window.lanes, kind="vectorized") as v:
            w, there = tap.column(v)
            mine = call("eq", cast(places[(*here, window.first + v)], i32), const(tap.number, i32))
            sent, where = cast(g[(*here, window.first + v)], sums.dtype), (*lead, *tap.places[:-1], w)
            if is_const(there, True):  # to add zero is faster than to store under a condition
                nest.store(sums, where, sums[where] + select(mine, sent, scalar(0, sums.dtype)))
            else:
                with nest.when(mine & there):  # who gives other places than there are writes nowhere else
                    nest.store(sums, where, sums[where] + sent)


register(
    OpDef(
        "max_pool_spread",
        "opaque",
        MaxPoolSpreadAttrs,
        _spread_infer,
        _spread_numpy,
        compute=_spread_compute,
        loops=_spread_loops,
    )
)


# --- both -----------------------------------------------------------------------------------------------------------


def _max_infer(types: Types, attrs: PoolAttrs) -> Out:
    """The type rule of `max_pool_grad`: x and the gradient of its `max_pool` to the gradient of x. Each window sends
    its gradient to its first maximum, or to its last NaN, which is the largest."""
    x, g = present(types[0]), present(types[1], "the gradient")
    if g.dtype is not x.dtype:
        raise ShapeError("the gradient has another type than the result", expected=infer_shape([x], attrs), got=g)
    return _check(x, g, attrs)


def _parts(x: TensorType, attrs: PoolAttrs) -> tuple[MaxPoolAttrs, MaxPoolSpreadAttrs]:
    sizes = {name: getattr(attrs, name) for name in ("kernel", "strides", "dilations", "pads", "ceil_mode")}
    return MaxPoolAttrs(**sizes), MaxPoolSpreadAttrs(**sizes, extents=x.shape[2:])


def _max_compute(inputs: Tensors, attrs: PoolAttrs, out: Out) -> tuple[Tensor, ...]:
    x, g = need(inputs[0]), need(inputs[1])
    find, spread = _parts(out[0], attrs)
    _, places = _places_compute([x], find, (TensorType(x.dtype, g.shape), TensorType(_numbers(find), g.shape)))
    return _spread_compute([places, g], spread, out)


def _max_numpy(arrays: Sequence[Any], attrs: PoolAttrs) -> tuple[Any, ...]:
    x = np.asarray(arrays[0])
    find, spread = _parts(TensorType(f32, tuple(map(const, x.shape))), attrs)
    return _spread_numpy([_places_numpy([x], find)[1], arrays[1]], spread)


register(OpDef("max_pool_grad", "reduction", PoolAttrs, _max_infer, _max_numpy, compute=_max_compute))


# --- average --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragePoolGradAttrs(AveragePoolAttrs):
    """Attributes of the gradient of `avg_pool`. `extents`: the input's spatial sizes, which the result's do not
    determine."""

    extents: Dims


def _average_infer(types: Types, attrs: AveragePoolGradAttrs) -> Out:
    """The type rule of `avg_pool_grad`. Input: the gradient of `avg_pool`, of which each window sends equal shares to
    its elements."""
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
    """The NumPy reference of `avg_pool_grad`: each tap's view of the padded input gets the windows' shares."""
    g = wide(arrays[0])
    padded = _Padded.of(attrs, [number(d) for d in attrs.extents], g.shape[2:])
    counts: Any = np.zeros(padded.reach, g.dtype)
    counts[padded.stated if attrs.count_include_pad else padded.within] = 1
    share = g / np.maximum(sum(counts[view] for view in padded.views), 1)
    return (padded.sums([share] * len(padded.views)).astype(np.asarray(arrays[0]).dtype),)


register(
    OpDef("avg_pool_grad", "reduction", AveragePoolGradAttrs, _average_infer, _average_numpy, compute=_average_compute)
)
