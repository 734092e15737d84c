"""Padding and resizing by amounts that data decides, one axis at a time: each call computes which input each output
reads."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.common.resize import sampled
from tilewright.ir.dtype import f32, f64, i64
from tilewright.ir.expr import Expr
from tilewright.ir.graph import Value
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError


def pad_axis(n: Emitter, x: Value, axis: int, before: Any, after: Any, mode: str, fill: Value) -> Value:
    """`x` with `before` and `after` more elements at the two ends of `axis`, or fewer where these are negative; they
    are numbers, expressions or scalars of i64.

    `mode` is one of "constant" (`fill`), "edge", "reflect" and "wrap", as in ONNX.
    """
    extent = x.shape[axis]
    low, high, number = _scalar(n, before), _scalar(n, after), _scalar(n, extent)
    if mode == "reflect":
        low, high = (_reflected(n, pad, other, extent) for pad, other in ((low, high), (high, low)))
    size = n.extent(
        n.within(n.emit("add", n.emit("add", low, high), number), 0, None, "more is cut away than there is")
    )
    at = n.emit("sub", n.emit("range", start=0, step=1, size=size, dtype=i64), low)
    zero, one = n.constant(0, i64), n.constant(1, i64)
    last = n.emit("sub", number, one)
    place = at
    if mode == "wrap":
        place = n.emit("mod", at, n.emit("max", number, one))
    elif mode == "reflect":  # there and back again, ends once
        period = n.emit("max", n.emit("add", last, last), one)
        transposed = n.emit("mod", at, period)
        place = n.emit("min", transposed, n.emit("sub", period, transposed))
    place = n.emit("max", n.emit("min", place, last), zero)
    padded = n.emit("gather", x, place, axis=axis)
    if mode != "constant":
        return padded
    inside = n.emit("and", n.emit("ge", at, zero), n.emit("lt", at, number))
    inside = n.reshape(inside, [size if k == axis else 1 for k in range(x.type.rank)])
    return n.emit("select", inside, padded, fill)


def _reflected(n: Emitter, pad: Value, other: Value, extent: Expr) -> Value:
    """`pad`, with a check at each call that reflection has enough elements: `extent` - 1 of them, without the elements
    that a negative pad `other` removes at the other end."""
    zero = n.constant(0, i64)
    left = n.emit("add", n.symbols([extent - 1], i64, ()), n.emit("min", other, zero))
    return n.require(pad, n.emit("le", pad, n.emit("max", left, zero)), pad, "there is too little to reflect")


def _scalar(n: Emitter, number: Any) -> Value:
    return number if isinstance(number, Value) else n.symbols([number], i64, ())


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an axis is resized, apart from sizes: the attributes of the operator `resize` (`ops/resize.py`). `rounding`
    may also be "outward": up where the axis becomes smaller, else down."""

    mode: str
    coordinates: str
    rounding: str
    cubic_a: float = -0.75
    exclude_outside: bool = False


def resize_axis_by_data(n: Emitter, x: Value, axis: int, size: Expr, scale: Value, how: Sampling) -> Value:
    """`x` with `axis` resized to `size` samples, where data decides `size` and `scale` (f64). Coordinates are computed
    in f64."""
    if how.mode not in ("nearest", "linear", "cubic"):
        raise UnsupportedError(f"the mode {how.mode} of Resize is not supported")
    x = sampled(n, x, axis, size)
    emitted = _Samples(n, n.symbols([x.shape[axis]], f64, ()), n.symbols([size], f64, ()), scale, how)
    out = n.emit("range", start=0, step=1, size=size, dtype=i64)
    c = emitted.coordinate(n.cast(out, f64))
    if how.mode == "nearest":
        return n.emit("gather", x, emitted.inside(emitted.rounded(c)), axis=axis)
    work = f32 if x.dtype.is_float and x.dtype is not f64 else f64
    radius = 1 if how.mode == "linear" else 2
    first = n.emit("sub", n.emit("ceil", c), n.constant(float(radius), f64))
    taps = [n.emit("add", first, n.constant(float(k), f64)) for k in range(2 * radius)]
    weights = [emitted.weight(tap, c) for tap in taps]
    if how.exclude_outside:
        total = weights[0]
        for w in weights[1:]:
            total = n.emit("add", total, w)
        weights = [n.emit("div", w, total) for w in weights]
    rows = [n.reshape(v, (1, size)) for v in (*map(emitted.inside, taps), *(n.cast(w, work) for w in weights))]
    index, factors = (n.emit("concat", *part, axis=0) for part in (rows[: 2 * radius], rows[2 * radius :]))
    return n.emit("resample", x, index, factors, axis=axis)


@dataclass(frozen=True, slots=True)
class _Samples:
    """The formulas of `ops/resize.py` for sampling coordinates, emitted as f64 values of the graph."""

    n: Emitter
    extent: Value
    size: Value
    scale: Value
    how: Sampling

    def number(self, value: float) -> Value:
        return self.n.constant(value, f64)

    def coordinate(self, o: Value) -> Value:
        """The coordinates in the input at which the output samples number `o` are taken."""
        emit, number = self.n.emit, self.number
        half, one = number(0.5), number(1.0)
        centers = emit("div", emit("add", o, half), self.scale)
        match self.how.coordinates:
            case "asymmetric":
                return emit("div", o, self.scale)
            case "tf_half_pixel_for_nn":
                return centers
            case "align_corners":
                length = emit("sub", emit("mul", self.scale, self.extent), one)
                alone = emit("eq", length, number(0.0))
                result = emit("div", emit("mul", o, emit("sub", self.extent, one)), emit("select", alone, one, length))
                return emit("select", alone, number(0.0), result)
            case "half_pixel":
                return emit("sub", centers, half)
            case "pytorch_half_pixel":
                return emit("select", emit("eq", self.size, one), number(0.0), emit("sub", centers, half))
            case "half_pixel_symmetric":
                share = emit("sub", one, emit("div", self.size, emit("mul", self.scale, self.extent)))
                shift = emit("mul", emit("mul", self.extent, half), share)
                return emit("add", emit("sub", centers, half), shift)
        raise UnsupportedError(f"the coordinates {self.how.coordinates} of Resize need sizes that are known")

    def rounded(self, c: Value) -> Value:
        """The index of the input sample nearest to coordinate `c`, by the rounding mode."""
        emit, half = self.n.emit, self.number(0.5)
        match self.how.rounding:
            case "floor":
                return emit("floor", c)
            case "ceil":
                return emit("ceil", c)
            case "outward":
                smaller = emit("lt", self.scale, self.number(1.0))
                return emit("select", smaller, emit("ceil", c), emit("floor", c))
            case "round_prefer_floor":
                return emit("ceil", emit("sub", c, half))
        return emit("floor", emit("add", c, half))

    def inside(self, place: Value) -> Value:
        """The coordinates `place` clamped to the input, as indices."""
        last = self.n.emit("sub", self.extent, self.number(1.0))
        within = self.n.emit("max", self.n.emit("min", place, last), self.number(0.0))
        return self.n.cast(within, i64)

    def weight(self, place: Value, c: Value) -> Value:
        emit, number = self.n.emit, self.number
        d = emit("abs", emit("sub", place, c))
        if self.how.mode == "linear":
            w = emit("max", emit("sub", number(1.0), d), number(0.0))
        else:
            a = self.how.cubic_a
            inner = self.polynomial(d, (a + 2, -(a + 3), 0.0, 1.0))
            outer = self.polynomial(d, (a, -5 * a, 8 * a, -4 * a))
            outer = emit("select", emit("lt", d, number(2.0)), outer, number(0.0))
            w = emit("select", emit("le", d, number(1.0)), inner, outer)
        if not self.how.exclude_outside:
            return w
        within = emit("and", emit("ge", place, number(0.0)), emit("lt", place, self.extent))
        return emit("select", within, w, number(0.0))

    def polynomial(self, d: Value, coefficients: tuple[float, ...]) -> Value:
        """A polynomial of `d`, whose coefficients begin with that of the highest power."""
        total = self.number(coefficients[0])
        for c in coefficients[1:]:
            total = self.n.emit("add", self.n.emit("mul", total, d), self.number(c))
        return total


__all__ = ["Sampling", "pad_axis", "resize_axis_by_data"]
