"""Recurrences: a tensor whose rows are computed one after another, each from earlier ones.

    state = te.placeholder((n, m), name="state")
    first = te.compute((1, m), lambda _, i: x[0, i])
    next = te.compute((n, m), lambda t, i: state[t - 1, i] + x[t, i])
    sums = te.scan(first, next, state)

`first` gives the first rows, `next` the others; what stands between them and `state` is computed in the same step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.arith import prove, prove_equal, simplify
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Load, as_int
from tilewright.ir.op_types import readable
from tilewright.ir.rewrite import walk_expr
from tilewright.support.classes import dataclass
from tilewright.support.errors import ExpressionError, user_line
from tilewright.te.tensors import ComputeOp, IterVar, Tensor


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScanOp:
    """One recurrence. `steps` are the stages of one step, producers first, the updates among them; `start` is the
    number of rows that the inits give."""

    name: str
    shape: tuple[Expr, ...]
    inits: tuple[Tensor, ...]
    updates: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    steps: tuple[ComputeOp, ...]
    start: int
    line: str | None = None

    def __str__(self) -> str:
        """The recurrence as text: the rows that it starts from, and the stages of one step."""
        inits = ", ".join(t.name for t in self.inits)
        rows = f"{self.name}: rows 0..{self.start} are {inits}; each further one:"
        return "\n    ".join((rows, *(line for op in self.steps for line in str(op).splitlines())))

    __repr__ = __str__

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that the steps read and do not compute, and the inits."""
        inner = {*self.states, *(t for op in self.steps for t in op.inputs if t.op in self.steps)}
        return tuple(dict.fromkeys((*self.inits, *(t for op in self.steps for t in op.inputs if t not in inner))))

    @property
    def axis(self) -> tuple[IterVar, ...]:
        """The axes of the first update; the recurrence runs along the first."""
        return _stage(self.updates[0]).axis

    @property
    def reduce_axis(self) -> tuple[IterVar, ...]:
        return ()

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return tuple(t.dtype for t in self.states)


def scan(init: Any, update: Any, state: Any, name: str = "scan") -> Any:
    """A tensor, called `name`, whose rows are computed one after another, each from earlier ones: the first rows are
    the rows of `init`, the others the rows of `update`, which reads earlier rows of the placeholder `state`. For
    several states each of the three is a sequence of tensors, one for each state; then the result is a tuple.

    Raises ExpressionError where a step reads what no earlier step has made.
    """
    line = user_line()
    several = isinstance(state, list | tuple)
    inits, updates, states = (_tensors(x, name, line) for x in (init, update, state))
    if not len(inits) == len(updates) == len(states):
        got = f"{len(inits)}, {len(updates)} and {len(states)}"
        raise ExpressionError(f"{name}: as many inits and updates as states", got=got, where=line)
    for parts in zip(inits, updates, states, strict=True):
        _check_kinds(name, line, *parts)
    starts = {as_int(t.shape[0]) for t in inits}
    start = starts.pop() if len(starts) == 1 else None
    if not start:
        raise ExpressionError(f"{name}: the inits give one number of rows", expected="1 or more", where=line)
    steps = _steps(updates, states)
    op = ScanOp(name, states[0].shape, inits, updates, states, steps, start, line)
    _check_steps(op)
    labels = [name] if len(states) == 1 else [f"{name}_{k}" for k in range(len(states))]
    results = tuple(
        Tensor(label, t.dtype, t.shape, op, k, lanes=t.lanes)
        for k, (label, t) in enumerate(zip(labels, states, strict=True))
    )
    return results if several else results[0]


def _tensors(value: Any, name: str, line: str | None) -> tuple[Tensor, ...]:
    tensors = tuple(value) if isinstance(value, list | tuple) else (value,)
    for t in tensors:
        if not isinstance(t, Tensor):
            raise ExpressionError(f"{name}: not a tensor", got=type(t).__name__, where=line)
    return tensors


def _stage(t: Tensor) -> ComputeOp:
    assert isinstance(t.op, ComputeOp)
    return t.op


def _check_kinds(name: str, line: str | None, init: Tensor, update: Tensor, state: Tensor) -> None:
    """Raise ExpressionError, about the scan `name` and the user's `line`, unless `init` and `update` were made by
    te.compute and `state` by te.placeholder, all of one type and with shapes that fit."""
    if not isinstance(init.op, ComputeOp) or not isinstance(update.op, ComputeOp):
        raise ExpressionError(f"{name}: init and update are stages", expected="what te.compute gave", where=line)
    if state.op is not None or state.strides is not None:
        raise ExpressionError(f"{name}: the state is no stage", expected="what te.placeholder gave", where=line)
    if len(state.shape) < 1 or init.dtype is not state.dtype or update.dtype is not state.dtype:
        types = f"{init.dtype}, {update.dtype} and {state.dtype}"
        raise ExpressionError(f"{name}: init, update and state of one type, with a dimension", got=types, where=line)
    same = len(update.shape) == len(state.shape) == len(init.shape) and all(
        prove_equal(a, b)
        for a, b in zip((*init.shape[1:], *update.shape), (*state.shape[1:], *state.shape), strict=True)
    )
    if not same or not prove(init.shape[0] <= state.shape[0]):
        shapes = " and ".join(f"({', '.join(map(readable, t.shape))})" for t in (init, update, state))
        raise ExpressionError(f"{name}: the shapes of init, update and state", got=shapes, where=line)


def _steps(updates: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[ComputeOp, ...]:
    """The stages of one step: those through which the updates depend on the states, producers first."""
    reads: dict[ComputeOp, bool] = {}
    order: list[ComputeOp] = []

    def visit(op: ComputeOp) -> bool:
        if op not in reads:
            for t in op.inputs:
                if t.op is not None and not isinstance(t.op, ComputeOp) and _reads_any(t, states):
                    what = f"{t.name!r} is computed whole, not in steps, so it cannot stand between two of them"
                    raise ExpressionError(what, where=op.line)
            reads[op] = False
            inner = [visit(t.op) for t in op.inputs if isinstance(t.op, ComputeOp)]
            reads[op] = any(inner) or any(t in states for t in op.inputs)
            if reads[op] or any(t.op is op for t in updates):
                order.append(op)
        return reads[op] or any(t.op is op for t in updates)

    for t in updates:
        visit(_stage(t))
    return tuple(order)


def _reads_any(t: Tensor, states: Sequence[Tensor]) -> bool:
    """Whether a tensor is computed from one of the states."""
    return t in states or (t.op is not None and any(_reads_any(x, states) for x in t.op.inputs))


def _check_steps(op: ScanOp) -> None:
    """Raise ExpressionError unless every stage of a step has the recurrence axis first, and reads states of earlier
    steps and other stages of its own step."""
    for stage in op.steps:
        if not stage.axis or not prove_equal(stage.shape[0], op.shape[0]):
            got = readable(stage.shape[0]) if stage.shape else "no dimension"
            raise ExpressionError(
                f"{op.name}: the first dimension of {stage.name!r}",
                expected=readable(op.shape[0]),
                got=got,
                where=stage.line,
            )
        now = stage.axis[0].var
        for load in _loads(stage):
            tensor = load.buffer
            assert isinstance(tensor, Tensor)
            back = as_int(simplify(now - load.indices[0])) if load.indices else None
            if tensor in op.states and not (back is not None and 1 <= back <= op.start):
                raise ExpressionError(
                    f"{op.name}: {readable(load)} is no row that an earlier step made",
                    expected=f"an index {readable(now)} - 1 to {readable(now)} - {op.start}",
                    where=stage.line,
                )
            if tensor.op in op.steps and back != 0:
                raise ExpressionError(
                    f"{op.name}: {readable(load)} is computed in another step; only the state is kept",
                    expected=f"the index {readable(now)}",
                    where=stage.line,
                )


def _loads(stage: ComputeOp) -> Iterator[Load]:
    for body in stage.bodies:
        for node in walk_expr(body):
            if isinstance(node, Load) and isinstance(node.buffer, Tensor):
                yield node
