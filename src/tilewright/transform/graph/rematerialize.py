"""Values that cost next to nothing are computed again where they are read rather than written.

    A: c = mul(n, d) ...; s = sum(c * g)           A: c = mul(n, d) ...; s = sum(c * g)
    B: y = add(g, mul(s, c))                 ->     B: c' = mul(n, d); y = add(g, mul(s, c'))

The backward pass through a batch norm reads what was centred twice, once for sums over all of it and once after them. A
value that is few operations on one large value, of as many bytes, is as quickly computed as read. What is not written
saves lines that are fetched and written back, and memory. Small values that it needs leave the first kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright import ops
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.support.classes import dataclass
from tilewright.transform.graph.fuse import MAX_INPUTS, MAX_NODES, Group

CHEAP = frozenset("add sub mul neg".split())
"""Operators of one instruction."""
MAX_REPEATS = 4
"""Nodes that are computed again for a value, at most."""
LARGE = 1 << 16
"""Elements of a value that is worth it: fewer stay in the caches."""
SMALL = 64
"""A value of so many times fewer elements is small beside another."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How a value is made again: of which nodes, in order, and what these read that the same kernel makes."""

    nodes: tuple[Node, ...]
    small: tuple[Value, ...]


def rematerialize_cheap(groups: Sequence[Group], retained: frozenset[Value]) -> list[Group]:
    """The groups, in their order, with cheap values made by each that reads them. `retained`: what others read too."""
    results = list(groups)
    readers: dict[Value, list[int]] = {}
    for k, group in enumerate(groups):
        for v in group.inputs:
            readers.setdefault(v, []).append(k)
    for k, group in enumerate(groups):
        for value in group.outputs:
            if value in retained or len(results[k].outputs) == 1 or not readers.get(value):
                continue
            recomputed = _recipe(results[k], value)
            selected = None if recomputed is None else {i: _with(results[i], value, recomputed) for i in readers[value]}
            if recomputed is None or selected is None or None in selected.values():
                continue
            leaving = [v for v in results[k].outputs if v is not value]
            results[k] = replace(results[k], outputs=(*leaving, *(v for v in recomputed.small if v not in leaving)))
            for i, other in selected.items():
                if other is not None:
                    results[i] = other
                    for v in other.inputs:
                        if i not in readers.setdefault(v, []):
                            readers[v].append(i)
    return results


def _recipe(group: Group, value: Value) -> _Recipe | None:
    """How a value that a group makes is made again, if that is cheap."""
    size = as_int(value.type.size)
    if size is None or size < LARGE:
        return None
    producers = {v: n for n in group.nodes for v in n.outputs}
    nodes: dict[Value, Node] = {}
    leaves: list[Value] = []
    small: list[Value] = []
    asked = [value]
    while asked:
        v = asked.pop()
        if v in nodes or v in leaves or v in small:
            continue
        node = producers.get(v)
        if node is not None and node.op == "constant":
            nodes[v] = node
        elif (as_int(v.type.size) or size) * SMALL <= size:
            small.append(v)
        elif node is None:
            leaves.append(v)
        elif node.op in CHEAP and len(nodes) < MAX_REPEATS:
            nodes[v] = node
            asked += [u for u in node.inputs if u is not None]
        else:
            return None
    if len(leaves) != 1 or leaves[0].type.size is not value.type.size or leaves[0].dtype is not value.dtype:
        return None
    order = tuple(n for n in group.nodes if n.outputs[0] in nodes)
    return _Recipe(order, tuple(v for v in small if v in producers))


def _with(group: Group, value: Value, recomputed: _Recipe) -> Group | None:
    """A group that makes a value itself; None if it is not of pointwise nodes and sums alone, or would be too large."""
    return with_nodes(group, value, recomputed.nodes) if all(_is_simple(n) for n in group.nodes) else None


def with_nodes(group: Group, value: Value, repeated: Sequence[Node]) -> Group | None:
    """A group that makes a value it reads by these nodes; None if it would be too large."""
    # Constants are the same in each kernel that has them, and what the group makes again already is the same node.
    there = {v for n in group.nodes for v in n.outputs}
    own = [n for n in repeated if n.op != "constant"]
    names = {v: Value(f"{v.name}.again", v.type) for n in own for v in n.outputs if v not in there}
    fresh = [_renamed(n, names) for n in repeated]
    first = {v for n in fresh for v in n.outputs}
    old = [_renamed(n, {value: names[value]}) for n in group.nodes if n.outputs[0] not in first]
    constants = [n for n in (*fresh, *old) if n.op == "constant"]
    nodes = (*constants, *(n for n in (*fresh, *old) if n.op != "constant"))
    produced = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in produced)
    carriers = [v for v in group.inputs if v is not value and v not in read]
    inputs = (*read, *carriers)
    if len(nodes) > MAX_NODES or len(inputs) > MAX_INPUTS or len({v.name for v in produced}) < len(produced):
        return None
    return replace(group, nodes=nodes, inputs=inputs)


def _is_simple(node: Node) -> bool:
    return node.op in ("constant", "broadcast") or ops.get(node.op).kind in ("pointwise", "reduction")


def _renamed(node: Node, names: Mapping[Value, Value]) -> Node:
    inputs = tuple(v if v is None else names.get(v, v) for v in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(v, v) for v in node.outputs))
