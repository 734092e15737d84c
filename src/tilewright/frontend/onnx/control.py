"""Control flow that is decided when compiling: branches with a known condition, loops with a small known trip count.

Loops are unrolled: the body is walked once for each iteration, in a scope of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.scope import Item, known_item
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of
from tilewright.support.errors import ModelError, UnsupportedError

MAX_ITERATIONS = 128
"""Iterations of a Loop or Scan up to which its body is written out."""

Walk = Callable[[onnx.GraphProto, Mapping[str, Item], str], list[Item]]
"""Walks a body with these inputs under a prefix of names; gives its outputs."""


def branch(call: Call, walk: Walk) -> Sequence[Item | None]:
    """`If`: only the branch that is taken is looked at."""
    condition = _truth(call.item(0))
    if condition is None:
        raise UnsupportedError("If with a condition that is computed from the data is not supported")
    return walk(_graph(call, "then_branch" if condition else "else_branch"), {}, "")


def _graph(call: Call, name: str) -> onnx.GraphProto:
    graph = call.attr(name)
    if not isinstance(graph, onnx.GraphProto):
        raise ModelError(f"attribute {name} must be a graph")
    return graph


def _truth(item: Item | None) -> bool | None:
    if item is None or item.known is None or item.known.dtype == object or item.known.size != 1:
        return None
    return bool(item.known.reshape(-1)[0])


def loop(call: Call, walk: Walk) -> Sequence[Item | None]:
    """`Loop`: inputs trip count, condition, carried values; the body gives condition, carried and collected values."""
    body = _graph(call, "body")
    items = [*call.items, *[None] * (2 - len(call.items))]
    count = _count(items[0])
    alive = True if items[1] is None else _truth(items[1])
    carried = items[2:]
    if len(body.input) != 2 + len(carried) or len(body.output) < 1 + len(carried):
        raise ModelError("the body of Loop does not fit its inputs", expected=2 + len(carried), got=len(body.input))
    stacks: list[list[Item]] = [[] for _ in body.output[1 + len(carried) :]]
    step = 0
    while alive and (count is None or step < count):
        if step >= MAX_ITERATIONS:
            raise UnsupportedError("Loop with many iterations is not supported", expected=f"at most {MAX_ITERATIONS}")
        given = [known_item(np.asarray(step), i64), known_item(np.asarray(True), boolean), *carried]
        inputs = {info.name: item for info, item in zip(body.input, given, strict=True) if item is not None}
        results = walk(body, inputs, f"{step}/")
        alive = _truth(results[0])
        if alive is None:
            break
        carried = list(results[1 : 1 + len(carried)])
        for stack, item in zip(stacks, results[1 + len(carried) :], strict=True):
            stack.append(item)
        step += 1
    if alive is None:
        raise UnsupportedError("Loop with a condition that is computed from the data is not supported")
    return [*carried, *(_stacked(call, stack, 0) for stack in stacks)]


def _count(item: Item | None) -> int | None:
    if item is None:
        return None
    if item.known is None or item.known.dtype == object or item.known.size != 1:
        raise UnsupportedError("Loop with a trip count that is not known when compiling is not supported")
    return int(item.known.reshape(-1)[0])


def _stacked(call: Call, parts: Sequence[Item], axis: int) -> Item:
    """The iterations' values along a new axis."""
    if not parts:
        raise UnsupportedError("a loop without iterations that collects values is not supported")
    values = [call.materialize(p) for p in parts]
    axis = axis_of(axis, values[0].type.rank + 1)
    rows = [call.reshape(v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in values]
    joined = rows[0] if len(rows) == 1 else call.emit("concat", *rows, axis=axis)
    return Item(joined.type, joined)


def scan(call: Call, walk: Walk) -> Sequence[Item | None]:
    """`Scan`: initial states and sequences; the body takes states and elements, gives states and elements."""
    if call.opset < 9:
        raise UnsupportedError("Scan before operator set 9 is not supported")
    body = _graph(call, "body")
    sequences = call.integer("num_scan_inputs", 0)
    states = len(call.items) - sequences
    collected = len(body.output) - states
    if not 0 < sequences <= len(call.items) or collected < 0 or len(body.input) != len(call.items):
        raise ModelError("the body of Scan does not fit its inputs")
    axes_in, axes_out = _list(call, "scan_input_axes", sequences), _list(call, "scan_output_axes", collected)
    turned_in, turned_out = (
        _list(call, "scan_input_directions", sequences),
        _list(call, "scan_output_directions", collected),
    )
    inputs = [call.value(states + k) for k in range(sequences)]
    axes_in = [axis_of(a, v.type.rank) for a, v in zip(axes_in, inputs, strict=True)]
    length = as_int(inputs[0].shape[axes_in[0]])
    if length is None or not 0 < length <= MAX_ITERATIONS:
        raise UnsupportedError("Scan over a long or symbolic dimension is not supported", got=length)
    carried: list[Item] = [call.item(k) for k in range(states)]
    stacks: list[list[Item]] = [[] for _ in range(collected)]
    for step in range(length):
        elements = [
            _element(call, v, axis, length - 1 - step if turned else step)
            for v, axis, turned in zip(inputs, axes_in, turned_in, strict=True)
        ]
        names = [info.name for info in body.input]
        results = walk(body, dict(zip(names, [*carried, *elements], strict=True)), f"{step}/")
        carried = results[:states]
        for stack, item in zip(stacks, results[states:], strict=True):
            stack.append(item)
    ordered = [stack[::-1] if turned else stack for stack, turned in zip(stacks, turned_out, strict=True)]
    return [*carried, *(_stacked(call, stack, axis) for stack, axis in zip(ordered, axes_out, strict=True))]


def _list(call: Call, name: str, length: int) -> list[int]:
    values = call.ints(name, [0] * length) or []
    if len(values) != length:
        raise ModelError(f"attribute {name} has the wrong length", expected=length, got=len(values))
    return values


def _element(call: Call, v: Value, axis: int, at: int) -> Item:
    part = call.slice(v, axis, at, 1)
    part = call.reshape(part, [d for k, d in enumerate(part.shape) if k != axis])
    return Item(part.type, part)


CONTROL: dict[str, Callable[[Call, Walk], Sequence[Any]]] = {"If": branch, "Loop": loop, "Scan": scan}
