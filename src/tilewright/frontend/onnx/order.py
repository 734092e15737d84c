"""The names that nodes read, and the order of a file's nodes. ONNX requires that a node follows those whose values it
reads. ONNX Runtime accepts any order in the main graph, and its tools write such files
(`onnxruntime.transformers.float16` of 1.32), but it refuses it in inner graphs and functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from tilewright.support.errors import ModelError

MAX_DEPTH = 32
"""Levels of graphs inside graphs, and of functions that call each other."""


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with nodes in an order in which each follows those that it reads, close to the file's order: a copy if
    that has to be changed. The order stays if nodes form a cycle."""
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
    """Value name -> position of the node that computes it."""
    return {name: k for k, node in enumerate(nodes) for name in node.output if name}


def _order(nodes: Sequence[onnx.NodeProto]) -> Sequence[int]:
    """The positions of nodes in an order in which each follows those that it reads; unchanged if there is a cycle."""
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
    """The graphs in a node's attributes."""
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            yield a.g
        elif a.type == onnx.AttributeProto.GRAPHS:
            yield from a.graphs


def reads(node: onnx.NodeProto, depth: int = 0) -> list[str]:
    """The names of all values that a node reads, including those that its inner graphs read from outside. Raises
    ModelError if graphs nest too deeply."""
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
