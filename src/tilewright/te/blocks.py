"""From stages to a function of blocks: a stage becomes one block, its axes the loops around it.

Names of tensors and axes need not be unique; here they become so, deterministically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from tilewright.arith import simplify
from tilewright.ir.combine import combine
from tilewright.ir.expr import Buffer, Expr, Load, Var, const, is_const
from tilewright.ir.loops import Block, BlockIter, For, If, Intrinsic, PrimFunc, Region, Stmt, Store, seq
from tilewright.ir.notes import InOrder, Origin
from tilewright.ir.reduce import Reduce
from tilewright.ir.rewrite import fresh_name, map_expr, map_stmt, variables
from tilewright.schedule.intrinsics import find_intrinsic
from tilewright.schedule.stages import AxisPlace, StageSchedule
from tilewright.schedule.state import used_names_of
from tilewright.support.classes import dataclass
from tilewright.support.errors import ExpressionError
from tilewright.te.bounds import check_reads
from tilewright.te.externs import ExternOp
from tilewright.te.memory import memory_index, memory_shape, place_results
from tilewright.te.scans import ScanOp
from tilewright.te.tensors import ComputeOp, Tensor, formula

Stage = ComputeOp | ScanOp | ExternOp


@dataclass(frozen=True, slots=True)
class Lowered:
    """A function made of stages, with the block that each stage became and the loop that each axis became, for
    schedules over tensors."""

    func: PrimFunc
    loops: dict[Var, str]
    blocks: dict[Stage, str]


def create_prim_func(
    args: Sequence[Tensor], name: str = "main", origins: Mapping[ComputeOp, Origin] | None = None
) -> PrimFunc:
    """The unscheduled function `name` over `args` (inputs and outputs, in calling order); other stages are
    intermediates. `origins` says of which operators stages come."""
    lowered = lower_stages(args, name)
    if not origins:
        return lowered.func
    notes = {lowered.blocks[op]: (origin,) for op, origin in origins.items() if op in lowered.blocks}

    def on(s: Stmt) -> Stmt | None:
        return replace(s, notes=notes.get(s.name, ())) if isinstance(s, Block) else None

    return lowered.func.with_body(map_stmt(lowered.func.body, on))


def stages_of(outputs: Iterable[Tensor]) -> list[Stage]:
    """The stages that `outputs` need, producers first; the steps of a recurrence are not among them."""
    order: list[Stage] = []
    done: set[Stage] = set()
    stack: list[tuple[Stage, bool]] = [(t.op, False) for t in reversed(list(outputs)) if t.op is not None]
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


Arg = Tensor | Var
"""An argument of a function: a tensor, or a scalar (`te.var`), which becomes a buffer without dimensions."""


def lower_stages(args: Sequence[Arg], name: str = "main") -> Lowered:
    """`create_prim_func`, with the names that axes and stages received. Raises ExpressionError on a missing input."""
    stages = stages_of(t for t in args if isinstance(t, Tensor))
    arguments = {_token(t) for t in args}
    missing = [t.name for op in stages for t in op.inputs if t.op is None and t not in arguments]
    if missing:
        raise ExpressionError(f"{name}: tensors read but not among the arguments: {', '.join(dict.fromkeys(missing))}")
    symbols = {v for t in args if isinstance(t, Tensor) for d in memory_shape(t) for v in variables(d)}
    _check_symbols(stages, symbols | set(args), name)
    used_names: set[str] = {v.name for v in symbols}
    buffers: dict[Any, Buffer] = {}
    params: list[Buffer] = []
    for arg in args:
        if isinstance(arg, Var) and arg in symbols:
            raise ExpressionError(f"{name}: {arg.name!r} is a dimension, which is read off the arrays: no argument")
        token = _token(arg)
        buffers[token] = Buffer(fresh_name(arg.name, used_names), arg.dtype, _buffer_shape(arg))
        params.append(buffers[token])
    intermediates: list[Buffer] = []

    def allocate(op: Stage) -> None:
        for k, kind in enumerate(op.dtypes):
            if (op, k) not in buffers:
                label = op.name if len(op.dtypes) == 1 else f"{op.name}_{k}"
                shape = _shape(op, k)
                buffers[op, k] = Buffer(fresh_name(label, used_names), kind, shape)
                intermediates.append(buffers[op, k])

    for op in stages:
        if isinstance(op, ScanOp):
            allocate(op)
            _share(op, buffers, name)
    for op in all_stages(stages):
        allocate(op)
    loops: dict[Var, str] = {}
    blocks: dict[Stage, str] = {}
    nests = [_nest(op, buffers, used_names, loops, blocks) for op in stages]
    func = PrimFunc(name, tuple(params), seq(nests), tuple(intermediates))
    return Lowered(func, loops, blocks)


def _shape(op: Stage, k: int) -> tuple[Expr, ...]:
    """The shape of output `k` of a stage."""
    match op:
        case ScanOp():
            return op.states[k].shape
        case ExternOp():
            return op.shapes[k]
    return op.shape


def _nest(
    op: Stage, buffers: dict[Any, Buffer], used_names: set[str], loops: dict[Var, str], blocks: dict[Stage, str]
) -> Stmt:
    match op:
        case ScanOp():
            return _scan_nest(op, buffers, used_names, loops, blocks)
        case ExternOp():
            return _call(op, buffers, used_names, blocks)
    return _stage_nest(op, buffers, used_names, loops, blocks)


def _call(op: ExternOp, buffers: dict[Any, Buffer], used_names: set[str], blocks: dict[Stage, str]) -> Stmt:
    """The block that passes all arrays of the stage `op` to its external function. New names are added to `used_names`,
    the block's to `blocks`."""
    outputs = [buffers[op, k] for k in range(len(op.dtypes))]
    blocks[op] = outputs[0].name if len(outputs) == 1 else fresh_name(op.name, used_names)
    inputs = [buffers[_token(t)] for t in op.inputs]
    whole = [Region(b, tuple((const(0), n) for n in b.shape)) for b in (*outputs, *inputs)]
    call = Intrinsic(op.external.name, tuple(whole[: len(outputs)]), tuple(whole[len(outputs) :]))
    return Block(blocks[op], (), call)


def all_stages(stages: Iterable[Stage]) -> Iterator[ComputeOp | ExternOp]:
    """Yield the stages, where those of a recurrence's step stand for the recurrence."""
    for op in stages:
        yield from op.steps if isinstance(op, ScanOp) else (op,)


def _share(op: ScanOp, buffers: dict[Any, Buffer], name: str) -> None:
    """Make the buffers of the inits, updates and states of the recurrence `op` equal to the buffers of its results,
    whose rows they are. Raises ExpressionError, whose text begins with `name`, if one of them has a buffer already."""
    for k, (init, update, state) in enumerate(zip(op.inits, op.updates, op.states, strict=True)):
        for t in (init, update, state):
            if _token(t) in buffers:
                what = f"{t.name!r} is a part of recurrence {op.name!r} and stands for its rows"
                raise ExpressionError(
                    f"{name}: {what}", expected="neither an argument nor of two of them", where=op.line
                )
            buffers[_token(t)] = buffers[op, k]


def _scan_nest(
    op: ScanOp, buffers: dict[Any, Buffer], used_names: set[str], loops: dict[Var, str], blocks: dict[Stage, str]
) -> Stmt:
    """The loop over the steps of the recurrence `op`, which contains the loops and blocks of the stages of one step.
    New names are added to `used_names`, `loops` and `blocks`."""
    extent = simplify(op.shape[0] - op.start)
    time = For(Var(fresh_name(op.axis[0].name, used_names)), extent, seq(()), notes=(InOrder(),))
    nests = [_stage_nest(step, buffers, used_names, loops, blocks, (time, op.start)) for step in op.steps]
    last = op.updates[0].op
    assert isinstance(last, ComputeOp)
    blocks[op] = blocks[last]
    return replace(time, body=seq(nests))


def _check_symbols(stages: Sequence[Stage], known: Set[Any], name: str) -> None:
    """Raise ExpressionError, whose text begins with `name`, unless every symbol in the stages is in `known`: the
    arguments and their dimensions."""
    for op in all_stages(stages):
        unknown = [v for v in _symbols_of(op) if v not in known]
        if unknown:
            raise ExpressionError(
                f"{name}: {unknown[0].name!r}, which {op.name!r} uses, is no dimension of an argument and no argument",
                where=op.line,
            )


def _symbols_of(op: ComputeOp | ExternOp) -> tuple[Var, ...]:
    """The variables of a stage that are not axes."""
    exprs = (*op.bodies, *(a.extent for a in (*op.axis, *op.reduce_axis)))
    if isinstance(op, ExternOp):
        exprs = tuple(d for shape in op.shapes for d in shape)
    return tuple(dict.fromkeys(v for e in exprs for v in _free(e)))


def _free(e: Expr) -> tuple[Var, ...]:
    """The variables in `e` that are neither axes nor the operands of a reducer's formula."""
    own = {*e.reducer.lhs, *e.reducer.rhs} if isinstance(e, Reduce) else set()
    return tuple(v for part in (e, *formula(e)) for v in variables(part) if not v.axis and v not in own)


def create_schedule(outputs: Tensor | Sequence[Tensor]) -> StageSchedule:
    """A schedule for the stages that `outputs` need: see `tilewright.schedule.stages`. Raises ExpressionError for reads
    that are sure to be out of bounds.

    Its function takes the inputs by first appearance, then the outputs; `lower` puts them in another order.
    """
    results = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    stages = stages_of(results)
    check_reads(stages)
    inputs: list[Arg] = list(dict.fromkeys(t for op in stages for t in op.inputs if t.op is None))
    dims = {v for t in (*inputs, *results) if isinstance(t, Tensor) for d in memory_shape(t) for v in variables(d)}
    scalars = (v for op in all_stages(stages) for body in op.bodies for v in _free(body) if v not in dims)
    inputs += dict.fromkeys(scalars)
    lowered = lower_stages([*inputs, *results])
    axes = {
        axis.var: AxisPlace(lowered.blocks[op], k, lowered.loops[axis.var])
        for op in all_stages(stages)
        for k, axis in enumerate((*op.axis, *op.reduce_axis))
    }
    buffers = {t: b.name for t, b in zip((*inputs, *results), lowered.func.params, strict=True)}
    computed = {
        t: lowered.blocks[t.op]
        for op in all_stages(stages)
        for t in op.inputs
        if t.op is not None and len(t.op.dtypes) == 1
    }
    lines = {lowered.blocks[op]: op.line for op in all_stages(stages) if op.line is not None}
    schedule = StageSchedule(lowered.func, lowered.blocks, axes, computed | buffers, lines)
    for op in all_stages(stages):
        if isinstance(op, ComputeOp) and op.intrinsic is not None:
            _with_intrinsic(schedule, op, *op.intrinsic)
        if isinstance(op, ComputeOp) and op.lanes > 1 and not op.reduce_axis:
            schedule[op].vectorize(op.axis[-1])
    return schedule


def _with_intrinsic(schedule: StageSchedule, op: ComputeOp, intrinsic: str, first: int) -> None:
    """Tensorize a stage that calls an intrinsic on slices, inside the loops over the axes before number `first`, which
    are where the slices are."""
    stage, inner = schedule[op], op.axis[first:]
    own = len(find_intrinsic(intrinsic).loops) - len(inner)
    outer = op.reduce_axis[: len(op.reduce_axis) - own]
    if outer:
        stage.reorder(*outer, *inner)
    if op.reduce_axis and find_intrinsic(intrinsic).block.init is None:
        stage.decompose_reduction((*outer, *inner)[0])
    stage.tensorize(inner[0], intrinsic)


def lower(schedule: StageSchedule, args: Sequence[Arg], name: str = "main") -> PrimFunc:
    """The scheduled function over `args`, in calling order. A stage among them that was an intermediate becomes an
    output; inputs and scalars that nothing reads are parameters too. Raises ExpressionError if an input or output is
    missing, an argument stands twice, or a stage was dissolved by inlining."""
    func = schedule.func
    buffers = {b.name: b for b in (*func.params, *func.buffers)}
    names = [schedule.buffer_name(t) for t in _arguments(args, name)]
    used_names = used_names_of(func)
    for k, arg in enumerate(args):
        if isinstance(arg, Var) and arg in func.symbols:
            raise ExpressionError(f"{name}: {arg.name!r} is a dimension, which is read off the arrays: no argument")
        if not schedule.knows(arg) and (isinstance(arg, Var) or arg.op is None):
            names[k] = fresh_name(arg.name, used_names)
            buffers[names[k]] = Buffer(names[k], arg.dtype, _buffer_shape(arg))
    missing = [b.name for b in func.params if b.name not in names]
    if missing:
        raise ExpressionError(f"{name}: not among the arguments: {', '.join(missing)}")
    unknown = [n for n in names if n not in buffers or buffers[n].scope != "global"]
    if unknown:
        raise ExpressionError(f"{name}: neither inputs nor global results of this schedule: {', '.join(unknown)}")
    inner = tuple(b for b in func.buffers if b.name not in names)
    func = replace(func, name=name, params=tuple(buffers[n] for n in names), buffers=inner)
    return place_results(func, {n: t for n, t in zip(names, args, strict=True) if isinstance(t, Tensor)})


def _arguments(args: Sequence[Arg], name: str) -> Sequence[Arg]:
    """Return `args`. Raises ExpressionError unless they are different tensors and scalars."""
    for k, arg in enumerate(args):
        if not isinstance(arg, Tensor | Var):
            raise ExpressionError(f"{name}: argument {k}", expected="a tensor or a te.var", got=type(arg).__name__)
        if any(_is_same(arg, other) for other in args[:k]):
            raise ExpressionError(f"{name}: argument {arg.name!r} stands twice")
    return args


def _is_same(a: Arg, b: Arg) -> bool:
    """Whether two arguments are one tensor or scalar, whatever strides they have."""
    if a is b or isinstance(a, Var) or isinstance(b, Var) or a.op is None:
        return a is b
    return a.op is b.op and a.index == b.index


def _buffer_shape(arg: Arg) -> tuple[Expr, ...]:
    """The shape of an argument's buffer as stages see it: results get their strides only when they are scheduled
    (`place_results`)."""
    if isinstance(arg, Var):
        return ()
    return memory_shape(arg) if arg.op is None else arg.shape


def _token(arg: Arg) -> Any:
    return (arg.op, arg.index) if isinstance(arg, Tensor) and arg.op is not None else arg


def _stage_nest(
    op: ComputeOp,
    buffers: dict[Any, Buffer],
    used_names: set[str],
    loops: dict[Var, str],
    blocks: dict[Stage, str],
    time: tuple[For, int] | None = None,
) -> Stmt:
    """The loops and the block of the stage `op`; in a recurrence, those inside the loop `time` (loop, first row that it
    computes).

    A reduction over nothing is one step, of the identity: the step that starts it must run, however it is scheduled.
    """
    outputs = [buffers[op, k] for k in range(len(op.bodies))]
    first = outputs[0].name
    # A block may carry its buffer's name: blocks and buffers are distinguished by where they stand.
    shared = any(b is outputs[0] for t, b in buffers.items() if isinstance(t, tuple) and isinstance(t[0], ScanOp))
    block_name = blocks[op] = first if len(outputs) == 1 and not shared else fresh_name(op.name, used_names)
    iters: list[BlockIter] = []
    renamed: dict[Var, Expr] = {}
    nest: list[tuple[Var, Expr]] = []
    nothing = any(is_const(a.extent, 0) for a in op.reduce_axis)
    for axis in (*op.axis, *op.reduce_axis):
        if time is not None and axis is op.axis[0]:
            inner = Var(fresh_name("v" + axis.name, used_names))
            loops[axis.var], renamed[axis.var] = time[0].var.name, inner + time[1]
            iters.append(BlockIter(inner, time[0].extent, axis.kind, time[0].var))
            continue
        loop = Var(fresh_name(axis.name, used_names))
        inner = Var(fresh_name("v" + axis.name, used_names))
        loops[axis.var] = loop.name
        renamed[axis.var] = inner
        extent = const(1) if nothing and axis.kind == "reduce" else axis.extent
        iters.append(BlockIter(inner, extent, axis.kind, loop))
        nest.append((loop, extent))

    def bind(e: Expr) -> Expr:
        def on(node: Expr) -> Expr | None:
            if isinstance(node, Load) and isinstance(node.buffer, Tensor):
                indices = node.indices if time is None else tuple(map(simplify, node.indices))
                is_placeholder = node.buffer.op is None
                return Load(
                    buffers[_token(node.buffer)], memory_index(node.buffer, indices) if is_placeholder else indices
                )
            if isinstance(node, Var):
                return Load(buffers[node], ()) if node in buffers else renamed.get(node)
            return None

        return map_expr(e, on)

    point = tuple(renamed[a.var] for a in op.axis)
    init: Stmt | None = None
    if isinstance(op.bodies[0], Reduce):
        init, body = _reduction_body(op.bodies[0], outputs, point, bind, used_names, nothing)
    else:
        body = seq(Store(b, point, bind(e)) for b, e in zip(outputs, op.bodies, strict=True))
    stmt: Stmt = Block(block_name, tuple(iters), body, init)
    for loop, extent in reversed(nest):
        stmt = For(loop, extent, stmt)
    return stmt


def _reduction_body(
    reduce: Reduce,
    outputs: list[Buffer],
    point: tuple[Expr, ...],
    bind: Callable[[Expr], Expr],
    used_names: set[str],
    nothing: bool,
) -> tuple[Stmt, Stmt]:
    """The statements (init, update) of a reduction's block, which store to `outputs` at index `point`; `bind` replaces
    variables in its expressions. With `nothing`, the reduction is over no elements, and its update combines with the
    identity."""
    results, identity = (tuple(map(bind, es)) for es in (reduce.reducer.result, reduce.reducer.identity))
    reducer = replace(reduce.reducer, result=results, identity=identity)
    values = list(identity) if nothing else [bind(v) for v in reduce.values]
    init = seq(Store(b, point, e) for b, e in zip(outputs, identity, strict=True))
    body = combine(reducer, [Load(b, point) for b in outputs], values, used_names)
    condition = bind(reduce.condition)
    return init, body if nothing or is_const(condition, True) else If(condition, body)
