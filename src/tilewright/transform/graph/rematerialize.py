"""Recompute values that are nearly as cheap as a load in the kernels that read them, instead of writing them to memory.

    A: c = mul(n, d) ...; s = sum(c * g)           A: c = mul(n, d) ...; s = sum(c * g)
    B: y = add(g, mul(s, c))                 ->     B: c' = mul(n, d); y = add(g, mul(s, c'))

The backward pass through a batch norm reads the centred values twice: for sums over all of them, and after the sums. A
value that is a few operations on one value of the same number of bytes is computed as fast as it is read. Not writing
it saves memory, and lines that would be fetched and written back. Small values that it is computed from become outputs
of the first kernel.
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
"""The largest number of nodes that a reader computes again instead of loading a value."""
LARGE = 1 << 16
"""The least number of elements of a value that is computed again; smaller values stay in the caches."""
SMALL = 64
"""A value with at most 1 / SMALL of the elements of another is small beside it."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """The nodes that compute a value again, in order, and the small values among their inputs that the same kernel
    computes."""

    nodes: tuple[Node, ...]
    small: tuple[Value, ...]


def rematerialize_cheap(groups: Sequence[Group], retained: frozenset[Value]) -> list[Group]:
    """The groups, in their order, in which each reader of a cheap value computes it again. `retained`: values that are
    also read elsewhere, which stay."""
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
    """The nodes that compute a group's value again; None if they are not cheap: more than `MAX_REPEATS`, or with other
    than one large input."""
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
    """The group with the nodes that compute `value`, in place of its input; None if the group is not of pointwise nodes
    and sums alone, or would be too large."""
    return with_nodes(group, value, recomputed.nodes) if all(_is_simple(n) for n in group.nodes) else None


def with_nodes(group: Group, value: Value, repeated: Sequence[Node]) -> Group | None:
    """The group with the nodes `repeated`, which compute `value`, in place of the input `value`; None if it would be
    too large."""
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
