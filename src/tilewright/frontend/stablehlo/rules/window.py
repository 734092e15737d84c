"""Reductions over windows: as pooling, or for other monoids one dimension after the other. Windows that reach to an end
of their dimension are in `running.py`."""

from __future__ import annotations

import math
from typing import Any

from tilewright.arith import prove
from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.reduce import OPERATORS, apply_body, combine, identity, is_identity, monoid
from tilewright.frontend.stablehlo.rules.running import running
from tilewright.frontend.stablehlo.rules.shape import as_item, padded, sliced
from tilewright.frontend.stablehlo.scope import Item, known_item
from tilewright.ir.dtype import boolean, i32
from tilewright.ir.expr import as_expr, as_int, is_const, maximum
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, UnsupportedError

MAX_TAPS = 128
"""The most elements of a window that are combined one by one."""


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding windows: for each dimension the window's size, stride and dilation, the dilation of the input (`spread`),
    and padding before (`low`) and after (`high`). Sizes and padding may be symbolic."""

    size: list[Any]
    strides: list[int]
    spread: list[int]
    dilations: list[int]
    low: list[Any]
    high: list[Any]

    @classmethod
    def of(cls, call: Call) -> Window:
        size = call.ints("window_dimensions")
        ones = [1] * len(size)
        pads = call.ints("padding", [0] * 2 * len(size))
        strides, spread, dilations = (
            call.ints(n, ones) for n in ("window_strides", "base_dilations", "window_dilations")
        )
        return cls(size, strides, spread, dilations, pads[0::2], pads[1::2]).checked(call)

    @classmethod
    def of_operands(cls, call: Call, first: int) -> Window:
        """A window whose attributes are the operands from `first` on: sizes, strides, dilations of the input and of
        windows, padding."""
        size, strides, spread, dilations, pads = (call.sizes(first + k) for k in range(5))
        steps = [[int(v) for v in part if isinstance(v, int)] for part in (strides, spread, dilations)]
        if [len(part) for part in steps] != [len(size)] * 3:
            raise UnsupportedError("steps of windows that are symbolic sizes are not supported")
        return cls(size, steps[0], steps[1], steps[2], pads[0::2], pads[1::2]).checked(call)

    def checked(self, call: Call) -> Window:
        lists = (self.size, self.strides, self.spread, self.dilations, self.low, self.high)
        numbers = (v for part in lists[:4] for v in part if isinstance(v, int))
        if {len(v) for v in lists} != {len(call.item(0).shape)} or min(numbers, default=1) < 1:
            raise ModelError("the window does not fit", got=f"{self.size} for {call.item(0).type}")
        return self

    def reach(self, k: int) -> Any:
        """The elements that a dilated window spans along dimension `k`, from its first to its last."""
        return (self.size[k] - 1) * self.dilations[k] + 1

    def results(self, k: int, size: Any) -> Any:
        """The number of windows along dimension `k`, whose extent with padding is `size`."""
        count = (size - self.reach(k)) // self.strides[k] + 1
        if isinstance(count, int):
            return max(0, count)
        return dim(count) if prove(as_expr(count) >= 0) else dim(maximum(count, 0))

    def of_one_image(self) -> Window:
        """The windows with two leading dimensions of size 1, as pooling has for image and channel."""
        first = ([1, 1], [1, 1], [1, 1], [1, 1], [0, 0], [0, 0])
        rest = (self.size, self.strides, self.spread, self.dilations, self.low, self.high)
        return Window(*([*a, *b] for a, b in zip(first, rest, strict=True)))

    def is_trivial(self, k: int) -> bool:
        """Whether windows along a dimension have one element each, so that the dimension stays unchanged."""
        steps = (self.size[k], self.strides[k], self.spread[k])
        return all(is_const(dim(v), 1) for v in steps) and all(is_const(dim(v[k]), 0) for v in (self.low, self.high))


@rule("reduce_window")
def reduce_window(call: Call) -> list[Value | Item]:
    return reduced(call, Window.of(call))


@rule("custom_call.stablehlo.dynamic_reduce_window")
def dynamic_reduce_window(call: Call) -> list[Value | Item]:
    return reduced(call, Window.of_operands(call, len(call.items) - 5))


def reduced(call: Call, w: Window) -> list[Value | Item]:
    """Reductions over windows with the operation's body, for pairs of operands and initial values."""
    count = len(call.op.results)
    kind = monoid(call.op.regions[0], call.item(0).dtype) if count == 1 else None
    result = running(call, w, kind, count)
    if result is not None:
        return result
    if any(not isinstance(v, int) for v in w.size):
        raise UnsupportedError("windows of a symbolic size are supported if they reach to an end of their dimension")
    if kind is None:
        return list(_general(call, w, count))
    if kind not in OPERATORS:
        raise UnsupportedError(f"the reduction {kind} over windows is not supported")
    y = _pool(call, call.value(0), w, kind) or _whole(call, w, kind) or _separable(call, w, kind)
    return [y if is_identity(kind, call.item(1)) else combine(call, kind, y, call.unbroadcast(1))]


def _whole(call: Call, w: Window, kind: str) -> Value | None:
    """The reduction over windows as pooling of one image with one channel, whose spatial dimensions are all of the
    operand's; None if pooling does not cover it."""
    x = call.value(0)
    y = _pool(call, call.reshape(x, (1, 1, *x.shape)), w.of_one_image(), kind)
    return None if y is None else call.reshape(y, y.shape[2:])


def _pool(call: Call, x: Value, w: Window, kind: str) -> Value | None:
    """The reduction of `x`, images [N, C, ...] or [N, ..., C], as max or average pooling; None if that does not cover
    it."""
    rank = x.type.rank - 2
    axes = [k for k in range(x.type.rank) if w.size[k] > 1 or w.strides[k] > 1 or w.low[k] or w.high[k]]
    if rank not in (1, 2, 3) or kind not in ("max", "add") or not x.dtype.is_float or not axes:
        return None
    if any(s > 1 for s in w.spread) or 0 in axes or as_int(x.type.size) == 0:
        return None
    if any(not isinstance(v, int) or v < 0 for v in (*w.low, *w.high)):
        return None
    if any(as_int(x.shape[k]) is None and not prove(x.shape[k] + w.low[k] + w.high[k] >= w.reach(k)) for k in axes):
        return None  # where no window fits, there is none
    if any(max(w.low[k], w.high[k]) >= w.reach(k) for k in axes):
        return None
    space = list(range(2, x.type.rank)) if 1 not in axes else list(range(1, x.type.rank - 1))
    if not set(axes) <= set(space):
        return None
    channel = 1 if 1 not in axes else x.type.rank - 1
    perm = [0, channel, *space]
    attrs = {
        "kernel": tuple(w.size[k] for k in space),
        "strides": tuple(w.strides[k] for k in space),
        "dilations": tuple(w.dilations[k] for k in space),
        "pads": (*(w.low[k] for k in space), *(w.high[k] for k in space)),
        "ceil_mode": False,
    }
    image = call.transpose(x, perm)
    if kind == "max":
        y = call.emit("max_pool", image, **attrs)
        return call.transpose(y, [perm.index(k) for k in range(len(perm))])
    count = math.prod(w.size)
    y = call.emit("avg_pool", image, count_include_pad=True, **attrs)
    y = call.transpose(y, [perm.index(k) for k in range(len(perm))])
    return call.emit("mul", y, call.like(count, y))


def _separable(call: Call, w: Window, kind: str) -> Value:
    """A reduction by a monoid, computed along one dimension after another."""
    x = call.value(0)
    for k in range(x.type.rank):
        x = _along(call, x, w, kind, k)
    return x


def _along(call: Call, x: Value, w: Window, kind: str, k: int) -> Value:
    if w.is_trivial(k):
        return x
    fill = known_item(identity(kind, x.dtype), x.dtype)
    only = [1 if j == k else 0 for j in range(x.type.rank)]
    whole = dim((x.shape[k] - 1) * w.spread[k] + 1 + w.low[k] + w.high[k]) if as_int(x.shape[k]) != 0 else 0
    # Of a size that is not known, all windows that begin in it are made: none of them is shorter than nothing.
    extra = 0 if as_int(dim(whole)) is not None else w.reach(k) - 1
    x = padded(
        call,
        x,
        fill,
        [o * w.low[k] for o in only],
        [o * (w.high[k] + extra) for o in only],
        [o * (w.spread[k] - 1) for o in only],
    )
    size = x.shape[k]
    results = w.results(k, size - extra if (number := as_int(size)) is None else number)
    # Windows of 1, 2, 4 ... elements are made of two of half the size; what a size lacks is made of the one before.
    parts, width, total, done = x, 1, None, 0
    for bit in range(w.size[k].bit_length()):
        if w.size[k] >> bit & 1:
            skipped = done * w.dilations[k]
            part = call.slice(parts, k, skipped, dim(parts.shape[k] - skipped))
            total = part if total is None else _cut_and_combine(call, kind, total, part, k)
            done += width
        if w.size[k] >> (bit + 1):
            shift = width * w.dilations[k]
            left = dim(parts.shape[k] - shift)
            if (number := as_int(left)) is not None and number < 1:
                break
            parts = combine(call, kind, call.slice(parts, k, 0, left), call.slice(parts, k, shift, left))
            width *= 2
    assert total is not None
    return _strided(call, total, k, results, w.strides[k])


def _cut_and_combine(call: Call, kind: str, a: Value, b: Value, k: int) -> Value:
    least = a.shape[k] if prove(a.shape[k] <= b.shape[k]) else b.shape[k]
    return combine(call, kind, call.slice(a, k, 0, least), call.slice(b, k, 0, least))


def _strided(call: Call, x: Value, k: int, results: Any, stride: int) -> Value:
    rank = x.type.rank
    sizes = [results if j == k else d for j, d in enumerate(x.shape)]
    item = sliced(call, as_item(x), [0] * rank, sizes, [stride if j == k else 1 for j in range(rank)])
    return call.value(item)


def taps(call: Call, x: Value, fill: Item, w: Window) -> list[Value]:
    """For each tap of a window, in row-major order, a tensor with that element of all windows."""
    if math.prod(w.size) > MAX_TAPS:
        raise UnsupportedError("such large windows are not supported", expected=f"at most {MAX_TAPS}", got=w.size)
    x = padded(call, x, fill, w.low, w.high, [s - 1 for s in w.spread])
    counts = [w.results(k, d if (size := as_int(d)) is None else size) for k, d in enumerate(x.shape)]
    results: list[Value] = []
    for flat in range(math.prod(w.size)):
        place: list[int] = []
        for size in reversed(w.size):
            place.insert(0, flat % size)
            flat //= size
        begin = [p * d for p, d in zip(place, w.dilations, strict=True)]
        results.append(call.value(sliced(call, as_item(x), begin, counts, w.strides)))
    return results


def _general(call: Call, w: Window, count: int) -> list[Item]:
    """A reduction over windows by any body, which combines the taps of all windows one after another."""
    starts = [call.item(count + k) for k in range(count)]
    columns = [taps(call, call.value(k), starts[k], w) for k in range(count)]
    totals = starts
    for elements in zip(*columns, strict=True):
        totals = [as_item(v) for v in apply_body(call, call.op.regions[0], totals, [as_item(e) for e in elements])]
    return list(totals)


@rule("select_and_scatter")
def select_and_scatter(call: Call) -> Value:
    """Add each window's source to the element that it selects: the gradient of max pooling."""
    operand, source, start = call.value(0), call.value(1), call.item(2)
    size = call.ints("window_dimensions")
    pads = call.ints("padding", [0] * 2 * len(size))
    ones = [1] * len(size)
    w = Window(size, call.ints("window_strides", ones), ones, ones, pads[0::2], pads[1::2])
    select, scatter = call.op.regions
    direction = str(select.body[0].attributes.get("comparison_direction", "")) if len(select.body) == 1 else ""
    kind = monoid(scatter, operand.dtype)
    if direction not in ("GE", "GT", "LE", "LT") or kind != "add":
        raise call.unsupported("with these bodies")
    worst = operand.dtype.max if direction[0] == "L" else operand.dtype.min
    elements = taps(call, operand, known_item(worst, operand.dtype), w)
    inside = taps(
        call, call.broadcast(call.like(True, call.constant(True)), operand.shape), known_item(False, boolean), w
    )
    best, chosen = elements[0], call.like(0, call.iota(1, i32))
    has = inside[0]
    for k, (e, ok) in enumerate(zip(elements[1:], inside[1:], strict=True), 1):
        keep = call.emit({"GE": "ge", "GT": "gt", "LE": "le", "LT": "lt"}[direction], best, e)
        better = call.emit("and", ok, call.emit("not", call.emit("and", keep, has)))
        best = call.emit("select", better, e, best)
        chosen = call.emit("select", better, call.like(k, chosen), chosen)
        has = call.emit("or", has, ok)
    return _spread_back(call, operand, source, start, chosen, w)


def _spread_back(call: Call, operand: Value, source: Value, start: Item, chosen: Value, w: Window) -> Value:
    """The gradient, of the shape of `operand`, of max pooling: each element of `source` is added to `start` at the tap
    of its window whose number is in `chosen`."""
    total: Value | None = None
    zero = known_item(0, operand.dtype)
    for flat in range(math.prod(w.size)):
        mine = call.emit("eq", chosen, call.like(flat, chosen))
        part = call.emit("select", mine, source, call.like(0, source))
        place, rest = list[int](), flat
        for size in reversed(w.size):
            place.insert(0, rest % size)
            rest //= size
        low = [p - b for p, b in zip(place, w.low, strict=True)]
        spread = [
            d if s == 1 or is_const(d, 0) else (d - 1) * s + 1 for d, s in zip(part.shape, w.strides, strict=True)
        ]
        high = [dim(d - s - b) for d, s, b in zip(operand.shape, spread, low, strict=True)]
        part = padded(call, part, zero, low, high, [s - 1 for s in w.strides])
        total = part if total is None else call.emit("add", total, part)
    assert total is not None
    return total if is_identity("add", start) else call.emit("add", total, call.unbroadcast(start))
