"""Grid sampling computes places and weights once for all channels, and reads channels as vectors.

    y = grid_sample(x, grid)   ->   i, w = lowered.sample_taps(grid)
                                    y = transpose(lowered.sampled(transpose(x), i, w) {axis = -1})

If `x` has few channels, or many more pixels than are read, grid sampling stays as it is, and lanes gather their taps.
With one channel nothing is computed twice anyway.
"""

from __future__ import annotations

import math
from dataclasses import fields
from functools import partial

from tilewright import ops
from tilewright.ir.dtype import f32, f64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Value
from tilewright.ops.lowered.sampled import SampledAttrs, SampleTapsAttrs
from tilewright.ops.sample import GridSampleAttrs
from tilewright.targets.costs import Copies
from tilewright.targets.target import Target
from tilewright.transform.graph.extra import GraphPass
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite


def sample_once(graph: Graph, target: Target) -> Graph:
    """The graph with `lowered.sampled` in the place of `grid_sample` of several channels."""
    return rewrite(graph, [Rule(op("grid_sample", "x", "grid"), partial(_sampled, target.costs.copies))])


PASS = GraphPass("sample once", sample_once, ("after", "resample known"), lambda target: target.gpu is None)


def _sampled(costs: Copies, m: Match) -> Value | None:
    x, arguments = m["x"], m.node.of(GridSampleAttrs)
    if as_int(x.shape[1]) == 1:
        return None
    dtype = f64 if x.type.dtype is f64 else f32
    extents = tuple(d if (known := as_int(d)) is None else known for d in x.shape[2:])
    same = {f.name: getattr(arguments, f.name) for f in fields(arguments)}
    taps = SampleTapsAttrs(**same, extents=extents, dtype=dtype)
    index, weight = ops.emit(m.rewriter.builder, "lowered.sample_taps", m["grid"], attrs=taps)
    if not _as_vectors(x, m.node.output, costs):
        return m.emit("lowered.sampled", x, index, weight, attrs=SampledAttrs(1))
    last = x.type.rank - 1
    rows = m.emit("transpose", x, perm=(0, *range(2, last + 1), 1))
    sampled = m.emit("lowered.sampled", rows, index, weight, attrs=SampledAttrs(last))
    return m.emit("transpose", sampled, perm=(0, last, *range(1, last)))


def _as_vectors(x: Value, y: Value, costs: Copies) -> bool:
    """Whether reading channels as vectors is worth the transposition of `x` to compute `y`."""
    channels = as_int(x.shape[1])
    sizes = [[as_int(d) for d in v.shape[2:]] for v in (x, y)]
    before, after = (math.prod(d or 0 for d in s) if None not in s else None for s in sizes)
    sparse = before is not None and after is not None and before >= costs.sampled_sparse * after
    return (channels is None or channels >= costs.sampled_channels) and not sparse


__all__ = ["sample_once"]
