"""Flatten bodies into the list of calls: the calls of a loop or branch are between markers for its begin and end.

    y = loop(none, none, s, xs) {body}   ->   y = identity(s);  loop;  calls of the body;  y = identity(next);  end

Carried values are in the memory of the loop's outputs. An element of a sequence is a place in the sequence; collected
results and outputs of branches are computed directly in their place. New carried values are copied at the end of the
iteration, unless their kernel can write over the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.arith import prove_equal
from tilewright.ir.dtype import f64
from tilewright.ir.expr import Expr, Var, product
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.control import NUMBER, LoopAttrs
from tilewright.ops.require import RequireAttrs
from tilewright.runtime.specs import MAX_TEXT, CheckSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError
from tilewright.transform.call import Call, KernelCall, Marker
from tilewright.transform.graph.memory import Place
from tilewright.transform.regions.captures import region
from tilewright.transform.regions.optimise import trip_of
from tilewright.transform.work import polynomial

Copy = Callable[[Value, Value], KernelCall]
"""A function that returns a kernel call which copies its first value to its second."""


@dataclass(frozen=True, slots=True)
class Flat:
    """Calls in order, and the places of values without memory of their own."""

    calls: tuple[Call, ...]
    places: Mapping[Value, Place]


def flatten(node: Node, bodies: Sequence[Flat], path: str, copy: Copy) -> Flat:
    """The calls of a loop or branch whose bodies are compiled. `path` is a prefix for the names of its values; no name
    outside begins with it."""
    if isinstance(node.attrs, LoopAttrs):
        return _loop(node, bodies[0], path, copy)
    return _cond(node, bodies, path)


@dataclass(slots=True)
class _Embedding:
    """A renaming of a body's values for the enclosing program: `names` maps values of the body to values of the
    program."""

    body: Flat
    path: str
    names: dict[Value, Value]

    def value(self, v: Value) -> Value:
        return self.names.get(v) or Value(f"{self.path}{v.name}", v.type)

    def calls(self) -> list[Call]:
        return [self.call(c) for c in self.body.calls]

    def call(self, call: Call) -> Call:
        if isinstance(call, KernelCall):
            over = tuple((self.value(a), self.value(b)) for a, b in call.over)
            return replace(call, args=tuple(map(self.value, call.args)), over=over)
        count, condition, counter = (
            None if v is None else self.value(v) for v in (call.count, call.condition, call.counter)
        )
        return replace(call, count=count, condition=condition, counter=counter)

    def places(self) -> dict[Value, Place]:
        return {self.value(v): replace(p, base=self.value(p.base)) for v, p in self.body.places.items()}

    def root(self, v: Value) -> Value:
        """The value of the body that shares all of its memory with `v`."""
        while v in self.body.places:
            v = self.body.places[v].base
        return v


def _captures(node: Node, body: Graph) -> dict[Value, Value]:
    result = region(node)
    return dict(zip((*body.inputs[result.leading :], *body.params), result.captured, strict=True))


def _loop(node: Node, flat: Flat, path: str, copy: Copy) -> Flat:
    attrs = node.of(LoopAttrs)
    body, carried = attrs.body, attrs.carried
    count, condition, *rest = node.inputs
    number = Var(f"{path}number")
    counter = Value(f"{path}{body.inputs[0].name}", NUMBER)  # as no other value of the body
    e = _Embedding(flat, path, {body.inputs[0]: counter, **_captures(node, body)})
    e.names.update(zip(body.inputs[1 : 1 + carried], node.outputs, strict=False))
    trip = trip_of(node)
    at = number if trip is None or not attrs.backward else trip - 1 - number
    where = {}
    for element, sequence in zip(body.inputs[1 + carried :][: attrs.scanned], rest[carried:], strict=False):
        assert sequence is not None
        where[e.value(element)] = _row(sequence, at)
    results = body.outputs[attrs.conditional :]
    for result, stack in zip(results[carried:], node.outputs[carried:], strict=False):
        where[e.value(e.root(result))] = _row(stack, at)
    calls = e.calls()
    places = {**e.places(), **where}
    ends = []
    for result, output in zip(results[:carried], node.outputs, strict=False):
        if _may_stand_in(e.value(e.root(result)), output, calls, places):
            places[e.value(e.root(result))] = Place(output)
        else:
            ends.append(copy(e.value(result), output))
    before = [copy(v, output) for v, output in zip(rest[:carried], node.outputs, strict=False) if v is not None]
    read = any(counter in c.args for c in calls)
    known = trip is not None and polynomial(trip) is not None
    begin = Marker("loop", node.label, trip if known else None, count, condition, number, counter if read else None)
    continues = e.value(body.outputs[0]) if attrs.conditional else None
    end = Marker("end", node.label, condition=continues, counter=node.outputs[-1] if attrs.counted else None)
    return Flat((*before, begin, *calls, *ends, end), places)


def _row(stack: Value, at: Expr) -> Place:
    """The place of element number `at` of `stack`, a sequence or a collected result of a loop. Raises UnsupportedError
    if it is no polynomial of sizes."""
    start = at * product(stack.shape[1:])
    if polynomial(start) is None:
        raise UnsupportedError("a loop over elements of such a size is not supported", where=stack.name, got=start)
    return Place(stack, start)


def _may_stand_in(result: Value, carried: Value, calls: Sequence[Call], places: Mapping[Value, Place]) -> bool:
    """Whether the next value of a carried value, `result`, may be written over the old one, because no later call reads
    that."""

    def root(v: Value) -> Value:
        while v in places:
            v = places[v].base
        return v

    written = next((k for k, c in enumerate(calls) if result in c.args), None)
    if written is None or not _is_flat(calls[: written + 1]) or result in places:
        return False
    call = calls[written]
    readers = [k for k, c in enumerate(calls) if any(root(v) == carried for v in c.args)]
    if not isinstance(call, KernelCall) or any(k > written for k in readers):
        return False
    whole = prove_equal(result.type.size, carried.type.size)
    over = any(out == result and operand == carried for out, operand in call.over)
    alone = sum(root(v) == carried for v in call.args) == 1
    return whole and (written not in readers or (over and alone))


def _is_flat(calls: Sequence[Call]) -> bool:
    """Whether as many regions end as begin in `calls`, so that the last call is outside of all regions."""
    depth = 0
    for c in calls:
        if isinstance(c, Marker) and c.kind != "else":
            depth += -1 if c.kind == "end" else 1
    return depth == 0


def _cond(node: Node, bodies: Sequence[Flat], path: str) -> Flat:
    flats = dict(zip(map(id, node.bodies), bodies, strict=True))
    attrs = node.attrs
    places: dict[Value, Place] = {}
    calls: list[Call] = [Marker("if", node.label, condition=node.inputs[0])]
    for kind, body in (("then", attrs.then), ("else", attrs.orelse)):  # type: ignore[attr-defined]
        e = _Embedding(flats[id(body)], f"{path}{kind}.", _captures(node, body))
        if kind == "else":
            calls.append(Marker("else", node.label))
        calls += e.calls()
        places |= e.places()
        places |= {e.value(e.root(r)): Place(o) for r, o in zip(body.outputs, node.outputs, strict=True)}
    return Flat((*calls, Marker("end", node.label)), places)


def marker(node: Node) -> Marker | None:
    """The marker for a node that needs no kernel: one that defines a symbol by data, or a check; None for other
    nodes."""
    if isinstance(node.attrs, RequireAttrs):
        _, holds, got = node.inputs
        assert got is not None
        attrs = node.attrs
        says = CheckSpec(attrs.what[:MAX_TEXT], attrs.expected[:MAX_TEXT], got.dtype is f64, attrs.external)
        return Marker("check", node.label, count=got, condition=holds, check=says)
    return None if node.defines is None else _extent(node)


def _extent(node: Node) -> Marker:
    rows, count = node.inputs
    assert rows is not None
    bound = rows.shape[0]
    if polynomial(bound) is None:
        raise UnsupportedError("an extent with such a bound is not supported", where=node.output.name, got=bound)
    return Marker("extent", node.label, bound, count, number=node.defines)
