"""Rewrites a graph with 4-bit or 8-bit weights by layer; codes and scales are computed when weights arrive.

levels = clip(round(w / scale), -L, L), i8          L = 7 or 127, a scale for 32 rows of a column
w      ~ cast(levels, f32) * scale                  which products keep as codes (`transform/layout/codes.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.dtype import f32, i8
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.quantization.qdq import computed
from tilewright.quantization.rewrite import SMALLEST
from tilewright.quantization.sites import Site
from tilewright.transform.regions.captures import names_of

GROUP = 32
"""The number of rows of a column that share a scale."""
LEVELS = {4: 7, 8: 127}
"""The largest magnitude of a code, by its bits."""


def coded(graph: Graph, bits: Mapping[Site, int]) -> Graph:
    """`graph` with the weights of the products in `bits` stored as codes of so many bits."""
    by_node = {site.output: (site, count) for site, count in bits.items()}
    builder = GraphBuilder(graph.name, list(graph.inputs), list(graph.params), reserved=names_of(graph))
    codes: dict[tuple[Value, int], Value] = {}
    for node in graph.nodes:
        site, count = by_node.get(node.output, (None, 0)) if len(node.outputs) == 1 else (None, 0)
        if site is not None:
            name = (site.weights, count)
            if name not in codes:
                codes[name] = _coded(Emitter(builder, {}, site.weights.name), site, count)
            node = replace(node, inputs=(node.inputs[0], codes[name]))
        builder.nodes.append(node)
    return replace(graph, nodes=tuple(builder.nodes))


def can_have(site: Site, bits: int) -> bool:
    """Whether the weights of a layer can be codes of `bits` bits: it must be a product, for 4 bits with whole
    groups."""
    return site.node.op == "matmul" and (bits == 8 or _depth(site) % GROUP == 0)


def errors(graph: Graph, weights: Mapping[str, Any], sites: Sequence[Site], bits: int) -> dict[str, float]:
    """The relative error of each layer's weights in codes of `bits` bits: the root of the mean square of the
    differences, divided by that of the weights."""
    exact = computed(graph, [site.weights for site in sites], weights)
    result: dict[str, float] = {}
    for site in sites:
        w = np.asarray(exact[site.weights], np.float64)
        w = w.T if site.axis == 0 else w
        groups = w.reshape(-1, _group(site), w.shape[1])
        scale = np.maximum(np.abs(groups).max(1, keepdims=True), SMALLEST) / LEVELS[bits]
        difference = np.rint(groups / scale) * scale - groups
        whole = float(np.sum(groups**2))
        result[site.name] = float(np.sqrt(np.sum(difference**2) / whole)) if whole > 0 else 0.0
    return result


def least(count: int, holds: Callable[[int], bool]) -> int | None:
    """The least number up to `count` for which a condition holds, assuming that it holds for all greater ones too; None
    if for none."""
    if not holds(count):
        return None
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def _depth(site: Site) -> int:
    return as_int(site.weights.shape[0 if site.axis else 1]) or 1


def _group(site: Site) -> int:
    depth = _depth(site)
    return GROUP if depth % GROUP == 0 else depth


def _coded(n: Emitter, site: Site, bits: int) -> Value:
    w, group, levels = site.weights, _group(site), float(LEVELS[bits])
    groups, columns = _depth(site) // group, w.shape[site.axis or 0]
    shape, axis = ((columns, groups, group), 2) if site.axis == 0 else ((groups, group, columns), 1)
    grouped = n.reshape(w, shape)
    most = n.emit("reduce_max", n.emit("abs", grouped), axes=(axis,), keepdims=True)
    scale = n.emit("div", n.emit("max", most, n.constant(SMALLEST, f32)), n.constant(levels, f32))
    rounded = n.emit("clip", n.emit("round", n.emit("div", grouped, scale)), min=-levels, max=levels)
    numbers = n.emit("mul", n.cast(n.cast(rounded, i8), f32), scale)
    return n.reshape(numbers, w.shape)
