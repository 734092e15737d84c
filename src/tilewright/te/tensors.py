"""Tensors, axes, and the stages that compute one from others."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType, f32, i64
from tilewright.ir.dtype import dtype as _dtype
from tilewright.ir.expr import (
    Const,
    Expr,
    Load,
    Reduce,
    Var,
    as_expr,
    const,
    is_const,
    lookup,
)
from tilewright.ir.loops import IterKind
from tilewright.ir.rewrite import walk_expr

_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class IterVar:
    """An axis of a stage: a variable over `0..extent`."""

    var: Var
    extent: Expr
    kind: IterKind
    name: str

    def as_expr(self) -> Expr:
        return self.var

    def __add__(self, other: Any) -> Expr:
        return self.as_expr() + _element(other)

    def __radd__(self, other: Any) -> Expr:
        return _element(other) + self.as_expr()

    def __sub__(self, other: Any) -> Expr:
        return self.as_expr() - _element(other)

    def __rsub__(self, other: Any) -> Expr:
        return as_expr(other) - self.var

    def __mul__(self, other: Any) -> Expr:
        return self.as_expr() * _element(other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Expr:
        return self.as_expr() // _element(other)

    def __mod__(self, other: Any) -> Expr:
        return self.as_expr() % _element(other)

    def __lt__(self, other: Any) -> Expr:
        return self.as_expr() < _element(other)

    def __le__(self, other: Any) -> Expr:
        return self.as_expr() <= _element(other)

    def __gt__(self, other: Any) -> Expr:
        return self.as_expr() > _element(other)

    def __ge__(self, other: Any) -> Expr:
        return self.as_expr() >= _element(other)


def _element(x: Any) -> Expr:
    return as_expr(plain(x))


def plain(x: Any) -> Any:
    """An axis's variable; anything else as it is."""
    return x.var if isinstance(x, IterVar) else x


@dataclass(frozen=True, slots=True, eq=False)
class ComputeOp:
    """One stage: `bodies[k]` at the axes' point is the k-th output's element."""

    name: str
    axis: tuple[IterVar, ...]
    reduce_axis: tuple[IterVar, ...]
    bodies: tuple[Expr, ...]
    shape: tuple[Expr, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors the bodies read, by first appearance."""
        found: dict[Tensor, None] = {}
        for body in self.bodies:
            for node in walk_expr(body):
                if isinstance(node, Load) and isinstance(node.buffer, Tensor):
                    found[node.buffer] = None
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A placeholder (`op` is None) or the result of a stage. Index it with axes to read an element."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    op: ComputeOp | None = None
    index: int = 0

    def __getitem__(self, indices: Any) -> Expr:
        if not isinstance(indices, tuple):
            indices = (indices,)
        # A tensor stands for its buffer until create_prim_func gives it one.
        return Load(self, tuple(as_expr(plain(i)) for i in indices))  # type: ignore[arg-type]

    @property
    def axis(self) -> tuple[IterVar, ...]:
        """The axes of a computed tensor (none for a placeholder)."""
        return self.op.axis if self.op is not None else ()

    @property
    def reduce_axis(self) -> tuple[IterVar, ...]:
        return self.op.reduce_axis if self.op is not None else ()

    @property
    def ndim(self) -> int:
        return len(self.shape)


def var(name: str, dtype: DType | str = i64, lo: int | None = 1, hi: int | None = None, multiple: int = 1) -> Var:
    """A symbolic dimension between `lo` and `hi` (inclusive), a multiple of `multiple`."""
    return Var(name, _dtype(dtype), lo, hi, multiple)


def placeholder(shape: Sequence[Any], dtype: DType | str = f32, name: str = "placeholder") -> Tensor:
    """An input tensor."""
    return Tensor(name, _dtype(dtype), tuple(as_expr(d) for d in shape))


@dataclass(frozen=True, slots=True)
class ConstMatrix:
    """A small matrix (or array of any rank) of literals; `M[i, r]` is the expression of its element."""

    dtype: DType
    shape: tuple[int, ...]
    entries: tuple[Const, ...]

    def __getitem__(self, indices: Any) -> Expr:
        point = indices if isinstance(indices, tuple) else (indices,)
        if len(point) != len(self.shape):
            raise ValueError(f"the constant array has {len(self.shape)} dimensions, indexed with {len(point)}")
        position: Expr = const(0)
        for extent, index in zip(self.shape, point, strict=True):
            position = position * extent + as_expr(plain(index))
        return lookup(position, self.entries)


def const_matrix(array: Any, dtype: DType | str = f32) -> ConstMatrix:
    """A constant array (nested sequences, NumPy, `Fraction`s) for use in bodies, its elements rounded to `dtype`.

        y = te.compute((n, 4), lambda t, i: te.sum(M[i, r] * d[t, r], axis=r))

    The schedule primitive `expand` makes straight-line code with shared subexpressions of such a stage.
    """
    values = np.asarray(array, dtype=object)
    kind = _dtype(dtype)
    if not values.size:
        raise ValueError("a constant array needs elements")
    entries = tuple(const(float(v) if kind.is_float else int(v), kind) for v in values.ravel())
    return ConstMatrix(kind, values.shape, entries)


def reduce_axis(extent: Any, name: str = "k") -> IterVar:
    """A reduction axis over `0..extent`, or over `(lo, hi)` where lo must be 0."""
    if isinstance(extent, tuple):
        lo, hi = extent
        if not is_const(as_expr(lo), 0):
            raise ValueError(f"reduce_axis {name}: must start at 0, got {lo}")
        extent = hi
    return IterVar(Var(f"{name}.{next(_counter)}"), as_expr(extent), "reduce", name)


def compute(shape: Sequence[Any], fcompute: Callable[..., Any], name: str = "compute") -> Any:
    """A stage: `fcompute` takes the axes' variables and gives the element (or a tuple: several outputs).

    Returns a Tensor, or a tuple of Tensors. Raises TypeError when the number of arguments is not the rank.
    """
    extents = tuple(as_expr(d) for d in shape)
    labels = _axis_names(fcompute, len(extents))
    axis = tuple(
        IterVar(Var(f"{label}.{next(_counter)}"), extent, "spatial", label)
        for label, extent in zip(labels, extents, strict=True)
    )
    result = fcompute(*(a.var for a in axis))
    several = isinstance(result, tuple | list)
    bodies = tuple(as_expr(plain(b)) for b in (result if several else (result,)))
    reductions = [b for b in bodies if isinstance(b, Reduce)]
    for body in bodies:
        inner = body.children if isinstance(body, Reduce) else (body,)
        if any(isinstance(node, Reduce) for e in inner for node in walk_expr(e)):
            raise TypeError(f"{name}: a reduction must be the whole body of a stage; give it a stage of its own")
    if reductions and (len(reductions) != len(bodies) or len({_reduction_identity(r) for r in reductions}) != 1):
        raise TypeError(f"{name}: the outputs of a reduction stage must be the parts of one reduction")
    reduce_axes: tuple[IterVar, ...] = ()
    if reductions:
        reduce_axes = tuple(IterVar(v, extent, "reduce", v.name.rsplit(".", 1)[0]) for v, extent in reductions[0].axes)
    op = ComputeOp(name, axis, reduce_axes, bodies, extents)
    tensors = tuple(
        Tensor(name if len(bodies) == 1 else f"{name}_{k}", body.dtype, extents, op, k) for k, body in enumerate(bodies)
    )
    return tensors if several else tensors[0]


def _reduction_identity(r: Reduce) -> tuple[Any, ...]:
    return (r.reducer, r.values, r.axes, r.condition)


def _axis_names(f: Callable[..., Any], rank: int) -> list[str]:
    parameters = list(inspect.signature(f).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return [f"i{k}" for k in range(rank)]
    if len(parameters) != rank:
        raise TypeError(f"the stage has {rank} dimensions, its function takes {len(parameters)} arguments")
    return [p.name for p in parameters]
