"""Sorting: compute the positions of sorted elements, then gather each operand by them."""

from __future__ import annotations

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.module import Block, Operation
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.pointwise import total_order
from tilewright.ir.dtype import boolean, i32, i64, u8
from tilewright.ir.expr import Expr, as_int, is_const
from tilewright.ir.graph import Value
from tilewright.support.errors import UnsupportedError


@rule("sort")
def sort(call: Call) -> list[Value]:
    """All operands sorted by the keys that the comparator uses, by one stable sort for each key, the least significant
    first."""
    values = call.values()
    axis = call.integer("dimension", -1) % max(values[0].type.rank, 1)
    if not values[0].type.rank or is_const(values[0].shape[axis], 1) or as_int(values[0].type.size) == 0:
        return values
    for key, ascending in reversed(_keys(call.op.regions[0])):
        order = _order(call, values[key], axis, ascending)
        values = [call.emit("gather_elements", v, order, axis=axis) for v in values]
    return values


def _order(call: Call, key: Value, axis: int, ascending: bool) -> Value:
    if key.dtype is boolean:
        key = call.cast(key, u8)
    _, order = call.emit_all("topk", key, axis=axis, k=key.shape[axis], largest=not ascending)
    return order


def _keys(body: Block) -> list[tuple[int, bool]]:
    """(operand, whether its order descends) for each operand that the comparator compares, the most significant first.
    Raises UnsupportedError for other comparators."""
    producers = {r: op for op in body.body for r in op.results}
    place = {v: k for k, v in enumerate(body.arguments)}
    results: list[tuple[int, bool]] = []
    for op in body.body:
        if op.name != "stablehlo.compare" or op.attributes.get("comparison_direction") not in ("LT", "GT", "LE", "GE"):
            continue
        sides = [_sources(v, producers, place) for v in op.operands]
        if any(len(s) != 1 for s in sides):
            continue
        (a,), (b,) = sides
        if a // 2 != b // 2 or a == b:
            continue
        ascending = str(op.attributes["comparison_direction"])[0] == "L"
        results.append((a // 2, ascending if a < b else not ascending))
    keys = list(dict.fromkeys(results))
    used = {p // 2 for v in body.returned for p in _sources(v, producers, place)}
    if not keys or used != {k for k, _ in keys} or len(keys) != len({k for k, _ in keys}):
        raise UnsupportedError("a sort with this comparator is not supported")
    return _by_weight(keys, body, producers, place)


def _by_weight(
    keys: list[tuple[int, bool]], body: Block, producers: dict[int, Operation], place: dict[int, int]
) -> list[tuple[int, bool]]:
    """`keys` by significance: operands that `body` tests for equality decide before others. `producers` has the
    operation that computes each value of the body, `place` the positions of its arguments."""
    equal = set()
    for op in body.body:
        if op.name == "stablehlo.compare" and op.attributes.get("comparison_direction") == "EQ":
            equal |= {p // 2 for v in op.operands for p in _sources(v, producers, place)}
    return sorted(keys, key=lambda k: (k[0] not in equal, k[0]))


def _sources(value: int, producers: dict[int, Operation], place: dict[int, int]) -> set[int]:
    """The positions of the body's arguments from which `value` is computed; `producers` has the operation that computes
    each value, `place` the positions of arguments."""
    members: set[int] = set()
    stack, seen = [value], set[int]()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v in place:
            members.add(place[v])
        elif v in producers:
            stack.extend(producers[v].operands)
    return members


@rule("chlo.top_k")
def top_k(call: Call) -> list[Value]:
    x = call.value(0)
    return largest(call, x, x.type.rank - 1, call.integer("k"))


def largest(call: Call, x: Value, axis: int, k: int | Expr, smallest: bool = False) -> list[Value]:
    """The `k` largest (or smallest) values along an axis in order, and their indices."""
    operand = call.cast(x, u8) if x.dtype is boolean else x
    order = total_order(call, operand) if operand.dtype.is_float else operand
    _, at = call.emit_all("topk", order, axis=axis, k=k, largest=not smallest)
    values = call.emit("gather_elements", x, at, axis=axis)
    return [values, call.cast(at, i32)]


@rule("custom_call.ApproxTopK")
def approximate_top_k(call: Call) -> list[Value]:
    """The exact top k, which also satisfies the approximate operation."""
    config = call.op.attributes.get("mhlo.backend_config")
    if not isinstance(config, dict) or len(call.items) != 4 or call.item(2).number is None:
        raise call.unsupported("of this form")
    x, indices = call.value(0), call.value(1)
    axis = int(config.get("reduction_dim", x.type.rank - 1)) % x.type.rank
    k = call.stated(0)[axis]
    if k is None:
        raise call.unsupported("of a symbolic size")
    smallest = bool(call.item(2).number > 0)  # what fills up is the worst
    values, at = largest(call, x, axis, k, smallest)
    return [values, call.emit("gather_elements", indices, call.cast(at, i64), axis=axis)]
