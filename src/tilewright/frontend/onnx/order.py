"""Names that nodes read, and the order of a file's nodes. ONNX asks that each comes after those whose values it reads;
ONNX Runtime runs graphs in any order, and its own tools write such (`onnxruntime.transformers.float16` of 1.32); it
refuses graphs in nodes, and functions, that are in another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from tilewright.support.errors import ModelError

MAX_DEPTH = 32
"""Levels of graphs inside graphs, and of functions that call each other."""


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, in a copy if some node of its graph reads the value of a later one: there each comes after those that
    it reads, as near as can be to its place. Nodes of which some are in a circle stay where they are."""
    nodes = model.graph.node
    places = _places(nodes)
    if not any(places.get(name, -1) > k for k, node in enumerate(nodes) for name in reads(node)):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes[k] for k in _order(nodes))
    return result


def _places(nodes: Sequence[onnx.NodeProto]) -> dict[str, int]:
    """The places of the nodes that compute values, by their names."""
    return {name: k for k, node in enumerate(nodes) for name in node.output if name}


def _order(nodes: Sequence[onnx.NodeProto]) -> Sequence[int]:
    """Places, those of what a node reads before its own; as they are if there is a circle."""
    places = _places(nodes)
    done: dict[int, None] = {}
    entered = set[int]()
    for first in range(len(nodes)):
        stack = [first]
        while stack:
            k = stack[-1]
            if k in entered:
                done.setdefault(stack.pop())
                continue
            entered.add(k)
            needed = [places[name] for name in reads(nodes[k]) if name in places]
            if any(p in entered and p not in done for p in needed):
                return range(len(nodes))
            stack += [p for p in reversed(needed) if p not in done]
    return list(done)


def graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds."""
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            yield a.g
        elif a.type == onnx.AttributeProto.GRAPHS:
            yield from a.graphs


def reads(node: onnx.NodeProto, depth: int = 0) -> list[str]:
    """The names that a node reads, those of its inner graphs included."""
    if depth > MAX_DEPTH:
        raise ModelError("graphs nest too deeply", expected=f"at most {MAX_DEPTH} levels")
    names = dict.fromkeys(filter(None, node.input))
    for graph in graphs(node):
        names.update(dict.fromkeys(captured(graph, depth + 1)))
    return list(names)


def captured(graph: onnx.GraphProto, depth: int = 0) -> list[str]:
    """The names of values that a graph reads from the graphs around it."""
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own.update(n for node in graph.node for n in node.output)
    read = dict.fromkeys(n for node in graph.node for n in reads(node, depth))
    read.update(dict.fromkeys(o.name for o in graph.output))
    return [n for n in read if n not in own]


__all__ = ["MAX_DEPTH", "captured", "graphs", "in_order", "reads"]
