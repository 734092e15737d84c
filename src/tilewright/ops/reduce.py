"""Reductions over axes: sum, mean, max, min, prod, and argmax/argmin.

16-bit floats are summed in f32. Attributes: `axes` (positions, sorted), `keepdims`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.dtype import DType, boolean, i32, i64
from tilewright.ir.expr import Expr, call, cast, const, product, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import accumulator, axes_of, axis_of, check_kind, narrow, need, or_identity, present, wide
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.te import IterVar, Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


def reduced_shape(shape: Sequence[Expr], axes: Sequence[int], keepdims: bool) -> tuple[Expr, ...]:
    if keepdims:
        return tuple(const(1) if k in axes else d for k, d in enumerate(shape))
    return tuple(d for k, d in enumerate(shape) if k not in axes)


def reduce_stage(
    x: Tensor,
    axes: Sequence[int],
    keepdims: bool,
    reducer: Callable[..., Any],
    value: Callable[[Expr], Any],
    name: str,
) -> Any:
    """The stage `name` that reduces `value(x[...])` over `axes`, which stay with extent 1 if `keepdims`, by `reducer`.
    Its reduction axes are named k0, k1, ...; without axes, each element is reduced alone."""
    reduce_axes = {a: te.reduce_axis(x.shape[a], f"k{a}") for a in axes}
    over = list(reduce_axes.values()) or [te.reduce_axis(1, "k")]

    def element(*point: Expr) -> Any:
        element_value = value(x[_full_point(point, x.ndim, reduce_axes, keepdims)])
        return or_identity(reducer(element_value, axis=over))

    return te.compute(reduced_shape(x.shape, axes, keepdims), element, name=name)


def _full_point(point: Sequence[Expr], rank: int, reduced: dict[int, IterVar], keepdims: bool) -> tuple[Expr, ...]:
    retained = iter(p for k, p in enumerate(point) if not (keepdims and k in reduced))
    return tuple(reduced[k].var if k in reduced else next(retained) for k in range(rank))


@dataclass(frozen=True, slots=True)
class ReduceAttrs(Attrs):
    """Attributes of reductions such as `reduce_sum`: the dimensions `axes` are reduced; with `keepdims` the result has
    them with size 1, else not at all."""

    axes: Ints
    keepdims: bool


def _infer(kinds: Sequence[str]) -> Callable[[Types, ReduceAttrs], Out]:
    def infer(types: Types, attrs: ReduceAttrs) -> Out:
        t = present(types[0])
        check_kind(t.dtype, kinds)
        axes = axes_of(attrs.axes, t.rank)
        layout = t.layout if attrs.keepdims else ""
        return (TensorType(t.dtype, reduced_shape(t.shape, axes, attrs.keepdims), layout),)

    return infer


def _reduction(name: str, reducer: Callable[..., Any], numpy: Callable[..., Any], kinds: Sequence[str]) -> None:
    def tensor_expression(inputs: Tensors, attrs: ReduceAttrs, out: Out) -> tuple[Tensor, ...]:
        x, (type,) = need(inputs[0]), out
        acc = accumulator(x.dtype)
        stage = reduce_stage(x, attrs.axes, attrs.keepdims, reducer, lambda e: cast(e, acc), name)
        return (narrow(stage, type.dtype, "rounded"),)

    def reference(arrays: Sequence[Any], attrs: ReduceAttrs) -> tuple[Any, ...]:
        x = np.asarray(arrays[0])
        options = {"axis": attrs.axes, "keepdims": attrs.keepdims}
        with np.errstate(all="ignore"):
            return (np.asarray(numpy(wide(x), **options)).astype(x.dtype),)

    register(OpDef(name, "reduction", ReduceAttrs, _infer(kinds), reference, compute=tensor_expression))


def _sum_numpy(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, **options: f(x, dtype=x.dtype, **options)


def _extreme_numpy(f: Any, empty: Callable[[DType], Any]) -> Callable[..., Any]:
    """The NumPy reference of a maximum or minimum `f`. Over no elements its result is `empty` of the element type, the
    reduction's identity."""

    def run(x: Any, **options: Any) -> Any:
        from tilewright.ir.dtype import dtype

        return f.reduce(x, initial=empty(dtype(x.dtype)), **options)

    return run


_reduction("reduce_sum", te.sum, _sum_numpy(np.sum), ("float", "int", "uint"))
_reduction("reduce_prod", te.prod, _sum_numpy(np.prod), ("float", "int", "uint"))
_reduction("reduce_max", te.max, _extreme_numpy(np.maximum, lambda t: t.min), ("float", "int", "uint", "bool"))
_reduction("reduce_min", te.min, _extreme_numpy(np.minimum, lambda t: t.max), ("float", "int", "uint", "bool"))


# --- mean -----------------------------------------------------------------------------------------------------------


def count(x: Tensor, axes: Sequence[int]) -> Expr:
    """The number of elements of `x` that a reduction over `axes` combines into one."""
    return product([x.shape[a] for a in axes])


def _mean_compute(inputs: Tensors, attrs: ReduceAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    acc = accumulator(x.dtype) if x.dtype.is_float else i64
    total = reduce_stage(x, attrs.axes, attrs.keepdims, te.sum, lambda e: cast(e, acc), "sum")
    n = cast(count(x, attrs.axes), acc)
    divide = "div" if x.dtype.is_float else "truncdiv"
    return (te.compute(type.shape, lambda *i: cast(call(divide, total[i], n), type.dtype), name="mean"),)


def _mean_numpy(arrays: Sequence[Any], attrs: ReduceAttrs) -> tuple[Any, ...]:
    x = np.asarray(arrays[0])
    with np.errstate(all="ignore"):
        mean = np.mean(wide(x), axis=attrs.axes, keepdims=attrs.keepdims)
    return (np.asarray(mean).astype(x.dtype),)


register(
    OpDef("reduce_mean", "reduction", ReduceAttrs, _infer(("float", "int", "uint")), _mean_numpy, compute=_mean_compute)
)


# --- argmax, argmin -------------------------------------------------------------------------------------------------
# Two reductions that vectorise: the extreme (NaN if there is one), and the first index where it, or a NaN, stands.


@dataclass(frozen=True, slots=True)
class ArgAttrs(Attrs):
    """Attributes of `argmax` and `argmin`: of equal extremes along `axis` the first one counts, or the last one with
    `select_last_index`."""

    axis: int
    keepdims: bool
    select_last_index: bool = False


def _arg(name: str, largest: bool) -> None:
    def infer(types: Types, attrs: ArgAttrs) -> Out:
        """The type rule of argmax and argmin: `axis`, `keepdims`, `select_last_index`; the result is i64."""
        t = present(types[0])
        axis = axis_of(attrs.axis, t.rank)
        return (TensorType(i64, reduced_shape(t.shape, (axis,), attrs.keepdims)),)

    def tensor_expression(inputs: Tensors, attrs: ArgAttrs, out: Out) -> tuple[Tensor, ...]:
        x = need(inputs[0])
        axis = attrs.axis % x.ndim
        acc = i32 if x.dtype is boolean else accumulator(x.dtype)
        extreme = te.max if largest else te.min
        best = reduce_stage(x, (axis,), attrs.keepdims, extreme, lambda e: cast(e, acc), "best")
        last = attrs.select_last_index
        k = te.reduce_axis(x.shape[axis], "k")
        # An extent above 2^31 would be more memory than there is.
        none = const(-1 if last else i32.max, i32)

        def element(*point: Expr) -> Any:
            value = cast(x[_full_point(point, x.ndim, {axis: k}, attrs.keepdims)], acc)
            result = call("eq", value, best[point])
            if acc.is_float:
                result = result | call("isnan", value)  # there are none, or the best is one
            at = select(result, cast(k.var, i32), none)
            return or_identity((te.max if last else te.min)(at, axis=k))

        index = te.compute(out[0].shape, element, name="index")
        return (te.compute(out[0].shape, lambda *i: cast(index[i], i64), name=name),)

    def reference(arrays: Sequence[Any], attrs: ArgAttrs) -> tuple[Any, ...]:
        x = wide(arrays[0])
        axis = attrs.axis
        find = np.argmax if largest else np.argmin
        if attrs.select_last_index:
            index = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis, keepdims=attrs.keepdims)
        else:
            index = find(x, axis=axis, keepdims=attrs.keepdims)
        return (np.asarray(index, np.int64),)

    register(OpDef(name, "reduction", ArgAttrs, infer, reference, compute=tensor_expression))


_arg("argmax", True)
_arg("argmin", False)

__all__ = ["count", "reduce_stage", "reduced_shape"]
