"""An additional output of a quantised model: how many values of a call are outside of the range of codes.

A policy that a learner updates may leave the ranges of its calibration. Its codes then saturate, which only this output
reveals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import f32, i32
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.ir.interface import Interface
from tilewright.quantization.ranges import Scale
from tilewright.support.errors import UnsupportedError
from tilewright.transform.regions.captures import names_of

OUTPUT = "outside_range"


def counted(graph: Graph, ranges: Mapping[Value, Scale], interface: Interface) -> tuple[Graph, Interface]:
    """The graph and its interface with an additional output, i32[ranges]: how many elements of each value are more than
    half a step outside of the codes' range, or NaN.

    Raises UnsupportedError for models with outputs that the runtime itself reads (sizes that data decides).
    """
    if interface.extents or interface.state is not None or interface.ragged is not None:
        what = "models that keep a state, pack rows, or have extents that data decides"
        raise UnsupportedError(f"values outside of their range are not counted in {what}", where=graph.name)
    builder = GraphBuilder(graph.name, list(graph.inputs), list(graph.params), reserved=names_of(graph))
    builder.nodes.extend(graph.nodes)
    counts = [_count(builder, value, scale) for value, scale in ranges.items()]
    name = OUTPUT
    while name in interface.outputs or name in names_of(graph):
        name += "_"
    total = replace(ops.emit1(builder, "concat", *counts, axis=0), name=name)
    builder.nodes.append(replace(builder.nodes.pop(), outputs=(total,)))
    outputs = (*interface.outputs, name) if interface.outputs else ()
    graph = replace(graph, nodes=tuple(builder.nodes), outputs=(*graph.outputs, total))
    return graph, replace(interface, outputs=outputs)


def _count(builder: GraphBuilder, value: Value, scale: Scale) -> Value:
    """The number of a value's elements outside of the range of codes, i32[1]."""

    def emit(op: str, *inputs: Value, **attrs: object) -> Value:
        return ops.emit1(builder, op, *inputs, **attrs)  # type: ignore[arg-type]

    def number(n: float) -> Value:
        return emit("constant", value=ConstantArray(f32.numpy.type(n)))

    low, high = scale.range
    distance = emit("abs", emit("sub", value, number((low + high) / 2)))
    inside = emit("le", distance, number(np.nextafter(np.float32((high - low + scale.scale) / 2), np.float32(np.inf))))
    missing = emit("cast", emit("not", inside), dtype=i32)
    count = emit("reduce_sum", missing, axes=tuple(range(value.type.rank)), keepdims=False)
    return emit("reshape", count, shape=(1,))
