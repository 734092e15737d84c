"""Layers with f16 operands: weights and values between layers are stored as f16, and sums are f32. All other operators,
such as norms and softmax, compute in f32.

    y = matmul(x, w)   ->   y = matmul(cast(x), cast(w))  in f32          y = conv(x, w)   ->   y = conv(x', w')
                                                              x' = cast(cast(x, f16), f32), w' likewise
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.ir.dtype import f16, f32
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.matmul import MatmulAttrs
from tilewright.quantization.qdq import computed
from tilewright.quantization.sites import Site
from tilewright.transform.regions.captures import builder_for


def in_f16(graph: Graph, sites: Iterable[Site]) -> Graph:
    """`graph` with the operands of the layers `sites` rounded to f16."""
    layers = {site.output for site in sites}
    builder = builder_for(graph)
    rounded: dict[Value, Value] = {}

    def narrow(value: Value) -> Value:
        if value not in rounded:
            rounded[value] = ops.emit1(builder, "cast", value, dtype=f16, name=f"{value.name}_f16")
        return rounded[value]

    def changed(node: Node) -> Node:
        operands = [narrow(v) for v in node.inputs[:2] if v is not None]
        if node.op == "matmul":
            return replace(node, inputs=tuple(operands), attrs=replace(node.of(MatmulAttrs), dtype=f32))
        wide = [ops.emit1(builder, "cast", v, dtype=f32) for v in operands]
        return replace(node, inputs=tuple(wide))

    for node in graph.nodes:
        is_layer = len(node.outputs) == 1 and node.output in layers
        builder.nodes.append(changed(node) if is_layer else node)
    return replace(graph, nodes=tuple(builder.nodes))


def beyond(graph: Graph, weights: Mapping[str, Any], sites: Iterable[Site]) -> list[str]:
    """The names of the layers whose weights exceed the range of f16, or are not finite."""
    sites = tuple(sites)
    exact = computed(graph, [site.weights for site in sites], weights)
    most = float(np.finfo(np.float16).max)
    return [s.name for s in sites if not float(np.abs(np.asarray(exact[s.weights])).max(initial=0)) <= most]
