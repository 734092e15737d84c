"""Control flow: conditions and loops that are known when compiling are evaluated, all others become loops and branches
of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.module import Block
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.scan import scanned
from tilewright.frontend.stablehlo.rules.shape import as_item
from tilewright.frontend.stablehlo.scope import Item
from tilewright.ir.dtype import i64
from tilewright.ir.graph import TensorType, Value
from tilewright.support.errors import UnsupportedError

MAX_ITERATIONS = 512
"""The most iterations of a loop that is unrolled."""
MAX_NODES = 3000
"""The most nodes that unrolling a loop may create."""


@rule("while")
def loop(call: Call) -> list[Item]:
    """`while`: a loop over sequences if the body is a recurrent cell or the loop is long; unrolled if it is short and
    its condition is known in each iteration; else an operator `loop`."""
    is_there = call.attempt(lambda: scanned(call, MAX_ITERATIONS)) or _written_out(call)
    if is_there is not None:
        return is_there
    condition, body = call.op.regions
    start = [as_item(v) for v in call.values()]
    # What every iteration hands on as it came is read from around the loop, weights among it.
    moving = [k for k, v in enumerate(body.returned) if v != body.arguments[k]]

    def whole(carried: list[Item]) -> list[Item]:
        arguments = dict(zip(moving, carried, strict=True))
        return [arguments.get(k, item) for k, item in enumerate(start)]

    def iteration(carried: list[Item]) -> list[Item]:
        results = call.walk(body, whole(carried[1:]), False)
        return [*call.walk(condition, results, False), *(results[k] for k in moving)]

    begin = [start[k] for k in moving]
    graph, captured = call.body("body", [_number(), *begin], iteration)
    if [v.type for v in graph.outputs[1:]] != [i.type for i in begin]:
        raise UnsupportedError("a loop that carries values of changing shapes is not supported")
    (alive,) = call.walk(condition, start, False)
    attrs = {"body": graph, "carried": len(begin), "conditional": True}
    ends = call.emit_all("loop", None, call.value(alive), *map(call.value, begin), *captured, **attrs)
    return whole([as_item(v) for v in ends])


def _number() -> Item:
    """An item without a value that gives the type of a loop's iteration number."""
    return Item(TensorType(i64, ()))


def _written_out(call: Call) -> list[Item] | None:
    condition, body = call.op.regions
    items, before = list(call.items), len(call.builder.nodes)
    for _ in range(MAX_ITERATIONS):
        (alive,) = call.walk(condition, items, False)
        if alive.number is None or len(call.builder.nodes) - before > MAX_NODES:
            return None
        if not alive.number:
            return items
        items = call.walk(body, items, False)
    return None


@rule("case", "if")
def branch(call: Call) -> list[Item]:
    """`case` or `if`. Where only data selects the body, it becomes a branch if a body is expensive or may not
    terminate; else all bodies are computed and the results selected, which costs less than a branch."""
    regions = call.op.regions
    choice = call.item(0)
    if choice.number is None and not call.lifted and any(op.name in WORK for r in regions for op in r.walk()):
        result = _one_runs(call, regions)
        if result is not None:
            return result
    if call.op.name.endswith("if"):
        if choice.number is not None:
            return call.walk(regions[0 if choice.number else 1], [], False)
        yes, no = (call.walk(r, [], False) for r in regions)
        return [_chosen(call, call.unbroadcast(0), a, b) for a, b in zip(yes, no, strict=True)]
    last = len(regions) - 1
    if choice.number is not None:
        k = int(choice.number)
        return call.walk(regions[k if 0 <= k <= last else last], [], False)
    results = [call.walk(r, [], False) for r in regions]
    result = results[last]
    for k in range(last):
        mine = call.emit("eq", call.unbroadcast(0), call.like(k, call.unbroadcast(0)))
        result = [_chosen(call, mine, a, b) for a, b in zip(results[k], result, strict=True)]
    return result


def _one_runs(call: Call, regions: Sequence[Block]) -> list[Item] | None:
    """`case` or `if` as branches of the graph: for more than two bodies a chain of them, in which each branch computes
    its body if selected, and else passes the previous results on. None if the bodies' results differ in type."""

    def body(k: int) -> Callable[[], list[Item]]:
        return lambda: call.walk(regions[k], [], False)

    index, last = call.value(call.item(0)), len(regions) - 1
    if call.op.name.endswith("if"):
        return _branched(call, index, body(0), body(1))
    results: list[Item] | None = call.walk(regions[0], [], False) if not last else None
    for k in range(1, len(regions)):
        if results is None:
            results = _branched(call, call.emit("eq", index, call.like(0, index)), body(0), body(1))
        else:
            mine = call.emit("eq", index, call.like(k, index))
            if k == last:  # which stands for all numbers outside
                sides = [call.emit("lt", index, call.like(0, index)), call.emit("ge", index, call.like(last, index))]
                mine = call.emit("or", *sides)
            results = _branched(call, mine, body(k), partial(list, results))
        if results is None:
            return None
    return results


def _branched(
    call: Call, predicate: Value, yes: Callable[[], list[Item]], no: Callable[[], list[Item]]
) -> list[Item] | None:
    """A branch of the graph that computes `yes` where `predicate` is true, else `no`; its inputs are all outer values
    that either reads. None if their results differ in type."""
    parts = [call.body("then", [], lambda _: yes()), call.body("else", [], lambda _: no())]
    if len({tuple(v.type for v in graph.outputs) for graph, _ in parts}) > 1:
        return None
    weights = dict.fromkeys(v for graph, _ in parts for v in graph.params)
    inputs = dict.fromkeys(v for graph, candidate in parts for v in (*graph.inputs, *candidate) if v not in weights)
    then, orelse = (replace(graph, inputs=tuple(inputs), params=tuple(weights)) for graph, _ in parts)
    return [as_item(v) for v in call.emit_all("cond", predicate, *inputs, *weights, orelse=orelse, then=then)]


_NAMES = "case convolution dot_general gather if reduce reduce_window scatter select_and_scatter sort while"
WORK = frozenset(f"stablehlo.{name}" for name in _NAMES.split())
"""Operations that are expensive enough for a branch."""


def _chosen(call: Call, condition: Value, a: Item, b: Item) -> Item:
    y = call.emit("select", condition, call.unbroadcast(a), call.unbroadcast(b))
    return call.lazy(y, a.shape)
