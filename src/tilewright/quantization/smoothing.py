"""Outliers of activations moved into weights, channel by channel (Xiao et al., SmoothQuant, 2023, arXiv 2211.10438).

    y = x w    ->    y = (x / s) (s w),    s = sqrt(max |x| / max |w|) of each channel of x

A channel of a transformer that is many times larger than the others takes most levels of a tensor's scale. The numbers
s are constants of the program, from the samples: new weights keep those of the first ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.quantization.calibrate import LayerError, Maker
from tilewright.quantization.samples import Feed
from tilewright.quantization.sites import Site, sites_of
from tilewright.support.progress import expect, tell
from tilewright.transform.regions.captures import names_of

BETTER = 0.8
"""The share of a layer's error without smoothing below which the error with it must lie for it to be kept."""

Factors = dict[Value, Any]
"""1 / s of values that products read, f32[channels]."""


def factors_of(maker: Maker, feeds: Sequence[Feed], sites: Sequence[Site]) -> Factors:
    """The factors of what products read, by the greatest magnitudes of each channel on the samples."""
    groups: dict[Value, list[Site]] = {}
    for site in sites:
        x = site.node.inputs[0]
        if site.node.op == "matmul" and site.axis is not None and x is not None and as_int(x.shape[-1]) is not None:
            groups.setdefault(x, []).append(site)
    if not groups:
        return {}
    model = maker.probe(_maxima(maker.read.graph, groups))
    most: list[Any] = []
    expect(len(feeds))
    for index, feed in enumerate(feeds):
        arrays = [np.asarray(a, np.float64) for a in model.run(feed).values()]
        most = [np.maximum(a, b) for a, b in zip(most, arrays, strict=True)] if most else arrays
        tell(f"channels of sample {index + 1}")
    result: Factors = {}
    arrays_left = iter(most)
    for x, members in groups.items():
        outer, inner = next(arrays_left), np.max([next(arrays_left) for _ in members], axis=0)
        usable = (outer > 0) & (inner > 0)
        ratio = np.sqrt(np.where(usable, inner, 1.0) / np.where(usable, outer, 1.0))
        result[x] = ratio.astype(np.float32)
    return result


def smoothed(maker: Maker, factors: Mapping[Value, Any]) -> Maker:
    """The model with these values smoothed where products with weights read them."""
    graph, read = maker.read.graph, maker.read
    builder = GraphBuilder(graph.name, list(graph.inputs), list(graph.params), reserved=names_of(graph))
    weights, fixed, products = dict(read.weights), set(read.interface.fixed), dict[Value, tuple[Value, Value]]()
    sites = {site.output: site for site in sites_of(graph)}
    for node in graph.nodes:
        x = node.inputs[0] if node.inputs else None
        site = sites.get(node.output) if x in factors and len(node.outputs) == 1 else None
        if site is None or x is None:
            builder.nodes.append(node)
            continue
        if x not in products:
            array = factors[x]
            param = builder.param(f"{x.name}.smoothing", TensorType(f32, (x.shape[-1],)))
            weights[param.name] = array
            fixed.add(param.name)
            products[x] = (ops.emit1(builder, "mul", x, param, name=f"{x.name}_smoothed"), param)
        value, param = products[x]
        shape = (1, x.shape[-1]) if site.axis == 0 else (x.shape[-1], 1)
        inverse = ops.emit1(builder, "reshape", param, shape=shape)
        w = ops.emit1(builder, "div", site.weights, inverse, name=f"{site.weights.name}_smoothed")
        builder.nodes.append(replace(node, inputs=(value, w)))
    whole = replace(graph, params=tuple(builder.params), nodes=tuple(builder.nodes))
    interface = replace(read.interface, fixed=frozenset(fixed))
    return replace(maker, read=replace(read, graph=whole, weights=weights, interface=interface))


def worth(
    factors: Factors, sites: Sequence[Site], unsmoothed: Mapping[str, LayerError], smooth: Mapping[str, LayerError]
) -> Factors:
    """The factors by which the errors of the products that read a value become smaller, all together."""
    before, after = dict[Value, float](), dict[Value, float]()
    for site in sites:
        x = site.node.inputs[0]
        if x is not None and x in factors:
            before[x] = before.get(x, 0.0) + unsmoothed[site.name].relative
            after[x] = after.get(x, 0.0) + smooth[site.name].relative
    return {x: array for x, array in factors.items() if after[x] < BETTER * before[x]}


def _maxima(graph: Graph, groups: Mapping[Value, Sequence[Site]]) -> Graph:
    """The greatest magnitudes of each channel of values, and of the weights of each product that reads them."""
    builder = GraphBuilder(
        graph.name, list(graph.inputs), list(graph.params), list(graph.nodes), reserved=names_of(graph)
    )
    outputs: list[Value] = []
    for x, members in groups.items():
        sizes = [(x, tuple(range(x.type.rank - 1)))] + [(s.weights, (s.axis or 0,)) for s in members]
        for value, axes in sizes:
            size = ops.emit1(builder, "abs", value)
            outputs.append(ops.emit1(builder, "reduce_max", size, axes=axes, keepdims=False) if axes else size)
    return replace(graph, nodes=tuple(builder.nodes), outputs=tuple(outputs))
