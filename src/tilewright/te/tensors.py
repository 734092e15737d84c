"""Tensors, axes, and the stages that compute one from others."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilewright.arith import prove_equal, simplify, symbolic_bounds
from tilewright.ir.dtype import DType, f32, i64
from tilewright.ir.dtype import dtype as _dtype
from tilewright.ir.expr import Const, Expr, Load, Var, as_expr, as_int, cast, const, is_const, lookup, of_elements
from tilewright.ir.loops import IterKind
from tilewright.ir.op_types import readable
from tilewright.ir.reduce import Reduce
from tilewright.ir.rewrite import loads, variables, walk_expr
from tilewright.runtime.specs import MAX_DIM
from tilewright.support.classes import dataclass
from tilewright.support.errors import ExpressionError, file_line, user_line
from tilewright.te.lanes import lane, lanes_in, with_axis

if TYPE_CHECKING:
    from tilewright.te.externs import ExternOp
    from tilewright.te.scans import ScanOp

ZERO = const(0)
_counter = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class IterVar:
    """An axis of a stage: a variable over `0..extent`, which stands for `start + var` in expressions."""

    var: Var
    extent: Expr
    kind: IterKind
    name: str
    start: Expr = ZERO
    __array_ufunc__ = None  # NumPy's scalars leave the operators to this class
    __hash__ = object.__hash__

    def as_expr(self) -> Expr:
        return self.var if self.start is ZERO else self.var + self.start

    def __add__(self, other: Any) -> Expr:
        return self.as_expr() + _element(other)

    def __radd__(self, other: Any) -> Expr:
        return _element(other) + self.as_expr()

    def __sub__(self, other: Any) -> Expr:
        return self.as_expr() - _element(other)

    def __rsub__(self, other: Any) -> Expr:
        return _element(other) - self.as_expr()

    def __mul__(self, other: Any) -> Expr:
        return self.as_expr() * _element(other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Expr:
        return self.as_expr() // _element(other)

    def __rfloordiv__(self, other: Any) -> Expr:
        return _element(other) // self.as_expr()

    def __mod__(self, other: Any) -> Expr:
        return self.as_expr() % _element(other)

    def __rmod__(self, other: Any) -> Expr:
        return _element(other) % self.as_expr()

    def __lshift__(self, other: Any) -> Expr:
        return self.as_expr() << _element(other)

    def __rshift__(self, other: Any) -> Expr:
        return self.as_expr() >> _element(other)

    def __and__(self, other: Any) -> Expr:
        return self.as_expr() & _element(other)

    def __or__(self, other: Any) -> Expr:
        return self.as_expr() | _element(other)

    def __xor__(self, other: Any) -> Expr:
        return self.as_expr() ^ _element(other)

    def __neg__(self) -> Expr:
        return -self.as_expr()

    def __lt__(self, other: Any) -> Expr:
        return self.as_expr() < _element(other)

    def __le__(self, other: Any) -> Expr:
        return self.as_expr() <= _element(other)

    def __gt__(self, other: Any) -> Expr:
        return self.as_expr() > _element(other)

    def __ge__(self, other: Any) -> Expr:
        return self.as_expr() >= _element(other)

    def __eq__(self, other: object) -> Any:
        return self.as_expr() == unwrapped(other)

    def __ne__(self, other: object) -> Any:
        return self.as_expr() != unwrapped(other)

    def __bool__(self) -> bool:
        return bool(self.as_expr())


def _element(x: Any) -> Expr:
    """The expression of an axis or element `x`; a number unchanged, as it takes the type of the other operand."""
    element: Expr = unwrapped(x) if isinstance(x, int | float | np.generic) else as_expr(unwrapped(x))
    return element


def unwrapped(x: Any) -> Any:
    """`x` as an expression if it is an axis, else `x` itself."""
    return x.as_expr() if isinstance(x, IterVar) else x


def _text(body: Expr) -> str:
    """The text of a stage's body as its writer wrote it; for a reduction of several values, only the text of its
    own."""
    if not isinstance(body, Reduce):
        return readable(body)
    values = ", ".join(map(readable, body.values))
    values = values if len(body.values) == 1 else f"({values})"
    where = "" if is_const(body.condition, True) else f" where {readable(body.condition)}"
    part = "" if len(body.values) == 1 else f"[{body.index}]"
    return f"{body.reducer.name}({values} for {_ranges(body.axes)}{where}){part}"


def _ranges(axes: Iterable[tuple[Var, Expr]]) -> str:
    return ", ".join(f"{readable(v)} in 0..{readable(extent)}" for v, extent in axes)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ComputeOp:
    """A stage: `bodies[k]` is the expression of an element of output k at the point of the axes. `line` is where its
    function stands.

    `intrinsic`: (name, k) of the intrinsic that computes the stage, over the axes from number k on.
    """

    name: str
    axis: tuple[IterVar, ...]
    reduce_axis: tuple[IterVar, ...]
    bodies: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    line: str | None = None
    intrinsic: tuple[str, int] | None = None
    lanes: int = 1

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return tuple(body.dtype for body in self.bodies)

    def __str__(self) -> str:
        """The stage as text, a line for each output: `C[i, j] = sum(A[i, k] * B[k, j] for k in 0..n) for i in 0..m, j
        in 0..n`."""
        place = f"[{', '.join(a.name for a in self.axis)}]"
        enclosing = f" for {_ranges((a.var, a.extent) for a in self.axis)}" if self.axis else ""
        names = [self.name] if len(self.bodies) == 1 else [f"{self.name}_{k}" for k in range(len(self.bodies))]
        return "\n".join(f"{n}{place} = {_text(b)}{enclosing}" for n, b in zip(names, self.bodies, strict=True))

    __repr__ = __str__

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors the bodies read, by first appearance."""
        result: dict[Tensor, None] = {}
        for body in (e for b in self.bodies for e in (b, *formula(b))):
            for node in walk_expr(body):
                if isinstance(node, Load) and isinstance(node.buffer, Tensor):
                    result[node.buffer] = None
        return tuple(result)


class _Whole:
    """The base of tensors and slices, which refuses arithmetic: a tensor must be indexed before it can be computed
    with."""

    __slots__ = ()
    __array_ufunc__ = None
    __hash__ = object.__hash__

    def _refuse(self, *_: Any) -> NoReturn:
        name, rank = getattr(self, "name", "it"), len(getattr(self, "shape", ()))
        raise ExpressionError(
            f"{name!r} is a tensor, not an element", hint=f"write {name}[{', '.join(['...'] * rank)}] with an index"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = __invert__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _refuse

    def __eq__(self, other: object) -> bool:
        if isinstance(other, IterVar | int | float | np.generic) or (isinstance(other, Expr) and of_elements(other)):
            self._refuse()
        return self is other

    def __ne__(self, other: object) -> bool:
        return not self == other


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor(_Whole):
    """A placeholder (`op` is None) or the result of a stage. Index it with axes to read an element. `strides` and
    `offset` say where elements lie, in elements (`te.memory`); None: row by row. An element may have several `lanes`,
    which are the last dimension (`te.lanes`)."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    op: ComputeOp | ScanOp | ExternOp | None = None
    index: int = 0
    strides: tuple[Expr, ...] | None = None
    offset: Expr | None = None
    lanes: int = 1

    def __str__(self) -> str:
        """The tensor's name and type, `A: f32[n, 4]`, or `A: f32x4[n]`; `print(A.op)` shows how it is computed."""
        kind, shape = (f"{self.dtype}x{self.lanes}", self.shape[:-1]) if self.lanes > 1 else (self.dtype, self.shape)
        return f"{self.name}: {kind}[{', '.join(map(readable, shape))}]"

    __repr__ = __str__

    def __getitem__(self, indices: Any) -> Expr:
        """The element at these indices; with slices among them, `Slices`, which intrinsics take (`te.intrinsic`)."""
        if not isinstance(indices, tuple):
            indices = (indices,)
        if self.lanes > 1 and len(indices) == len(self.shape) - 1:
            indices = (*indices, lane(self.lanes))
        if any(isinstance(i, slice) for i in indices):
            return Slices(self, tuple(map(_range, indices, self.shape)))  # type: ignore[return-value]
        # A tensor stands for its buffer until create_prim_func gives it one.
        return Load(self, tuple(map(_index, indices)))  # type: ignore[arg-type]

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


@dataclass(frozen=True, slots=True, eq=False)
class Slices(_Whole):
    """A part of a tensor: where it begins along each dimension, and how many elements it has there (None: one element,
    and the part has no such dimension)."""

    tensor: Tensor
    ranges: tuple[tuple[Expr, Expr | None], ...]


@dataclass(frozen=True, slots=True, eq=False)
class OverSlices:
    """The body of a stage that calls an intrinsic on slices; the stage's last axes are the intrinsic's."""

    intrinsic: str
    axis: tuple[IterVar, ...]
    body: Expr


def _range(index: Any, extent: Expr) -> tuple[Expr, Expr | None]:
    """The start and the extent of an index or a slice along a dimension."""
    if not isinstance(index, slice):
        return _index(index), None
    if index.step not in (None, 1):
        raise ExpressionError("a slice for an intrinsic has no step", expected="start:stop", got=index.step)
    start = ZERO if index.start is None else _index(index.start)
    return start, simplify((extent if index.stop is None else _index(index.stop)) - start)


def _index(value: Any) -> Expr:
    """An index as an i64 expression; narrower integers are converted silently."""
    index = as_expr(unwrapped(value))
    if index.dtype is i64:
        return index
    if index.dtype.is_int and index.dtype.bits < i64.bits:
        return cast(index, i64)
    raise ExpressionError(
        f"{readable(index)} is no index: it is {index.dtype}", expected="an integer", hint='te.cast(x, "int64")'
    )


def _extent(value: Any, what: str) -> Expr:
    """The extent of a tensor or an axis as an expression. Raises ExpressionError, about `what`, if `value` is no
    extent."""
    extent = as_expr(unwrapped(value))
    number = as_int(extent)
    if extent.dtype is not i64 or (number is not None and not 0 <= number <= MAX_DIM):
        raise ExpressionError(f"{what}: not an extent", expected="an i64 from 0 to 2**40", got=_typed(extent))
    return extent


def _typed(e: Expr) -> str:
    return f"{readable(e)} ({e.dtype})"


def var(name: str, dtype: DType | str = i64, lo: int | None = 1, hi: int | None = None, multiple: int = 1) -> Var:
    """A symbolic dimension between `lo` and `hi` (inclusive), a multiple of `multiple`."""
    return Var(name, _dtype(dtype), lo, hi, multiple)


def extents_of_shape(shape: Any, name: str) -> tuple[Expr, ...]:
    """The extents of the tensor `name` as expressions. Raises ExpressionError if `shape` is no shape."""
    return tuple(_extent(d, f"shape of {name}") for d in _sizes(shape, name))


def _sizes(shape: Any, name: str) -> tuple[Any, ...]:
    """The entries of `shape`; a single number is a shape of one dimension. Raises ExpressionError, about the stage
    `name`, for others."""
    if isinstance(shape, int | Expr):
        return (shape,)
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise ExpressionError(f"shape of {name}", expected="a sequence of extents", got=type(shape).__name__)
    return tuple(shape)


@dataclass(frozen=True, slots=True)
class ConstMatrix:
    """A small matrix (or array of any rank) of literals; `M[i, r]` is the expression of its element."""

    dtype: DType
    shape: tuple[int, ...]
    entries: tuple[Const, ...]

    def __getitem__(self, indices: Any) -> Expr:
        point = indices if isinstance(indices, tuple) else (indices,)
        if len(point) != len(self.shape):
            raise ExpressionError(f"the constant array has {len(self.shape)} dimensions, indexed with {len(point)}")
        position: Expr = const(0)
        for extent, index in zip(self.shape, point, strict=True):
            position = position * extent + as_expr(unwrapped(index))
        return lookup(position, self.entries)


def const_matrix(array: Any, dtype: DType | str = f32) -> ConstMatrix:
    """A constant array (nested sequences, NumPy, `Fraction`s) for use in bodies, its elements rounded to `dtype`.

        y = te.compute((n, 4), lambda t, i: te.sum(M[i, r] * d[t, r], axis=r))

    The schedule primitive `expand` makes straight-line code with shared subexpressions of such a stage.
    """
    values = np.asarray(array, dtype=object)
    kind = _dtype(dtype)
    if not values.size:
        raise ExpressionError("a constant array needs elements")
    entries = tuple(const(float(v) if kind.is_float else int(v), kind) for v in values.ravel())
    return ConstMatrix(kind, values.shape, entries)


def reduce_axis(extent: Any, name: str = "k") -> IterVar:
    """A reduction axis, called `name`, over `0..extent`, or over `lo..hi` for a pair. The ends may use the axes of the
    stage that it reduces for, if the extent has a bound without them: `te.reduce_axis((0, i + 1))` inside of the
    stage's function."""
    lo, hi = extent if isinstance(extent, tuple) and len(extent) == 2 else (0, extent)
    start = as_expr(unwrapped(lo))
    if start.dtype is not i64:
        raise ExpressionError(f"reduce_axis {name}: not a start", expected="an i64", got=_typed(start))
    size = _extent(hi if start is ZERO else as_expr(unwrapped(hi)) - start, f"reduce_axis {name}")
    return IterVar(Var(f"{name}.{next(_counter)}", axis=True), size, "reduce", name, start)


def compute(shape: Sequence[Any], fcompute: Callable[..., Any], name: str = "compute") -> Any:
    """A stage, called `name`, whose element at each point of `shape` is what `fcompute` returns for the axes' variables
    (a tuple: several outputs).

    Returns a Tensor, or a tuple of Tensors. Raises ExpressionError, with the line of `fcompute` where the body is
    wrong: an axis that is neither the stage's nor reduced over, a reduction inside of an expression.
    """
    line = _line_of(fcompute)
    extents = extents_of_shape(shape, name)
    labels = _axis_names(fcompute, len(extents), name)
    axis = tuple(new_axis(label, extent) for label, extent in zip(labels, extents, strict=False))
    result = fcompute(*(a.var for a in axis))
    intrinsic = None
    if isinstance(result, OverSlices):
        intrinsic = result.intrinsic, len(axis)
        axis, result = (*axis, *result.axis), result.body
        _check_extents(axis, extents, name, line)
    several = isinstance(result, tuple | list)
    bodies = tuple(as_expr(unwrapped(b)) for b in (result if several else (result,)))
    if (lanes := lanes_in(bodies)) > 1:
        axis = (*axis, new_axis("lane", const(lanes)))
        bodies = tuple(with_axis(b, lanes, axis[-1].var) for b in bodies)
        extents = extents if len(extents) == len(axis) else (*extents, const(lanes))
        _check_extents(axis, extents, name, line)
    if len(axis) != len(extents):
        what = f"{name}: the stage has {len(extents)} dimensions, its function takes {len(axis)} arguments"
        raise ExpressionError(what, where=line)
    if not bodies:
        raise ExpressionError(f"{name}: the function of the stage gives no element", where=line)
    bodies = _reductions_of(bodies, axis, name, line)
    reduce_axes: tuple[IterVar, ...] = ()
    if isinstance(bodies[0], Reduce):
        reduce_axes = tuple(IterVar(v, extent, "reduce", v.name.rsplit(".", 1)[0]) for v, extent in bodies[0].axes)
    _check_axes(bodies, (*axis, *reduce_axes), name, line)
    op = ComputeOp(name, axis, reduce_axes, bodies, extents, line, intrinsic, lanes)
    labels = [name] if len(bodies) == 1 else [f"{name}_{k}" for k in range(len(bodies))]
    tensors = tuple(
        Tensor(label, body.dtype, extents, op, k, lanes=lanes)
        for k, (label, body) in enumerate(zip(labels, bodies, strict=True))
    )
    return tensors if several else tensors[0]


def new_axis(label: str, extent: Expr, kind: IterKind = "spatial") -> IterVar:
    """A new axis called `label`, different from all other axes of this name."""
    return IterVar(Var(f"{label}.{next(_counter)}", axis=True), extent, kind, label)


def _check_extents(axis: Sequence[IterVar], extents: Sequence[Expr], name: str, line: str | None) -> None:
    """Raise ExpressionError, about the stage `name` and the user's `line`, unless the axes of an intrinsic, or lanes,
    have the last extents of the stage."""
    if len(axis) != len(extents) or not all(prove_equal(a.extent, d) for a, d in zip(axis, extents, strict=True)):
        got = f"[{', '.join(readable(a.extent) for a in axis)}]"
        wanted = f"[{', '.join(map(readable, extents))}]"
        raise ExpressionError(f"{name}: the stage has another shape", where=line, expected=wanted, got=got)


def _line_of(f: Callable[..., Any]) -> str | None:
    """The file and line where the function `f` was written, as text; None if it is not known."""
    code = getattr(f, "__code__", None)
    return user_line() if code is None else file_line(code.co_filename, code.co_firstlineno)


def _reductions_of(bodies: tuple[Expr, ...], axis: Sequence[IterVar], name: str, line: str | None) -> tuple[Expr, ...]:
    """The bodies of the stage `name`, with reduction axes whose extents depend on the stage's axes replaced by longer
    ones under a condition (`_box`). Raises ExpressionError, with the user's `line`, if a reduction is only a part of a
    body, or if the bodies are not of one reduction."""
    reductions = [b for b in bodies if isinstance(b, Reduce)]
    for body in bodies:
        if any(isinstance(node, Reduce) for e in body.children for node in walk_expr(e)):
            raise ExpressionError(
                f"{name}: a reduction must be the whole body of a stage; give it a stage of its own", where=line
            )
    if not reductions:
        return bodies
    if len(reductions) != len(bodies) or len({_reduction_identity(r) for r in reductions}) != 1:
        raise ExpressionError(
            f"{name}: the outputs of a reduction stage must be the parts of one reduction", where=line
        )
    axes, condition = _box(reductions[0], axis, name, line)
    return tuple(Reduce(r.reducer, r.values, axes, condition, r.index) for r in reductions)


def _box(r: Reduce, axis: Sequence[IterVar], name: str, line: str | None) -> tuple[tuple[tuple[Var, Expr], ...], Expr]:
    """(the axes of the reduction `r` with extents that depend on no axis of the stage, the condition that restricts
    them to the original extents). Raises ExpressionError, about the stage `name` and the user's `line`, if an extent
    has no such bound.

    sum of A[i, k] over k in 0..i + 1, i in 0..n becomes sum over k in 0..n where k < i + 1
    """
    ranges = {a.var: a.extent for a in axis}
    axes: list[tuple[Var, Expr]] = []
    condition = r.condition
    for v, extent in r.axes:
        size = extent
        if loads(extent) or any(other.axis for other in variables(extent)):
            result = None if loads(extent) else symbolic_bounds(extent, ranges)
            if result is None or any(other.axis for other in variables(result[1])):
                label = v.name.rsplit(".", 1)[0]
                raise ExpressionError(
                    f"{name}: the extent {readable(extent)} of reduction axis {label!r} has no bound that the shape "
                    "of the stage gives",
                    where=line,
                    hint=f"te.reduce_axis(bound) with te.sum(..., where={label} < {readable(extent)})",
                )
            number = as_int(result[1])
            size = result[1] if number is None or number >= 0 else ZERO
            condition = (v < extent) & condition
        ranges[v] = size
        axes.append((v, size))
    return tuple(axes), condition


def formula(body: Expr) -> tuple[Expr, ...]:
    """The expressions of a reduction's combination and identity, which may read scalars, axes and tensors as a body
    may; an empty tuple for other bodies."""
    return (*body.reducer.result, *body.reducer.identity) if isinstance(body, Reduce) else ()


def _check_axes(bodies: Sequence[Expr], axes: Sequence[IterVar], name: str, line: str | None) -> None:
    """Raise ExpressionError, about the stage `name` and the user's `line`, unless all axes in the bodies are among
    `axes`, the stage's own."""
    own = {a.var for a in axes}
    parts = [p for body in bodies for p in (*(body.children if isinstance(body, Reduce) else (body,)), *formula(body))]
    for v in dict.fromkeys(v for part in parts for v in variables(part)):
        if v.axis and v not in own:
            label = v.name.rsplit(".", 1)[0]
            raise ExpressionError(
                f"{name}: {label!r} is no axis of this stage and is not reduced over",
                where=line,
                expected=f"axes {', '.join(repr(a.name) for a in axes)}",
                hint=f"te.sum(..., axis={label}) reduces over a te.reduce_axis",
            )
    reduced = {a.var for a in axes if a.kind == "reduce"}
    starts = [e for body in bodies if isinstance(body, Reduce) for e in body.reducer.identity]
    for v in dict.fromkeys(v for e in starts for v in variables(e) if v in reduced):
        label = v.name.rsplit(".", 1)[0]
        raise ExpressionError(f"{name}: the identity of a reduction reads {label!r}, which it reduces over", where=line)


def _reduction_identity(r: Reduce) -> tuple[Any, ...]:
    return (r.reducer, r.values, r.axes, r.condition)


def _axis_names(f: Callable[..., Any], rank: int, name: str) -> list[str]:
    # What has a default is no axis: `lambda i, t=tensors[-1]: t[i]` keeps the tensor that the name has now.
    parameters = [p for p in inspect.signature(f).parameters.values() if p.default is p.empty]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return [f"i{k}" for k in range(rank)]
    if len(parameters) > rank:
        what = f"{name}: the stage has {rank} dimensions, its function takes {len(parameters)} arguments"
        raise ExpressionError(what, where=_line_of(f))
    return [p.name for p in parameters]


def labelled(element: Any, names: Sequence[str]) -> Any:
    """`element` as a function whose parameters have these names, which become the names of loops."""

    def renamed(*point: Expr) -> Any:
        return element(*point)

    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names]
    renamed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return renamed


def or_identity(body: Any) -> Any:
    """`body`, but the identity in place of a reduction over no elements: no step would run that could start it."""
    if isinstance(body, Reduce) and any(is_const(extent, 0) for _, extent in body.axes):
        return body.reducer.identity[body.index]
    return body
