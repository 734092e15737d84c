"""Outliers of activations moved into weights, channel by channel (Xiao et al., SmoothQuant, 2023, arXiv 2211.10438).

    y = x w    ->    y = (x / s) (s w),    s = sqrt(max |x| / max |w|) of each channel of x

A channel of a transformer that is many times larger than the others takes most levels of a tensor's scale. The numbers
s are computed from the samples and the first weights, and are constants of the program, which stay when weights are
updated.
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
"""The largest share of the layers' error, relative to that without smoothing, with which a value is smoothed."""

Factors = dict[Value, Any]
"""The type of smoothing factors: for each value that products read its 1 / s, f32[channels]."""


def factors_of(maker: Maker, choices: Sequence[Mapping[int, Feed]], sites: Sequence[Site]) -> list[Factors]:
    """The factors of values that products read, from the largest magnitudes of each channel, for each choice of
    samples."""
    groups: dict[Value, list[Site]] = {}
    for site in sites:
        x = site.node.inputs[0]
        if site.node.op == "matmul" and site.axis is not None and x is not None and as_int(x.shape[-1]) is not None:
            groups.setdefault(x, []).append(site)
    if not groups:
        return [{} for _ in choices]
    model = maker.probe(_maxima(maker.read.graph, groups))
    feeds = {index: feed for choice in choices for index, feed in choice.items()}
    most: dict[int, list[Any]] = {}
    expect(len(feeds))
    for index, feed in feeds.items():
        most[index] = [np.asarray(a, np.float64) for a in model.run(feed).values()]
        tell(f"channels of sample {index + 1}")
    return [
        _factors(groups, [np.max(arrays, axis=0) for arrays in zip(*(most[k] for k in choice), strict=True)])
        for choice in choices
    ]


def _factors(groups: Mapping[Value, Sequence[Site]], most: Sequence[Any]) -> Factors:
    """For each value of `groups` the factors of its channels: sqrt(w / x) for the largest magnitudes x of a channel and
    w of the weights that multiply it; 1 where one of these is 0. `most` has the arrays of magnitudes: for each value
    its own, then those of its weights."""
    result: Factors = {}
    arrays = iter(most)
    for x, members in groups.items():
        outer, inner = next(arrays), np.max([next(arrays) for _ in members], axis=0)
        usable = (outer > 0) & (inner > 0)
        ratio = np.sqrt(np.where(usable, inner, 1.0) / np.where(usable, outer, 1.0))
        result[x] = ratio.astype(np.float32)
    return result


def smoothed(maker: Maker, choices: Sequence[Mapping[Value, Any]]) -> list[Maker]:
    """The model in which some values are smoothed where products with weights read them: one graph, with each of
    several choices of factors for these values."""
    factors = choices[0]
    graph, read = maker.read.graph, maker.read
    builder = GraphBuilder(graph.name, list(graph.inputs), list(graph.params), reserved=names_of(graph))
    weights, fixed, products = read.weights, set(read.interface.fixed), dict[Value, tuple[Value, Value]]()
    sites = {site.output: site for site in sites_of(graph)}
    for node in graph.nodes:
        x = node.inputs[0] if node.inputs else None
        site = sites.get(node.output) if x in factors and len(node.outputs) == 1 else None
        if site is None or x is None:
            builder.nodes.append(node)
            continue
        if x not in products:
            param = builder.param(f"{x.name}.smoothing", TensorType(f32, (x.shape[-1],)))
            fixed.add(param.name)
            products[x] = (ops.emit1(builder, "mul", x, param, name=f"{x.name}_smoothed"), param)
        value, param = products[x]
        shape = (1, x.shape[-1]) if site.axis == 0 else (x.shape[-1], 1)
        inverse = ops.emit1(builder, "reshape", param, shape=shape)
        w = ops.emit1(builder, "div", site.weights, inverse, name=f"{site.weights.name}_smoothed")
        builder.nodes.append(replace(node, inputs=(value, w)))
    whole = replace(graph, params=tuple(builder.params), nodes=tuple(builder.nodes))
    interface = replace(read.interface, fixed=frozenset(fixed))
    return [
        replace(maker, read=replace(read, graph=whole, weights={**weights, **chosen}, interface=interface))
        for chosen in ({param.name: each[x] for x, (_, param) in products.items()} for each in choices)
    ]


def worth(
    factors: Factors, sites: Sequence[Site], unsmoothed: Mapping[str, LayerError], smooth: Mapping[str, LayerError]
) -> Factors:
    """The factors of values whose products have a clearly smaller total error with them (`smooth`) than without
    (`unsmoothed`)."""
    before, after = dict[Value, float](), dict[Value, float]()
    for site in sites:
        x = site.node.inputs[0]
        if x is not None and x in factors:
            before[x] = before.get(x, 0.0) + unsmoothed[site.name].relative
            after[x] = after.get(x, 0.0) + smooth[site.name].relative
    return {x: array for x, array in factors.items() if after[x] < BETTER * before[x]}


def _maxima(graph: Graph, groups: Mapping[Value, Sequence[Site]]) -> Graph:
    """A graph that computes the largest magnitudes of each channel of values, and of the weights that multiply them."""
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
