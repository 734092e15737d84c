"""Resizing along the last axis becomes one operator with constant taps if both sizes are known.

    i, w = resize_taps();  y = resample(x, i, w) {axis = -1}     ->   y = lowered.resampled(x)
    i, _ = resize_taps();  y = gather(x, reshape(i)) {axis = -1}  ->   y = lowered.resampled(x)

With taps in a table, vectors along the last axis need gathers; other axes are resized in whole vectors. If another axis
is enlarged before the last one, the order is exchanged, so that fewer elements are shuffled.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.index import AxisAttrs
from tilewright.ops.resize import ResampleAttrs, ResizeTapsAttrs
from tilewright.transform.graph.extra import GraphPass
from tilewright.transform.graph.matching import either, op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

MAX_SAMPLES = 1024
"""The largest number of samples of an axis for which constant taps are generated."""


TAPS = op("resize_taps", name="taps")


def resample_known(graph: Graph) -> Graph:
    """The graph with `lowered.resampled` wherever the taps of the last axis are known."""
    rules = [
        Rule(op("resample", "x", TAPS), _resampled),
        Rule(op("gather", "x", either(TAPS, op("reshape", TAPS))), _resampled),
    ]
    return rewrite(graph, rules)


PASS = GraphPass("resample known", lambda graph, _: resample_known(graph), ("after", "tabulate"))


def _resampled(m: Match) -> Value | None:
    x, last = m["x"], m["x"].type.rank - 1
    taps = replace(m.producer("taps").of(ResizeTapsAttrs), axis=last)
    size = None if as_int(taps.extent) is None else as_int(taps.size)
    if size is None or size > MAX_SAMPLES or _axis(m.node) % x.type.rank != last:
        return None
    other = _enlarged(m, x)
    if other is None:
        return m.emit("lowered.resampled", x, attrs=taps)
    row = m.emit("lowered.resampled", other.inputs[0], attrs=taps, name=x.name)
    return m.emit(other.op, row, *other.inputs[1:], attrs=other.attrs)


def _enlarged(m: Match, x: Value) -> Node | None:
    """The node that enlarges `x` along another axis, if it has only one reader; None otherwise."""
    node = m.rewriter.producer(x, "resample")
    if node is None or m.rewriter.only_reader(x) is None:
        return None
    source = node.inputs[0]
    sizes = [None if v is None else as_int(v.shape[_axis(node)]) for v in (source, x)]
    return None if sizes[0] is None or sizes[1] is None or sizes[0] >= sizes[1] else node


def _axis(node: Node) -> int:
    return node.of(ResampleAttrs).axis if node.op == "resample" else node.of(AxisAttrs).axis
