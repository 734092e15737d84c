"""Tensor expressions: say what to compute; schedules say how.

    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.placeholder((n,), name="B")
    C = te.compute((n,), lambda i: A[i] + B[i], name="C")
    func = te.create_prim_func([A, B, C])

A stage becomes one block: its axes the loops around it, its reduction axes inner loops. Names need not be unique here;
`create_prim_func` makes them so, deterministically.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType, dtype, f32, i64
from tilewright.ir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Reduce,
    Reducer,
    Var,
    all_of,
    as_expr,
    call,
    cast,
    const,
    equal,
    is_const,
    lookup,
    maximum,
    minimum,
    select,
)
from tilewright.ir.loops import Block, BlockIter, For, If, IterKind, Let, PrimFunc, Stmt, Store, seq
from tilewright.ir.rewrite import fresh_name, map_expr, substitute, walk_expr
from tilewright.schedule.stages import AxisPlace, StageSchedule

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
    return as_expr(_plain(x))


def _plain(x: Any) -> Any:
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
        return Load(self, tuple(as_expr(_plain(i)) for i in indices))  # type: ignore[arg-type]

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
            position = position * extent + as_expr(_plain(index))
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
    bodies = tuple(as_expr(_plain(b)) for b in (result if several else (result,)))
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


def comm_reducer(
    fcombine: Callable[..., Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Callable[..., Any]:
    """A user-defined reducer: `fcombine(a, b)` on values or tuples of values, `fidentity(dtype, ...)`.

    Returns a function `(expr or tuple, axis, where=None)` usable as a stage's body.
    """

    def reducer(expr: Any, axis: Any, where: Any = None) -> Any:
        several = isinstance(expr, tuple)
        values = tuple(as_expr(_plain(e)) for e in (expr if several else (expr,)))
        axes = tuple(axis) if isinstance(axis, list | tuple) else (axis,)
        lhs = tuple(Var(f"lhs{k}", v.dtype) for k, v in enumerate(values))
        rhs = tuple(Var(f"rhs{k}", v.dtype) for k, v in enumerate(values))
        if several:
            result = tuple(fcombine(lhs, rhs))
            identity = tuple(fidentity(*(v.dtype for v in values)))
        else:
            result, identity = (fcombine(lhs[0], rhs[0]),), (fidentity(values[0].dtype),)
        typed = tuple(as_expr(r, v.dtype) for r, v in zip(result, values, strict=True))
        start = tuple(as_expr(r, v.dtype) for r, v in zip(identity, values, strict=True))
        combination = Reducer(name, lhs, rhs, typed, start)
        bound = tuple((a.var, a.extent) for a in axes)
        condition = const(True) if where is None else as_expr(where)
        parts = tuple(Reduce(combination, values, bound, condition, k) for k in range(len(values)))
        return parts if several else parts[0]

    return reducer


sum = comm_reducer(lambda a, b: a + b, lambda t: const(0, t), "sum")
prod = comm_reducer(lambda a, b: a * b, lambda t: const(1, t), "prod")
max = comm_reducer(maximum, lambda t: const(t.min, t), "max")
min = comm_reducer(minimum, lambda t: const(t.max, t), "min")


def if_then_else(condition: Any, then: Any, orelse: Any) -> Expr:
    """`then` where `condition` holds, else `orelse`; what the other branch would load is never touched."""
    return select(_plain(condition), _plain(then), _plain(orelse))


def _unary(name: str) -> Callable[[Any], Expr]:
    def apply(x: Any) -> Expr:
        return call(name, as_expr(_plain(x)))

    apply.__name__ = name
    apply.__doc__ = f"`{name}` of an element."
    return apply


exp, exp2, expm1, log, log2, log1p = map(_unary, ("exp", "exp2", "expm1", "log", "log2", "log1p"))
sqrt, rsqrt, erf, sigmoid, tanh = map(_unary, ("sqrt", "rsqrt", "erf", "sigmoid", "tanh"))
sin, cos, tan, floor, ceil, trunc, round = map(_unary, ("sin", "cos", "tan", "floor", "ceil", "trunc", "round"))
abs = _unary("abs")


def power(a: Any, b: Any) -> Expr:
    return call("pow", _plain(a), _plain(b))


@dataclass(frozen=True, slots=True)
class Lowered:
    """A function with, for schedules over tensors, which loop each axis and which block each stage became."""

    func: PrimFunc
    loops: dict[Var, str]
    blocks: dict[ComputeOp, str]


def create_prim_func(args: Sequence[Tensor], name: str = "main") -> PrimFunc:
    """The unscheduled function over `args` (inputs and outputs, in calling order); other stages are intermediates."""
    return lower_stages(args, name).func


def stages_of(outputs: Iterable[Tensor]) -> list[ComputeOp]:
    """The stages that `outputs` need, producers first."""
    order: list[ComputeOp] = []
    done: set[ComputeOp] = set()
    stack: list[tuple[ComputeOp, bool]] = [(t.op, False) for t in reversed(list(outputs)) if t.op is not None]
    while stack:
        op, ready = stack.pop()
        if op in done:
            continue
        if ready:
            done.add(op)
            order.append(op)
            continue
        stack.append((op, True))
        stack.extend((t.op, False) for t in reversed(op.inputs) if t.op is not None and t.op not in done)
    return order


def lower_stages(args: Sequence[Tensor], name: str = "main") -> Lowered:
    """`create_prim_func`, with the names that axes and stages received. Raises ValueError on a missing input."""
    stages = stages_of(args)
    given = {(t.op, t.index) if t.op is not None else t for t in args}
    missing = [t.name for op in stages for t in op.inputs if t.op is None and t not in given]
    if missing:
        raise ValueError(f"{name}: tensors read but not among the arguments: {', '.join(dict.fromkeys(missing))}")
    taken: set[str] = {v.name for t in args for d in t.shape for v in walk_expr(d) if isinstance(v, Var)}
    buffers: dict[Any, Buffer] = {}
    params: list[Buffer] = []
    for tensor in args:
        token = _token(tensor)
        buffers[token] = Buffer(fresh_name(tensor.name, taken), tensor.dtype, tensor.shape)
        params.append(buffers[token])
    intermediates: list[Buffer] = []
    for op in stages:
        for k, body in enumerate(op.bodies):
            if (op, k) not in buffers:
                label = op.name if len(op.bodies) == 1 else f"{op.name}_{k}"
                buffers[op, k] = Buffer(fresh_name(label, taken), body.dtype, op.shape)
                intermediates.append(buffers[op, k])
    loops: dict[Var, str] = {}
    blocks: dict[ComputeOp, str] = {}
    nests = [_stage_nest(op, buffers, taken, loops, blocks) for op in stages]
    func = PrimFunc(name, tuple(params), seq(nests), tuple(intermediates))
    return Lowered(func, loops, blocks)


def create_schedule(outputs: Tensor | Sequence[Tensor]) -> StageSchedule:
    """A schedule for the stages that `outputs` need: see `tilewright.schedule.stages`.

    Its function takes the inputs by first appearance, then the outputs; `lower` puts them in another order.
    """
    results = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    stages = stages_of(results)
    inputs = dict.fromkeys(t for op in stages for t in op.inputs if t.op is None)
    lowered = lower_stages([*inputs, *results])
    axes = {
        axis.var: AxisPlace(lowered.blocks[op], k, lowered.loops[axis.var])
        for op in stages
        for k, axis in enumerate((*op.axis, *op.reduce_axis))
    }
    buffers = {t: b.name for t, b in zip((*inputs, *results), lowered.func.params, strict=True)}
    computed = {
        t: lowered.blocks[t.op] for op in stages for t in op.inputs if t.op is not None and len(t.op.bodies) == 1
    }
    return StageSchedule(lowered.func, lowered.blocks, axes, computed | buffers)


def lower(schedule: StageSchedule, args: Sequence[Tensor], name: str = "main") -> PrimFunc:
    """The scheduled function over `args`, in calling order. A stage among them that was an intermediate becomes an
    output. Raises ValueError if an input or output is missing, or a stage was dissolved by inlining."""
    func = schedule.func
    buffers = {b.name: b for b in (*func.params, *func.buffers)}
    names = [schedule.buffer_name(t) for t in args]
    missing = [b.name for b in func.params if b.name not in names]
    if missing:
        raise ValueError(f"{name}: not among the arguments: {', '.join(missing)}")
    unknown = [n for n in names if n not in buffers or buffers[n].scope != "global"]
    if unknown:
        raise ValueError(f"{name}: neither inputs nor global results of this schedule: {', '.join(unknown)}")
    inner = tuple(b for b in func.buffers if b.name not in names)
    return PrimFunc(name, tuple(buffers[n] for n in names), func.body, inner, func.attrs)


def _token(tensor: Tensor) -> Any:
    return tensor if tensor.op is None else (tensor.op, tensor.index)


def _stage_nest(
    op: ComputeOp,
    buffers: dict[Any, Buffer],
    taken: set[str],
    loops: dict[Var, str],
    blocks: dict[ComputeOp, str],
) -> Stmt:
    """The loops and the block of one stage."""
    outputs = [buffers[op, k] for k in range(len(op.bodies))]
    first = outputs[0].name
    # A block may carry its buffer's name: blocks and buffers are told apart by where they stand.
    block_name = blocks[op] = first if len(outputs) == 1 else fresh_name(op.name, taken)
    iters: list[BlockIter] = []
    renamed: dict[Var, Expr] = {}
    nest: list[tuple[Var, Expr]] = []
    for axis in (*op.axis, *op.reduce_axis):
        loop = Var(fresh_name(axis.name, taken))
        inner = Var(fresh_name("v" + axis.name, taken))
        loops[axis.var] = loop.name
        renamed[axis.var] = inner
        iters.append(BlockIter(inner, axis.extent, axis.kind, loop))
        nest.append((loop, axis.extent))

    def bind(e: Expr) -> Expr:
        def on(node: Expr) -> Expr | None:
            if isinstance(node, Load) and isinstance(node.buffer, Tensor):
                return Load(buffers[_token(node.buffer)], node.indices)
            return renamed.get(node) if isinstance(node, Var) else None

        return map_expr(e, on)

    point = tuple(it.var for it in iters[: len(op.axis)])
    init: Stmt | None = None
    if isinstance(op.bodies[0], Reduce):
        init, body = _reduction_body(op.bodies[0], outputs, point, bind, taken)
    else:
        body = seq(Store(b, point, bind(e)) for b, e in zip(outputs, op.bodies, strict=True))
    stmt: Stmt = Block(block_name, tuple(iters), body, init)
    for loop, extent in reversed(nest):
        stmt = For(loop, extent, stmt)
    return stmt


def _reduction_body(
    reduce: Reduce, outputs: list[Buffer], point: tuple[Var, ...], bind: Callable[[Expr], Expr], taken: set[str]
) -> tuple[Stmt, Stmt]:
    """`init` and the update. Several values are combined in lets first, so that no store sees another's result."""
    reducer = reduce.reducer
    values = [bind(v) for v in reduce.values]
    init = seq(Store(b, point, e) for b, e in zip(outputs, reducer.identity, strict=True))
    if len(values) == 1:
        current: dict[Var, Expr] = {reducer.lhs[0]: Load(outputs[0], point), reducer.rhs[0]: values[0]}
        body: Stmt = Store(outputs[0], point, substitute(reducer.result[0], current))
    else:
        names = [Var(fresh_name(f"{b.name}_next", taken), b.dtype) for b in outputs]
        mapping: dict[Var, Expr] = {v: Load(b, point) for v, b in zip(reducer.lhs, outputs, strict=True)}
        mapping |= dict(zip(reducer.rhs, values, strict=True))
        body = seq(Store(b, point, v) for b, v in zip(outputs, names, strict=True))
        for name, result in reversed(list(zip(names, reducer.result, strict=True))):
            body = Let(name, substitute(result, mapping), body)
    condition = bind(reduce.condition)
    return init, body if is_const(condition, True) else If(condition, body)


def _dtype(x: DType | str) -> DType:
    return dtype(x)


__all__ = [
    "Buffer",
    "Const",
    "ConstMatrix",
    "IterVar",
    "Tensor",
    "all_of",
    "cast",
    "comm_reducer",
    "compute",
    "const",
    "const_matrix",
    "create_prim_func",
    "create_schedule",
    "equal",
    "if_then_else",
    "lower",
    "placeholder",
    "reduce_axis",
    "var",
]
