"""Control flow: `If`, `Loop` and `Scan`.

A condition that is known when compiling decides which branch is imported, and a loop of few iterations is unrolled: its
body is walked once for each, in a scope of its own. All others become operators with bodies (`ops/control.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.common.emitter import check_size
from tilewright.frontend.onnx.bodies import Bodies, Body
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.scope import Item, known_item
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import TensorType, Value
from tilewright.ops.control import NUMBER, TRUTH, CondAttrs, LoopAttrs
from tilewright.ops.dims import axis_of
from tilewright.ops.registry import emit
from tilewright.ops.rooms import add_room
from tilewright.runtime.specs import SHORT_ITERATIONS
from tilewright.support.errors import ModelError, UnsupportedError

MAX_ITERATIONS = 128
"""Iterations of a Loop or Scan up to which its body may be written out."""
MAX_WRITTEN = 1024
"""The most nodes that unrolling a loop may create before an operator `loop` is tried instead."""


def branch(bodies: Bodies) -> Sequence[Item | None]:
    """`If`: where the condition is known, only the branch that it selects is imported."""
    call = bodies.call
    condition = _truth(call.item(0))
    if condition is not None:
        return bodies.walk(_graph(call, "then_branch" if condition else "else_branch"), {}, "")

    def values(items: Sequence[Item]) -> list[Value]:
        return [call.materialize(item) for item in items]

    then = bodies.cut(_graph(call, "then_branch"), {}, "then/", values)
    orelse = bodies.cut(_graph(call, "else_branch"), {}, "else/", values)
    types = [[v.type for v in body.results] for body in (then, orelse)]
    if types[0] != types[1]:
        what = "If whose branches give other types is not supported, unless its condition is known"
        shown = [", ".join(map(str, ts)) for ts in types]
        raise UnsupportedError(what, expected=shown[0], got=shown[1])
    captured = list(dict.fromkeys((*then.captured, *orelse.captured)))
    attrs = CondAttrs(orelse=orelse.graph((), captured), then=then.graph((), captured))
    predicate = _scalar(call, 0, TRUTH)
    return _items(emit(call.builder, "cond", predicate, *captured, attrs=attrs, names=_names(call)))


def _graph(call: Call, name: str) -> onnx.GraphProto:
    graph = call.attr(name)
    if not isinstance(graph, onnx.GraphProto):
        raise ModelError(f"attribute {name} must be a graph")
    return graph


def _truth(item: Item | None) -> bool | None:
    if item is None or item.known is None or item.known.dtype == object or item.known.size != 1:
        return None
    return bool(item.known.reshape(-1)[0])


def _scalar(call: Call, i: int, t: TensorType) -> Value:
    """Input `i` reshaped to a scalar. Raises ModelError unless it has one element of `t`'s element type."""
    value = call.value(i)
    if as_int(value.type.size) != 1 or value.dtype is not t.dtype:
        raise ModelError(f"input {i} of {call.node.op_type} must have one element", expected=t, got=value.type)
    return call.reshape(value, ())


def _items(values: Sequence[Value]) -> list[Item]:
    return [Item(v.type, v) for v in values]


def _names(call: Call) -> list[str]:
    return [f"{call.hint}.{call.node.op_type.lower()}"] * max(call.outputs, len(call.node.output))


# --- loops ------------------------------------------------------------------------------------------------------------


def loop(bodies: Bodies) -> Sequence[Item | None]:
    """`Loop`, whose inputs are the trip count, the condition and carried values; returns the last carried values and
    the collected ones. The body computes the next condition, carried values and an element of each collected one."""
    call = bodies.call
    body = _graph(call, "body")
    items = [*call.items, *[None] * (2 - len(call.items))]
    carried = items[2:]
    if len(body.input) != 2 + len(carried) or len(body.output) < 1 + len(carried) or None in carried:
        raise ModelError("the body of Loop does not fit its inputs", expected=2 + len(carried), got=len(body.input))
    if items[0] is not None and as_int(items[0].type.size) != 1:
        raise ModelError("the trip count of Loop must have one element", got=items[0].type)
    count, alive = _count(items[0]), True if items[1] is None else _truth(items[1])
    short = alive is False or (isinstance(count, int) and count <= MAX_ITERATIONS and alive is not None)
    is_short = short and (alive is False or (isinstance(count, int) and count * len(body.node) <= MAX_WRITTEN))
    written: Callable[[], Sequence[Item | None]] = lambda: _written_loop(bodies, body, count, alive)  # noqa: E731
    retained: Callable[[], Sequence[Item | None]] = lambda: _retained_loop(bodies, body, count, alive)  # noqa: E731
    return _first(bodies, [written, retained] if is_short else [retained, written] if short else [retained])


def _first(bodies: Bodies, rules: Sequence[Callable[[], Sequence[Item | None]]]) -> Sequence[Item | None]:
    """The result of the first of `rules`, alternative ways to import the node of `bodies`, that supports it. Raises the
    error of the last one if none does."""
    for rule in rules[:-1]:
        result = bodies.attempt(rule)
        if result is not None:
            return result
    return rules[-1]()


def _count(item: Item | None) -> int | Expr | None:
    """The trip count `item` of a loop if it is known when compiling, at least 0: a number, or an expression of sizes;
    else None."""
    if item is None or item.known is None or item.known.size != 1:
        return None
    result = item.known.reshape(-1).tolist()[0]
    return result if isinstance(result, Expr) else max(int(result), 0)


def _written_loop(bodies: Bodies, body: onnx.GraphProto, count: Any, alive: bool | None) -> Sequence[Item | None]:
    call = bodies.call
    carried: list[Item | None] = list(call.items[2:])
    stacks: list[list[Item]] = [[] for _ in body.output[1 + len(carried) :]]
    step = 0
    while alive and (count is None or step < count):
        if step >= MAX_ITERATIONS:
            raise UnsupportedError("Loop with many iterations is not supported", expected=f"at most {MAX_ITERATIONS}")
        arguments = [known_item(np.asarray(step), i64), known_item(np.asarray(True), boolean), *carried]
        inputs = {info.name: item for info, item in zip(body.input, arguments, strict=True) if item is not None}
        results = bodies.walk(body, inputs, f"{step}/")
        alive = _truth(results[0])
        if alive is None:
            raise UnsupportedError("Loop with a condition that is computed from the data cannot be written out")
        carried = list(results[1 : 1 + len(carried)])
        for stack, item in zip(stacks, results[1 + len(carried) :], strict=True):
            stack.append(item)
        step += 1
    return [*carried, *(_stacked(call, stack, 0) for stack in stacks)]


def _retained_loop(bodies: Bodies, body: onnx.GraphProto, count: Any, alive: bool | None) -> Sequence[Item | None]:
    call = bodies.call
    initial = [call.value(2 + k) for k in range(len(call.items) - 2)]
    number = bodies.value("number", NUMBER)
    carried = [bodies.value(f"carried{k}", v.type) for k, v in enumerate(initial)]
    arguments = [number, known_item(np.asarray(True), boolean), *carried]
    inputs = {info.name: item for info, item in zip(body.input, arguments, strict=True)}
    conditions: list[bool | None] = []

    def finish(results: list[Item]) -> list[Value]:
        conditions.append(_truth(results[0]))
        condition = [] if conditions[0] is not None else [call.reshape(call.materialize(results[0]), ())]
        values = [call.materialize(item) for item in results[1:]]
        for k, v in enumerate(initial):
            values[k] = bodies.like(values[k], v.type, "Loop with a value")
        return [*condition, *values]

    cut = bodies.cut(body, inputs, "body/", finish)
    trip = 0 if alive is False else count
    if conditions[0] is False:
        trip = trip if isinstance(trip, int) and trip < 1 else 1  # it says after the first that it was the last
    condition = _scalar(call, 1, TRUTH) if alive is None else None
    steps = None if count is not None or not call.has(0) else _scalar(call, 0, NUMBER)
    collects = len(body.output) > 1 + len(initial)
    counted = collects and (condition is not None or conditions[0] is None)
    most, room = trip, None
    if counted and _is_open(trip, cut.results[len(cut.results) - len(body.output) + 1 + len(initial) :]):
        if not call.open_sizes:
            raise UnsupportedError("Loop that collects values inside of another needs a bound that memory can hold")
        call.decided.add(call.node.op_type)
        room = add_room(call.builder)
        trip = room.shape[0]
    elif collects and trip is None:
        if steps is None or not call.is_data(0):
            raise UnsupportedError("Loop that collects values needs a count that is known, or a bound of it")
        trip, steps = call.extent(call.emit("max", steps, call.constant(0, i64))), None
    values = [v for v in (item.value for item in (number, *carried)) if v is not None]
    attrs = LoopAttrs(
        body=cut.graph(values, cut.captured),
        carried=len(initial),
        trip=trip,
        conditional=conditions[0] is None,
        counted=counted,
    )
    results = _emit_loop(call, [steps, condition, *initial], cut, attrs)
    if not counted:
        return results
    limit = steps if not isinstance(most, int) else call.constant(most, i64)
    return [*results[: len(initial)], *_real(call, results[len(initial) :], room, limit)]


def _is_open(trip: Any, rows: Sequence[Value]) -> bool:
    """Whether a trip count is no useful bound on memory for `rows` collected per iteration: it is absent, or large, as
    exporters write 2**63 - 1 for no bound."""
    if not isinstance(trip, int):
        return trip is None
    row = sum(v.known_bytes for v in rows)
    return trip > SHORT_ITERATIONS or trip * row > MAX_HELD


MAX_HELD = 1 << 30
"""The most bytes that are reserved for the results of a loop's iterations, as many as there may be."""


def _real(call: Call, results: Sequence[Item], room: Value | None, most: Value | None) -> list[Item]:
    """The collected values of a loop, cut to the iterations that ran; `results` are these values, then that number.

    `room` says for how many iterations there is memory (None: for all). A loop that has filled it with fewer than
    `most` iterations (None: no bound) may have ended early; then the values get a size of twice the room, so that
    the runtime repeats the call with more memory.
    """
    *stacks, count = [call.materialize(item) for item in results]
    if room is None:
        first = call.head(stacks[0], count)
        return _items([first, *(call.slice(v, 0, 0, first.shape[0]) for v in stacks[1:])])
    size = call.symbols([room.shape[0]], i64, ())
    more = call.emit("ge", count, size)
    if most is not None:
        more = call.emit("and", more, call.emit("lt", count, most))
    twice = call.emit("add", call.emit("add", size, size), call.constant(1, i64))
    rows = call.head(room, call.emit("select", more, twice, count)).shape[0]
    return _items([call.slice(v, 0, 0, rows) for v in stacks])


def _emit_loop(call: Call, operands: Sequence[Value | None], body: Body, attrs: LoopAttrs) -> list[Item]:
    values = emit(call.builder, "loop", *operands, *body.captured, attrs=attrs, names=_names(call))
    for value in values:
        check_size(value.type)
    return _items(values)


def _stacked(call: Call, parts: Sequence[Item], axis: int) -> Item:
    """`parts`, one value for each iteration, stacked along a new `axis`."""
    if not parts:
        raise UnsupportedError("a loop without iterations that collects values cannot be written out")
    values = [call.materialize(p) for p in parts]
    axis = axis_of(axis, values[0].type.rank + 1)
    rows = [call.reshape(v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in values]
    joined = rows[0] if len(rows) == 1 else call.emit("concat", *rows, axis=axis)
    return Item(joined.type, joined)


# --- scans ------------------------------------------------------------------------------------------------------------


def scan(bodies: Bodies) -> Sequence[Item | None]:
    """`Scan`, whose inputs are initial states and sequences; returns the last states and the collected sequences. The
    body computes states and elements from states and elements."""
    call = bodies.call
    if call.opset < 9:
        raise UnsupportedError("Scan before operator set 9 is not supported")
    body = _graph(call, "body")
    sequences = call.integer("num_scan_inputs", 0)
    states = len(call.items) - sequences
    collected = len(body.output) - states
    if not 0 < sequences <= len(call.items) or collected < 0 or len(body.input) != len(call.items):
        raise ModelError("the body of Scan does not fit its inputs")
    axes_in, axes_out = _list(call, "scan_input_axes", sequences), _list(call, "scan_output_axes", collected)
    transposed_in, transposed_out = (
        _list(call, "scan_input_directions", sequences),
        _list(call, "scan_output_directions", collected),
    )
    inputs = [call.value(states + k) for k in range(sequences)]
    axes = [axis_of(a, v.type.rank) for a, v in zip(axes_in, inputs, strict=True)]
    length = inputs[0].shape[axes[0]]
    rows = [
        _rows(call, v, axis, bool(transposed), length)
        for v, axis, transposed in zip(inputs, axes, transposed_in, strict=True)
    ]
    steps = as_int(length)
    short = steps is not None and 0 < steps <= MAX_ITERATIONS
    is_short = short and steps is not None and steps * len(body.node) <= MAX_WRITTEN

    def written() -> list[Item]:
        return _written_scan(bodies, body, states, rows, steps or 0)

    def retain() -> list[Item]:
        return _retained_scan(bodies, body, states, rows)

    results = _first(bodies, [written, retain] if is_short else [retain, written] if short else [retain])
    stacks = [call.materialize(item) for item in results[states:] if item is not None]
    placed = [_columns(call, v, a, bool(t), length) for v, a, t in zip(stacks, axes_out, transposed_out, strict=True)]
    return [*results[:states], *_items(placed)]


def _rows(call: Call, v: Value, axis: int, transposed: bool, length: Expr) -> Value:
    """A scanned sequence `v` with `axis` moved to the front; its elements are in reverse order if `transposed`."""
    if len({as_int(length), as_int(v.shape[axis])}) > 1:
        raise ModelError("the sequences of Scan differ in length", expected=length, got=v.shape[axis])
    v = call.transpose(v, [axis, *(k for k in range(v.type.rank) if k != axis)])
    return call.slice(v, 0, length - 1, length, -1) if transposed else v


def _columns(call: Call, v: Value, axis: int, transposed: bool, length: Expr) -> Value:
    """Collected elements `v` with the first dimension moved to `axis`; they are reversed first if `transposed`."""
    v = call.slice(v, 0, length - 1, length, -1) if transposed else v
    axis = axis_of(axis, v.type.rank)
    order = list(range(1, v.type.rank))
    return call.transpose(v, [*order[:axis], 0, *order[axis:]])


def _written_scan(bodies: Bodies, body: onnx.GraphProto, states: int, rows: Sequence[Value], length: int) -> list[Item]:
    call = bodies.call
    carried: list[Item] = [call.item(k) for k in range(states)]
    stacks: list[list[Item]] = [[] for _ in body.output[states:]]
    names = [info.name for info in body.input]
    for step in range(length):
        elements = [_element(call, v, step) for v in rows]
        results = bodies.walk(body, dict(zip(names, [*carried, *elements], strict=True)), f"{step}/")
        carried = results[:states]
        for stack, item in zip(stacks, results[states:], strict=True):
            stack.append(item)
    return [*carried, *(_stacked(call, stack, 0) for stack in stacks)]


def _retained_scan(bodies: Bodies, body: onnx.GraphProto, states: int, rows: Sequence[Value]) -> list[Item]:
    call = bodies.call
    initial = [call.value(k) for k in range(states)]
    number = bodies.value("number", NUMBER)
    carried = [bodies.value(f"state{k}", v.type) for k, v in enumerate(initial)]
    elements = [bodies.value(f"element{k}", TensorType(v.dtype, v.shape[1:])) for k, v in enumerate(rows)]

    def finish(results: list[Item]) -> list[Value]:
        values = [call.materialize(item) for item in results]
        return [bodies.like(v, w.type, "Scan with a state") for v, w in zip(values, initial, strict=False)] + values[
            states:
        ]

    arguments = [*carried, *elements]
    cut = bodies.cut(body, dict(zip([info.name for info in body.input], arguments, strict=True)), "body/", finish)
    values = [item.value for item in (number, *arguments) if item.value is not None]
    attrs = LoopAttrs(body=cut.graph(values, cut.captured), carried=states, scanned=len(rows))
    return _emit_loop(call, [None, None, *initial, *rows], cut, attrs)


def _list(call: Call, name: str, length: int) -> list[int]:
    values = call.ints(name, [0] * length) or []
    if len(values) != length:
        raise ModelError(f"attribute {name} has the wrong length", expected=length, got=len(values))
    return values


def _element(call: Call, v: Value, at: int) -> Item:
    part = call.reshape(call.slice(v, 0, at, 1), v.shape[1:])
    return Item(part.type, part)


CONTROL: dict[str, Callable[[Bodies], Sequence[Any]]] = {"If": branch, "Loop": loop, "Scan": scan}
