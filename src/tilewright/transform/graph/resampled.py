"""Resizing along the last axis becomes one operator that knows its taps, where both sizes are numbers.

    i, w = resize_taps();  y = resample(x, i, w) {axis = -1}     ->   y = lowered.resampled(x)
    i, _ = resize_taps();  y = gather(x, reshape(i)) {axis = -1}  ->   y = lowered.resampled(x)

Lanes of the last axis read elements at places that a table says, which is a gather; of other axes, vectors. An axis
that is made larger before the last one is made larger after it, so that fewer elements are shuffled.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import ops
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.index import AxisAttrs
from tilewright.ops.resize import ResampleAttrs, ResizeTapsAttrs
from tilewright.transform.regions.captures import names_of

MOST = 1024
"""Samples of an axis that code is written for."""


def resample_known(graph: Graph) -> Graph:
    """The graph with `lowered.resampled` wherever the taps of the last axis are known."""
    if all(node.op != "resize_taps" for node in graph.nodes):
        return graph
    return _Rewriter(graph).run()


class _Rewriter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made = {v: n for n in graph.nodes for v in n.outputs}
        self.users = graph.consumers()
        self.builder = GraphBuilder(graph.name, taken=names_of(graph))
        self.known = {n.output: taps for n in graph.nodes if (taps := self.taps(n)) is not None}

    def run(self) -> Graph:
        moved = {x for y in self.known if (x := self.enlarged(y)) is not None}
        for node in self.graph.nodes:
            if node.outputs[0] in moved:
                continue
            taps = self.known.get(node.outputs[0])
            if taps is None:
                self.builder.nodes.append(node)
                continue
            (x, *_), y = node.inputs, node.output
            before = self.enlarged(y)
            if before is None:
                self.builder.nodes.append(Node("lowered.resampled", (x,), (y,), taps))
                continue
            other = self.made[before]
            row = ops.emit1(self.builder, "lowered.resampled", other.inputs[0], attrs=taps, name=before.name)
            self.builder.nodes.append(replace(other, inputs=(row, *other.inputs[1:]), outputs=(y,)))
        return replace(self.graph, nodes=tuple(self.builder.nodes))

    def taps(self, node: Node) -> ResizeTapsAttrs | None:
        """What says the taps of a node that resizes the last axis, where they are known."""
        if node.op not in ("resample", "gather"):
            return None
        x, index = node.inputs[:2]
        assert x is not None and index is not None
        source = self.made.get(index)
        if node.op == "gather" and source is not None and source.op == "reshape" and source.inputs[0] is not None:
            source = self.made.get(source.inputs[0])
        if source is None or source.op != "resize_taps" or _axis(node) % x.type.rank != x.type.rank - 1:
            return None
        taps = replace(source.of(ResizeTapsAttrs), axis=x.type.rank - 1)
        size = None if as_int(taps.extent) is None else as_int(taps.size)
        return taps if size is not None and size <= MOST else None

    def enlarged(self, y: Value) -> Value | None:
        """What `y` resizes, where this was made larger along another axis, for `y` alone."""
        x = self.made[y].inputs[0]
        node = None if x is None else self.made.get(x)
        if x is None or node is None or node.op != "resample" or x in self.known or x in self.graph.outputs:
            return None
        source = node.inputs[0]
        sizes = [None if v is None else as_int(v.shape[_axis(node)]) for v in (source, x)]
        if len(self.users[x]) > 1 or sizes[0] is None or sizes[1] is None or sizes[0] >= sizes[1]:
            return None
        return x


def _axis(node: Node) -> int:
    return node.of(ResampleAttrs).axis if node.op == "resample" else node.of(AxisAttrs).axis


__all__ = ["resample_known"]
