"""Graphs of one statement, as selection meets them."""

from __future__ import annotations

from tilewright.ops import parse_graph
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options
from tilewright.transform.layout.assign import in_blocks
from tilewright.transform.select.surroundings import Surroundings

ZEN4, OLD = Target.parse("znver4"), Target.parse("x86-64-v3")


def surroundings(text: str, target: Target = ZEN4, **options: str) -> Surroundings:
    """The surroundings of the last statement of a graph, as they are when its operands have been visited."""
    graph = parse_graph(text)
    result = Surroundings(graph, target, Options(**options), in_blocks())
    for node in graph.nodes[:-1]:
        result.visit(node)
        result.leave(node)
    return result


def product(x: str = "n, 64", w: str = "64, 32", y: str = "n, 32", kind: str = "f32", how: str = "") -> str:
    return (
        f"graph @g(%x: {kind}[{x}]) params(%w: {kind}[{w}]) where n in 1.. {{ "
        f"%y = matmul(%x, %w) {{{how or 'transpose_b = false'}}} : {kind}[{y}] return %y }}"
    )


def conv(x: str, w: str, y: str, attrs: str = "", weights: bool = True, kind: str = "f32") -> str:
    attributes = {"dilations": "[1, 1]", "groups": "1", "pads": "[1, 1, 1, 1]", "strides": "[1, 1]"}
    attributes |= dict(part.split(" = ") for part in attrs.split("; ") if part)
    heads = f"(%x: {kind}[{x}]) params(%w: {kind}[{w}])" if weights else f"(%x: {kind}[{x}], %w: {kind}[{w}])"
    text = ", ".join(f"{k} = {v}" for k, v in sorted(attributes.items()))
    return f"graph @g{heads} where n in 1.. {{ %y = conv(%x, %w) {{{text}}} : {kind}[{y}] return %y }}"
