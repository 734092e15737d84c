"""Rules for reductions, sorting and cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import DType, boolean, i64, u8
from tilewright.ir.expr import Expr, as_int, maximum, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import known

Axes = int | Sequence[int] | None


def _reduced(n: Call, op: str, x: Value, axes: Axes, keepdim: bool) -> Value:
    chosen = n.axes(axes, x)
    if not chosen:
        return x
    return n.emit(op, x, axes=chosen, keepdims=bool(keepdim))


@rule("sum", "nansum")
def sum_(n: Call, x: Value, axes: Axes = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    if n.name.startswith("aten.nansum"):
        x = n.emit("select", n.emit("isnan", x), n.like(0.0, x), x)
    return _reduced(n, "reduce_sum", n.cast(x, n.dtype), axes, keepdim)


@rule("mean")
def mean(n: Call, x: Value, axes: Axes = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    return _reduced(n, "reduce_mean", n.cast(x, n.dtype), axes, keepdim)


@rule("prod")
def prod(n: Call, x: Value, axes: Axes = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    return _reduced(n, "reduce_prod", n.cast(x, n.dtype), axes, keepdim)


@rule("amax", "amin")
def extreme(n: Call, x: Value, axes: Axes = (), keepdim: bool = False) -> Value:
    return _extreme(n, n.name.startswith("aten.amax"), x, axes, keepdim)


@rule("max.default", "min.default")
def extreme_of_all(n: Call, x: Value) -> Value:
    return _extreme(n, n.name.startswith("aten.max"), x, None, False)


def _extreme(n: Call, largest: bool, x: Value, axes: Axes, keepdim: bool) -> Value:
    x = n.nonempty(x, n.axes(axes, x))
    return _reduced(n, "reduce_max" if largest else "reduce_min", x, axes, keepdim)


@rule("max.dim", "min.dim")
def extreme_with_index(n: Call, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    largest = n.name.startswith("aten.max")
    if x.type.rank == 0:
        return [x, n.filled(0, i64, ())]
    values = _extreme(n, largest, x, dim, keepdim)
    index = _arg(n, largest, x, dim, keepdim)
    return [n.picked(values, x, index, n.axis(dim, x)), index]


@rule("argmax", "argmin")
def arg(n: Call, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(n, n.name.startswith("aten.argmax"), x, dim, keepdim)


def _arg(n: Call, largest: bool, x: Value, dim: int | None, keepdim: bool) -> Value:
    """The index of the largest (or smallest) element of `x` along `dim` (None: of all), the first of equal ones, which
    PyTorch leaves open but returns in eager mode, too. `keepdim` keeps that dimension with extent 1."""
    if dim is None:
        flat = n.reshape(x, (product(x.shape),))
        index = _arg(n, largest, flat, 0, False)
        return n.reshape(index, [1] * x.type.rank) if keepdim else index
    if x.type.rank == 0:
        return n.filled(0, n.dtype, ())
    op = "argmax" if largest else "argmin"
    axis = n.axis(dim, x)
    return n.emit(op, n.nonempty(x, [axis]), axis=axis, keepdims=bool(keepdim), select_last_index=False)


@rule("any", "all")
def quantifier(n: Call, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
    op = "reduce_max" if n.name.startswith("aten.any") else "reduce_min"
    result = _reduced(n, op, n.cast(n.cast(x, boolean), u8), axes, keepdim)  # whose least, that of no element, is 0
    return n.cast(n.cast(result, boolean), n.dtype)


@rule("count_nonzero")
def count_nonzero(n: Call, x: Value, axes: Axes = None) -> Value:
    return _reduced(n, "reduce_sum", n.cast(n.cast(x, boolean), n.dtype), axes, False)


@rule(
    "var.correction",
    "std.correction",
    "var.dim",
    "std.dim",
    "var.default",
    "std.default",
    "var_mean.correction",
    "std_mean.correction",
    single=True,
)
def variance(
    n: Call, x: Value, axes: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None
) -> Any:
    """The variance of `x` over `axes` in two passes: the mean, then the mean square deviation, divided by the count
    minus `correction` (by default 1, or 0 if not `unbiased`). Reduced axes stay with extent 1 if `keepdim`."""
    if n.name.endswith("default") or n.name in ("aten.var", "aten.std"):  # (self, unbiased)
        axes, unbiased = None, axes
    if n.name.endswith("correction"):  # (self, dim, *, correction, keepdim)
        less = 1 if correction is None else correction
    else:
        less = 1 if unbiased is None or unbiased else 0
    chosen = n.axes(axes, x)
    mean_ = n.emit("reduce_mean", x, axes=chosen, keepdims=True)
    deviation = n.emit("sub", x, mean_)
    total = n.emit("reduce_sum", n.emit("mul", deviation, deviation), axes=chosen, keepdims=bool(keepdim))
    count = product([x.shape[a] for a in chosen])
    number = as_int(count)
    if number is not None:
        divisor = n.like(float(max(number - less, 0)), total)
    elif isinstance(less, int):
        divisor = n.symbols([maximum(count - less, 0)], total.dtype, ())
    else:
        raise n.unsupported("with this correction", got=correction)
    result = n.emit("div", total, divisor)
    if "std" in n.name:
        result = root(n, result)
    result = n.cast(result, n.dtype)
    if "_mean" not in n.name:
        return result
    mean_ = n.cast(mean_, n.dtype)
    return [result, mean_ if keepdim else n.reshape(mean_, result.shape)]


def root(n: Call, x: Value, power: float | Value = 0.5) -> Value:
    """`x`, a sum of powers, to `power`, such as 1/2. Its gradient at 0 is 0, as PyTorch defines it."""

    def away_from_zero() -> Value:
        flat, one = n.emit("eq", x, n.like(0, x)), n.like(1, x)
        return n.emit("select", flat, n.like(0, x), _power(n, n.emit("select", flat, one, x), power))

    return n.surrogate(_power(n, x, power), away_from_zero)


def _power(n: Call, x: Value, power: float | Value) -> Value:
    if power == 0.5:
        return n.emit("sqrt", x)
    return n.emit("pow", x, power if isinstance(power, Value) else n.like(power, x))


@rule("logsumexp", "special_logsumexp", single=True)
def logsumexp(n: Call, x: Value, axes: Axes, keepdim: bool = False) -> Value:
    """log(sum(exp(x))) along `axes`, which stay with extent 1 if `keepdim`, as log(sum(exp(x - max))) + max, where a
    maximum that is infinite is not subtracted."""
    x = n.floats(x)
    chosen = n.axes(axes, x)
    if not chosen:
        return x
    top = n.emit("reduce_max", x, axes=chosen, keepdims=True)
    top = n.emit("select", n.emit("detect_inf", top), n.like(0.0, top), top)
    total = n.emit("reduce_sum", n.emit("exp", n.emit("sub", x, top)), axes=chosen, keepdims=True)
    return n.reshape(n.emit("add", n.emit("log", total), top), n.shape)


@rule("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", single=True)
def vector_norm(
    n: Call, x: Value, order: Any = 2, axes: Axes = None, keepdim: bool = False, dtype: DType | None = None
) -> Value:
    x = n.cast(x, n.dtype)
    order = 2 if order is None else order
    if isinstance(order, Expr) and as_int(order) is None:
        if not known(order > 0):
            raise n.unsupported("of an order that may be 0", got=order)
        power = n.like(order, x)
        powers = _reduced(n, "reduce_sum", root(n, n.emit("abs", x), power), axes, keepdim)
        return root(n, powers, n.emit("div", n.like(1, x), power))
    if order in (float("inf"), float("-inf")):
        return _reduced(n, "reduce_max" if order > 0 else "reduce_min", n.emit("abs", x), axes, keepdim)
    if order == 0:
        raise n.unsupported("of this order", got=order)
    if order == 1:
        return _reduced(n, "reduce_sum", n.emit("abs", x), axes, keepdim)
    if order != 2:
        powers = _reduced(n, "reduce_sum", root(n, n.emit("abs", x), order), axes, keepdim)
        return root(n, powers, 1 / order)
    return root(n, _reduced(n, "reduce_sum", n.emit("mul", x, x), axes, keepdim))


@rule("cumsum", "cumprod")
def cumulative(n: Call, x: Value, dim: int, dtype: DType | None = None) -> Value:
    if x.type.rank == 0:
        return n.cast(x, n.dtype)
    op = "cumsum" if n.name.startswith("aten.cumsum") else "cumprod"
    return n.emit(op, n.cast(x, n.dtype), axis=n.axis(dim, x), exclusive=False, reverse=False)


@rule("topk")
def topk(n: Call, x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Value]:
    if x.type.rank == 0:
        return [x, n.filled(0, i64, ())] if as_int(k) else [n.filled(0, x.dtype, (0,)), n.filled(0, i64, (0,))]
    return list(n.emit_all("topk", x, axis=n.axis(dim, x), k=k, largest=bool(largest)))


@rule("sort", "argsort")
def sort(n: Call, x: Value, *rest: Any, **named: Any) -> Any:
    """A sort, as `topk` of all elements; this keeps the order of equal ones, so that the sort is stable."""
    if x.type.rank == 0:
        index = n.filled(0, i64, ())
        return index if n.name.startswith("aten.argsort") else [x, index]
    numbers = [r for r in rest if not isinstance(r, bool) and r is not None]
    flags = [r for r in rest if isinstance(r, bool)]
    axis = n.axis(numbers[0] if numbers else named.get("dim", -1), x)
    descending = flags[-1] if flags else bool(named.get("descending", False))
    values, index = n.emit_all("topk", x, axis=axis, k=x.shape[axis], largest=descending)
    return index if n.name.startswith("aten.argsort") else [values, index]
