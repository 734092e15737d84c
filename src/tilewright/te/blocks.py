"""From stages to a function of blocks: a stage becomes one block, its axes the loops around it.

Names of tensors and axes need not be unique; here they become so, deterministically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir.expr import Buffer, Expr, Load, Reduce, Var, is_const
from tilewright.ir.loops import Block, BlockIter, For, If, Let, PrimFunc, Stmt, Store, seq
from tilewright.ir.notes import Origin
from tilewright.ir.rewrite import fresh_name, map_expr, map_stmt, substitute, walk_expr
from tilewright.schedule.stages import AxisPlace, StageSchedule
from tilewright.te.tensors import ComputeOp, Tensor


@dataclass(frozen=True, slots=True)
class Lowered:
    """A function with, for schedules over tensors, which loop each axis and which block each stage became."""

    func: PrimFunc
    loops: dict[Var, str]
    blocks: dict[ComputeOp, str]


def create_prim_func(
    args: Sequence[Tensor], name: str = "main", origins: Mapping[ComputeOp, Origin] | None = None
) -> PrimFunc:
    """The unscheduled function over `args` (inputs and outputs, in calling order); other stages are intermediates.
    `origins` says of which operators stages come."""
    lowered = lower_stages(args, name)
    if not origins:
        return lowered.func
    notes = {lowered.blocks[op]: (origin,) for op, origin in origins.items() if op in lowered.blocks}

    def on(s: Stmt) -> Stmt | None:
        return replace(s, notes=notes.get(s.name, ())) if isinstance(s, Block) else None

    return lowered.func.with_body(map_stmt(lowered.func.body, on))


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
    return replace(func, name=name, params=tuple(buffers[n] for n in names), buffers=inner)


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
