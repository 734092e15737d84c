"""Turn constants into operands of kernels: arrays, and the numbers in which otherwise equal kernels differ.

    k0 { z = constant(121); y = sub(x0, z) }          k { y = sub(x, z) }     called on (x0, z0) and (x1, z1)
    k1 { z = constant(119); y = sub(x1, z) }    ->    numbers = [121, 119];   z0, z1 stand in it

The layers of a quantised network differ in their zero points alone: a BERT of twelve layers has 125 kernels with these
in their code and 26 without. Only numbers that are added, multiplied, compared or selected become operands: a known
exponent or divisor allows better code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, i8, i16, u8, u16
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ir.rewrite import fresh_name
from tilewright.ops import get
from tilewright.ops.pointwise import CastAttrs
from tilewright.ops.shape import ConstantAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.fuse import Group
from tilewright.transform.graph.memory import Place
from tilewright.transform.regions.captures import names_of

Array = np.ndarray[Any, Any]

READABLE = frozenset(
    {"add", "sub", "mul", "min", "max", "select", "eq", "ne", "lt", "le", "gt", "ge", "lowered.quotient"}
)
"""Operators whose code is as fast with an operand from memory as with a constant."""
NUMBERS = "numbers"
"""The prefix of the names of arrays that hold lifted numbers; an element type follows it."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The result of `lift_numbers`: groups whose numbers are read from arrays.

    groups   the kernels
    created  the nodes that compute the arrays, two for each: a constant, and the array
    places   for each number that the groups read, its place in an array
    """

    groups: tuple[Group, ...]
    created: tuple[Node, ...]
    places: dict[Value, Place]

    @property
    def arrays(self) -> tuple[Value, ...]:
        """The arrays that hold the numbers of all groups, as values."""
        return tuple(n.output for n in self.created if n.op != "constant")

    @property
    def kernels(self) -> tuple[Group, ...]:
        """The kernels that fill the arrays of numbers, one for each."""
        pairs = zip(self.created[::2], self.created[1::2], strict=True)
        return tuple(Group(pair, (), pair[1].outputs) for pair in pairs)


def lift_numbers(groups: Sequence[Group], used_names: Iterable[str]) -> Shared:
    """Let groups that are equal but for their numbers read these numbers from arrays.

    Args:
        groups: of one part of a program.
        used_names: names of the values of this part.
    """
    maker = _Maker(set(used_names))
    separate = {k: _separate(group, maker) for k, group in enumerate(groups) if _may_read(group)}
    alike: dict[object, list[int]] = {}
    for k, group in separate.items():
        alike.setdefault(_structure(group), []).append(k)
    results = list(groups)
    for members in alike.values():
        if len(members) < 2:
            continue
        created = {k: separate[k] for k in members}
        columns = zip(*(_numbers(group) for group in created.values()), strict=True)
        for at, column in enumerate(columns):
            arrays = [n.of(ConstantAttrs).value.array for n in column]
            dtype = column[0].output.dtype
            if dtype.is_float and _is_zero_point(separate[members[0]], column[0]):
                dtype = _narrowest(arrays)
            if dtype is None or len({a.tobytes() for a in arrays}) == 1:
                continue
            for k, number, array in zip(members, column, arrays, strict=True):
                created[k] = _reading(created[k], number, maker.value(array.astype(dtype.numpy), dtype, at))
                results[k] = created[k]
    return Shared(tuple(results), *maker.finish())


def _may_read(group: Group) -> bool:
    """Whether a group is a kernel of tensor expressions with numbers in it."""
    if not any(n.op == "constant" for n in group.nodes):
        return False
    return all(not n.bodies and n.defines is None and get(n.op).loops is None for n in group.nodes)


def _separate(group: Group, maker: _Maker) -> Group:
    """The group with a copy of each constant right before each of its uses: numbers that are equal in this group may
    differ in a similar one."""
    numbers = {n.output: n for n in _numbers(group)}
    read: set[Value] = set()
    nodes: list[Node] = []
    for node in group.nodes:
        if len(node.outputs) == 1 and node.output in numbers:
            continue
        inputs = list(node.inputs)
        for k, v in enumerate(inputs):
            if v in numbers:
                value = v if v not in read else Value(maker.free(v.name), v.type)
                read.add(v)
                nodes.append(replace(numbers[v], outputs=(value,)))
                inputs[k] = value
        nodes.append(replace(node, inputs=tuple(inputs)))
    return replace(group, nodes=tuple(nodes))


def _numbers(group: Group) -> list[Node]:
    """The constants of one element that nothing but operators of `READABLE` reads."""
    users: dict[Value, list[str]] = {}
    for node in group.nodes:
        for value in node.inputs:
            if value is not None:
                users.setdefault(value, []).append(node.op)
    return [
        n
        for n in group.nodes
        if n.op == "constant" and not n.output.shape and READABLE.issuperset(users.get(n.output, ["none"]))
    ]


def _structure(group: Group) -> object:
    """A key of a group without its numbers and names: groups with equal keys become one kernel."""
    order: dict[Value, int] = {}
    open_numbers = {id(n) for n in _numbers(group)}

    def named(values: Iterable[Value | None]) -> tuple[int | None, ...]:
        return tuple(None if v is None else order.setdefault(v, len(order)) for v in values)

    inputs = named(group.inputs), tuple(v.type for v in group.inputs)
    nodes = [
        (n.op, named(n.inputs), None if id(n) in open_numbers else n.attrs, n.selected, named(n.outputs))
        + tuple(v.type for v in n.outputs)
        for n in group.nodes
    ]
    return inputs, tuple(nodes), named(group.outputs)


def _is_zero_point(group: Group, number: Node) -> bool:
    """Whether a number is added to rounded values: then the conversion after it can both round and add an integer."""
    rounded = {v for n in group.nodes if n.op == "round" for v in n.outputs}
    return any(n.op == "add" and number.output in n.inputs and not rounded.isdisjoint(n.inputs) for n in group.nodes)


def _narrowest(arrays: Sequence[Array]) -> DType | None:
    """The narrowest integer type of at most 16 bits that holds all numbers of these arrays; None if there is none."""
    numbers = [float(a) for a in arrays]
    for t in (u8, i8, u16, i16):
        if all(t.min <= x <= t.max and x == int(x) for x in numbers):
            return t
    return None


def _reading(group: Group, number: Node, value: Value) -> Group:
    """The group in which the input `value` replaces the constant `number`."""
    if value.type == number.output.type:
        renamed = {number.output: value}
        nodes = [
            replace(n, inputs=tuple(v if v is None else renamed.get(v, v) for v in n.inputs))
            for n in group.nodes
            if n.outputs != number.outputs
        ]
    else:
        widened = Node("cast", (value,), number.outputs, CastAttrs(number.output.dtype))
        nodes = [widened if n.outputs == number.outputs else n for n in group.nodes]
    return replace(group, nodes=tuple(nodes), inputs=(*group.inputs, value))


class _Maker:
    """Collects the numbers that groups are to read from arrays instead of having them in their code. Equal numbers of
    one type share an entry only if they are the same operand of their kernels: two operands of one kernel are two
    values."""

    def __init__(self, used_names: set[str]) -> None:
        self._used_names = used_names
        self._numbers: dict[DType, dict[tuple[bytes, int], tuple[Value, Array]]] = {}

    def value(self, array: Array, dtype: DType, at: int) -> Value:
        """The value that replaces the number `array` as operand number `at` of a kernel."""
        known = self._numbers.setdefault(dtype, {})
        entry = known.get((array.tobytes(), at))
        if entry is None:
            value = Value(self.free(f"{NUMBERS}_{dtype.name}_{len(known)}"), TensorType(dtype, ()))
            entry = known[array.tobytes(), at] = value, array
        return entry[0]

    def finish(self) -> tuple[tuple[Node, ...], dict[Value, Place]]:
        """The nodes that build the arrays of lifted numbers, and the position of each number in them."""
        result: list[Node] = []
        places: dict[Value, Place] = {}
        for dtype, known in self._numbers.items():
            array = np.array([a for _, a in known.values()], dtype.numpy)
            type = TensorType(dtype, (const(len(known)),))
            source, whole = (Value(self.free(f"{name}_{dtype.name}"), type) for name in ("constant", NUMBERS))
            result.append(Node("constant", (), (source,), ConstantAttrs(ConstantArray(array))))
            result.append(Node("identity", (source,), (whole,)))
            places |= {value: Place(whole, const(k)) for k, (value, _) in enumerate(known.values())}
        return tuple(result), places

    def free(self, name: str) -> str:
        """A name that no other value has, made from `name`."""
        while name in self._used_names:
            name += "_"
        self._used_names.add(name)
        return name


def hoist_constants(graph: Graph, others: Iterable[str] = ()) -> tuple[Graph, dict[str, Array]]:
    """The graph with constants of several elements as parameters, and the arrays of these by name. Scalars stay in the
    code unless loop programs read them from memory. `others` are names of weights that are not parameters of the graph:
    parameters get other names."""
    arrays: dict[str, Array] = {}
    nodes: list[Node] = []
    params = list(graph.params)
    reserved = set(others)
    used_names = reserved | names_of(graph)
    read = {v for n in graph.nodes if get(n.op).loops is not None for v in n.inputs}
    for node in graph.nodes:
        if node.op == "constant" and ((as_int(node.output.type.size) or 0) > 1 or node.output in read):
            value = node.output
            if value.name in reserved:
                value = Value(fresh_name(value.name, used_names), value.type)
                nodes.append(Node("identity", (value,), node.outputs))
            params.append(value)
            arrays[value.name] = node.of(ConstantAttrs).value.array
        else:
            nodes.append(node)
    return replace(graph, params=tuple(params), nodes=tuple(nodes)), arrays


__all__ = ["NUMBERS", "Shared", "hoist_constants", "lift_numbers"]
