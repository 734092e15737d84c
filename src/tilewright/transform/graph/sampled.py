"""Grid sampling computes places and weights once for all channels, and reads channels as vectors.

    y = grid_sample(x, grid)   ->   i, w = lowered.sample_taps(grid)
                                    y = transpose(lowered.sampled(transpose(x), i, w) {axis = -1})

Where `x` has few channels, or many more pixels than are read, it stays as it is, and lanes gather their taps. Of one
channel nothing is computed twice.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

from tilewright import ops
from tilewright.ir.dtype import f32, f64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.lowered.sampled import SampledAttrs, SampleTapsAttrs
from tilewright.ops.sample import GridSampleAttrs
from tilewright.targets.costs import Copies
from tilewright.targets.target import Target
from tilewright.transform.regions.captures import names_of


def sample_once(graph: Graph, target: Target) -> Graph:
    """The graph with `lowered.sampled` in the place of `grid_sample` of several channels."""
    if all(node.op != "grid_sample" for node in graph.nodes):
        return graph
    builder = GraphBuilder(graph.name, taken=names_of(graph))
    for node in graph.nodes:
        x = node.inputs[0] if node.op == "grid_sample" else None
        if x is None or as_int(x.shape[1]) == 1:
            builder.nodes.append(node)
        else:
            _lower(builder, node, x, target.costs.copies)
    return replace(graph, nodes=tuple(builder.nodes))


def _lower(builder: GraphBuilder, node: Node, x: Value, costs: Copies) -> None:
    (y,), (_, grid), given = node.outputs, node.inputs, node.of(GridSampleAttrs)
    dtype = f64 if x.type.dtype is f64 else f32
    extents = tuple(d if (known := as_int(d)) is None else known for d in x.shape[2:])
    same = {f.name: getattr(given, f.name) for f in fields(given)}
    taps = SampleTapsAttrs(**same, extents=extents, dtype=dtype)
    index, weight = ops.emit(builder, "lowered.sample_taps", grid, attrs=taps)
    if not _as_vectors(x, y, costs):
        builder.nodes.append(Node("lowered.sampled", (x, index, weight), (y,), SampledAttrs(1)))
        return
    last = x.type.rank - 1
    rows = ops.emit1(builder, "transpose", x, perm=(0, *range(2, last + 1), 1))
    sampled = ops.emit1(builder, "lowered.sampled", rows, index, weight, attrs=SampledAttrs(last))
    back = ops.attributes("transpose", {"perm": (0, last, *range(1, last))})
    builder.nodes.append(Node("transpose", (sampled,), (y,), back))


def _as_vectors(x: Value, y: Value, costs: Copies) -> bool:
    """Whether channels are worth a transposition of `x`."""
    channels = as_int(x.shape[1])
    sizes = [[as_int(d) for d in v.shape[2:]] for v in (x, y)]
    before, after = (math.prod(d or 0 for d in s) if None not in s else None for s in sizes)
    sparse = before is not None and after is not None and before >= costs.sampled_sparse * after
    return (channels is None or channels >= costs.sampled_channels) and not sparse


__all__ = ["sample_once"]
