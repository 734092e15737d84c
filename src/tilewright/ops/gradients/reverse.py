"""The way back through a list of nodes: each node's rule says how gradients flow back through it; values that several
nodes read sum what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.ir.graph import GraphBuilder, Node, Value
from tilewright.ops.gradients.registry import NONE, Backward, find
from tilewright.ops.pointwise import CastAttrs
from tilewright.ops.registry import emit1
from tilewright.support.errors import Problems, UnsupportedError


def backward(
    builder: GraphBuilder, nodes: Sequence[Node], seeds: Mapping[Value, Value], sources: Iterable[Value]
) -> dict[Value, Value]:
    """Puts the way back through `nodes` into the builder; from gradients of some values to those of the sources."""
    wanted = _leading_from(nodes, set(sources))
    passed = _passed(nodes, seeds, wanted)
    problems = Problems()
    for node in passed:
        if find(node.op) is None:
            problems.add(UnsupportedError(f"the operator {node.op} has no gradient", where=node.outputs[0].name))
    problems.raise_if_any("no gradient", kind=UnsupportedError)
    flows: dict[Value, Value] = dict(seeds)
    for node in passed:
        given = tuple(flows.get(v) for v in node.outputs)
        rule = find(node.op)
        if rule is None or all(g is None for g in given):
            continue
        try:
            found = rule(Backward(builder, node, given))
        except UnsupportedError as error:
            problems.add(error)
            continue
        for value, flow in zip(node.inputs, found, strict=False):
            if value is None or flow is None or value not in wanted:
                continue
            before = flows.get(value)
            flows[value] = flow if before is None else emit1(builder, "add", before, flow, name=f"d.{value.name}")
    problems.raise_if_any("no gradient", kind=UnsupportedError)
    return flows


def _passed(nodes: Sequence[Node], seeds: Iterable[Value], wanted: set[Value]) -> list[Node]:
    """The nodes that gradients may pass on their way from the seeds to what is wanted, last ones first."""
    reached = set(seeds)
    found: list[Node] = []
    for node in reversed(nodes):
        inputs = [v for v in node.inputs if v in wanted]
        if inputs and node.op not in NONE and any(v in reached for v in node.outputs):
            found.append(node)
            reached.update(v for v in inputs if v is not None)
    return found


def _leading_from(nodes: Sequence[Node], sources: set[Value]) -> set[Value]:
    """All floating point values that depend on the sources, these included, and integers with the bits of such a value,
    of which others may be made again."""
    found = set(sources)
    for node in nodes:
        known = [v for v in node.inputs if v is not None and v in found]
        bits = _is_bits(node) or any(v.dtype.is_int for v in known)
        if known:
            found.update(v for v in node.outputs if v.dtype.is_float or (bits and v.dtype.is_int))
    return found


def _is_bits(node: Node) -> bool:
    return node.op == "cast" and node.of(CastAttrs).bits
