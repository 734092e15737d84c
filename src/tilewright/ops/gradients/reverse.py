"""The backward pass through a list of nodes: each node's rule emits the gradients of its inputs, and the gradients that
a value gets from several readers are summed.

Normalisations divide centred rows by their deviations, and their gradients read both the dividend and the quotient. To
store only one of them, the dividend is recomputed as quotient times deviation, which has few elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.ir.expr import as_int
from tilewright.ir.graph import GraphBuilder, Node, Value
from tilewright.ops.gradients.registry import NONE, Backward, find
from tilewright.ops.pointwise import CastAttrs
from tilewright.ops.registry import emit1
from tilewright.support.errors import Problems, UnsupportedError


def backward(
    builder: GraphBuilder, nodes: Sequence[Node], seeds: Mapping[Value, Value], sources: Iterable[Value]
) -> dict[Value, Value]:
    """Append the backward pass through `nodes` to the builder, from `seeds`, the gradients of some values. Returns the
    gradients of the values `sources`."""
    wanted = leading_from(nodes, set(sources))
    passed = _passed(nodes, seeds, wanted)
    problems = Problems()
    for node in passed:
        if find(node.op) is None:
            problems.add(UnsupportedError(f"the operator {node.op} has no gradient", where=node.outputs[0].name))
    problems.raise_if_any("no gradient", kind=UnsupportedError)
    flows: dict[Value, Value] = dict(seeds)
    first = len(builder.nodes)
    for node in passed:
        arguments = tuple(flows.get(v) for v in node.outputs)
        rule = find(node.op)
        if rule is None or all(g is None for g in arguments):
            continue
        try:
            result = rule(Backward(builder, node, arguments))
        except UnsupportedError as error:
            problems.add(error)
            continue
        for value, flow in zip(node.inputs, result, strict=False):
            if value is None or flow is None or value not in wanted:
                continue
            before = flows.get(value)
            flows[value] = flow if before is None else emit1(builder, "add", before, flow, name=f"d.{value.name}")
    problems.raise_if_any("no gradient", kind=UnsupportedError)
    _read_quotients(builder, nodes, first)
    return flows


MIN_RATIO = 8
"""The least ratio of the elements of a dividend to those of its divisor with which the dividend is recomputed."""


def _read_quotients(builder: GraphBuilder, nodes: Sequence[Node], first: int) -> None:
    """Let the backward pass, the builder's nodes from `first` on, recompute dividends instead of reading stored ones:
    in `q = x / r`, where r is a square root with far fewer elements and q is read too, x is replaced by `q * r`."""
    after = builder.nodes[first:]
    producers = {v: n for n in nodes for v in n.outputs}
    read = {v for n in after for v in n.inputs}
    recomputed: dict[Value | None, Value] = {}
    for node in nodes:
        if node.op == "div" and node.output in read and node.inputs[0] in read and _of_a_root(node, producers):
            name = f"{node.inputs[0].name}.again" if node.inputs[0] is not None else ""
            recomputed[node.inputs[0]] = emit1(builder, "mul", node.output, node.inputs[1], name=name)
    remade = builder.nodes[first + len(after) :]
    renamed = [replace(n, inputs=tuple(recomputed.get(v, v) for v in n.inputs)) for n in after]
    builder.nodes[first:] = [*remade, *renamed]


def _of_a_root(node: Node, producers: Mapping[Value, Node]) -> bool:
    """Whether a node divides a computed value by a computed square root that has far fewer elements. (The root is
    positive wherever the quotient is valid.)"""
    value, root = node.inputs
    if value is None or root is None or value not in producers or root not in producers or producers[root].op != "sqrt":
        return False
    whole, fewer = as_int(value.type.size), as_int(root.type.size)
    return value.type == node.output.type and whole is not None and fewer is not None and whole >= MIN_RATIO * fewer


def _passed(nodes: Sequence[Node], seeds: Iterable[Value], wanted: set[Value]) -> list[Node]:
    """The nodes through which gradients flow from the seeds to `wanted`, the last first."""
    reached = set(seeds)
    results: list[Node] = []
    for node in reversed(nodes):
        inputs = [v for v in node.inputs if v in wanted]
        if inputs and node.op not in NONE and any(v in reached for v in node.outputs):
            results.append(node)
            reached.update(v for v in inputs if v is not None)
    return results


def leading_from(nodes: Sequence[Node], sources: set[Value]) -> set[Value]:
    """The sources and the floating-point values whose derivatives by them may differ from zero; also integers that hold
    the bits of such values, from which floats may be computed again."""
    members = set(sources)
    for node in nodes:
        known = [v for v in node.inputs if v is not None and v in members]
        bits = _is_bits(node) or any(v.dtype.is_int for v in known)
        if known:
            flat = node.op in NONE
            members.update(v for v in node.outputs if (v.dtype.is_float and not flat) or (bits and v.dtype.is_int))
    return members


def _is_bits(node: Node) -> bool:
    return node.op == "cast" and node.of(CastAttrs).bits
