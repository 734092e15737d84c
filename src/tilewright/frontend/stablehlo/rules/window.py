"""Reductions over windows: pooling, cumulative sums, and any monoid as one dimension after the other."""

from __future__ import annotations

import math

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.reduce import OPERATORS, apply_body, combine, identity, is_identity, monoid
from tilewright.frontend.stablehlo.rules.shape import as_item, padded, sliced
from tilewright.frontend.stablehlo.scope import Item, known_item
from tilewright.ir.dtype import boolean, i32
from tilewright.ir.expr import Expr, as_expr, as_int, is_const
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, UnsupportedError

MAX_TAPS = 128
"""Elements of a window that are written out one by one."""


@dataclass(frozen=True, slots=True)
class Window:
    """What an operation over windows says, a number a dimension."""

    size: list[int]
    strides: list[int]
    spread: list[int]
    dilations: list[int]
    low: list[int]
    high: list[int]

    @classmethod
    def of(cls, call: Call) -> Window:
        size = call.ints("window_dimensions")
        ones = [1] * len(size)
        pads = call.ints("padding", [0] * 2 * len(size))
        strides, spread, dilations = (
            call.ints(n, ones) for n in ("window_strides", "base_dilations", "window_dilations")
        )
        made = cls(size, strides, spread, dilations, pads[0::2], pads[1::2])
        lists = (made.size, made.strides, made.spread, made.dilations, made.low, made.high)
        if {len(v) for v in lists} != {len(call.item(0).shape)} or min(
            (*size, *strides, *spread, *dilations), default=1
        ) < 1:
            raise ModelError("the window does not fit", got=f"{size} for {call.item(0).type}")
        return made

    def reach(self, k: int) -> int:
        """Elements that a window spans along a dimension."""
        return (self.size[k] - 1) * self.dilations[k] + 1


@rule("reduce_window")
def reduce_window(call: Call) -> list[Value | Item]:
    count = len(call.items) // 2
    window = Window.of(call)
    kind = monoid(call.op.regions[0], call.item(0).dtype) if count == 1 else None
    if kind is None:
        return list(_general(call, window, count))
    if kind not in OPERATORS:
        raise UnsupportedError(f"the reduction {kind} over windows is not supported")
    found = _cumulative(call, window, kind) or _pool(call, window, kind)
    if found is None:
        found = _separable(call, window, kind)
    return [found if is_identity(kind, call.item(1)) else combine(call, kind, found, call.near(1))]


def _cumulative(call: Call, w: Window, kind: str) -> Value | None:
    """Windows that reach from each element to the beginning, or the end, of one dimension."""
    axes = [k for k, s in enumerate(w.size) if s > 1]
    if len(axes) != 1 or kind not in ("add", "mul") or call.item(0).dtype is boolean:
        return None
    (axis,) = axes
    rest = w.size[axis] - 1
    if as_int(call.item(0).shape[axis]) != w.size[axis] or {*w.strides, *w.spread, *w.dilations} != {1}:
        return None
    others = [p for k in range(len(w.size)) if k != axis for p in (w.low[k], w.high[k])]
    if any(others) or (w.low[axis], w.high[axis]) not in ((rest, 0), (0, rest)):
        return None
    op = "cumsum" if kind == "add" else "cumprod"
    return call.emit(op, call.value(0), axis=axis, exclusive=False, reverse=w.low[axis] == 0)


def _pool(call: Call, w: Window, kind: str) -> Value | None:
    """Windows over images [N, C, ...] or [N, ..., C] as our pooling."""
    x = call.value(0)
    rank = x.type.rank - 2
    axes = [k for k in range(x.type.rank) if w.size[k] > 1 or w.strides[k] > 1 or w.low[k] or w.high[k]]
    if rank not in (1, 2, 3) or kind not in ("max", "add") or not x.dtype.is_float or not axes:
        return None
    if any(s > 1 for s in w.spread) or min((*w.low, *w.high)) < 0 or 0 in axes or as_int(x.type.size) == 0:
        return None
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
    """One dimension after the other."""
    x = call.value(0)
    for k in range(x.type.rank):
        x = _along(call, x, w, kind, k)
    return x


def _along(call: Call, x: Value, w: Window, kind: str, k: int) -> Value:
    if w.size[k] == 1 and w.strides[k] == 1 and w.spread[k] == 1 and not w.low[k] and not w.high[k]:
        return x
    fill = known_item(identity(kind, x.dtype), x.dtype)
    only = [1 if j == k else 0 for j in range(x.type.rank)]
    x = padded(
        call,
        x,
        fill,
        [o * w.low[k] for o in only],
        [o * w.high[k] for o in only],
        [o * (w.spread[k] - 1) for o in only],
    )
    size = as_int(x.shape[k])
    if size is None:
        raise UnsupportedError("windows of this kind along a symbolic dimension are not supported")
    results = max(0, (size - w.reach(k)) // w.strides[k] + 1)
    # Windows of 1, 2, 4 ... elements are made of two of half the size; what a size lacks is made of the one before.
    parts, width, total, done = x, 1, None, 0
    for bit in range(w.size[k].bit_length()):
        if w.size[k] >> bit & 1:
            skipped = done * w.dilations[k]
            part = call.slice(parts, k, skipped, (as_int(parts.shape[k]) or 0) - skipped)
            total = part if total is None else _cut_and_combine(call, kind, total, part, k)
            done += width
        if w.size[k] >> (bit + 1):
            shift = width * w.dilations[k]
            left = (as_int(parts.shape[k]) or 0) - shift
            if left < 1:
                break
            parts = combine(call, kind, call.slice(parts, k, 0, left), call.slice(parts, k, shift, left))
            width *= 2
    assert total is not None
    return _strided(call, total, k, results, w.strides[k])


def _cut_and_combine(call: Call, kind: str, a: Value, b: Value, k: int) -> Value:
    least = min(as_int(a.shape[k]) or 0, as_int(b.shape[k]) or 0)
    return combine(call, kind, call.slice(a, k, 0, least), call.slice(b, k, 0, least))


def _strided(call: Call, x: Value, k: int, results: int, stride: int) -> Value:
    rank = x.type.rank
    sizes = [results if j == k else d for j, d in enumerate(x.shape)]
    item = sliced(call, as_item(x), [0] * rank, sizes, [stride if j == k else 1 for j in range(rank)])
    return call.value(item)


def taps(call: Call, x: Value, fill: Item, w: Window) -> list[Value]:
    """The elements of all windows, one tensor for each place in a window, in row-major order."""
    if math.prod(w.size) > MAX_TAPS:
        raise UnsupportedError("such large windows are not supported", expected=f"at most {MAX_TAPS}", got=w.size)
    x = padded(call, x, fill, w.low, w.high, [s - 1 for s in w.spread])
    counts = list[Expr]()
    for k, d in enumerate(x.shape):
        size = as_int(d)
        if size is None and (w.reach(k) > 1 or w.strides[k] > 1):
            raise UnsupportedError("windows of this kind over a symbolic dimension are not supported")
        counts.append(d if size is None else as_expr(max(0, (size - w.reach(k)) // w.strides[k] + 1)))
    found: list[Value] = []
    for flat in range(math.prod(w.size)):
        place: list[int] = []
        for size in reversed(w.size):
            place.insert(0, flat % size)
            flat //= size
        begin = [p * d for p, d in zip(place, w.dilations, strict=True)]
        found.append(call.value(sliced(call, as_item(x), begin, counts, w.strides)))
    return found


def _general(call: Call, w: Window, count: int) -> list[Item]:
    """Any body, applied to the elements of all windows in turn."""
    starts = [call.item(count + k) for k in range(count)]
    columns = [taps(call, call.value(k), starts[k], w) for k in range(count)]
    totals = starts
    for elements in zip(*columns, strict=True):
        totals = [as_item(v) for v in apply_body(call, call.op.regions[0], totals, [as_item(e) for e in elements])]
    return list(totals)


@rule("select_and_scatter")
def select_and_scatter(call: Call) -> Value:
    """Each window adds its source to the element that it selects: the gradient of pooling by maxima."""
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
    """The sources at the places that were chosen."""
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
    return total if is_identity("add", start) else call.emit("add", total, call.near(start))
