"""A graph of source operators, with its weights, to an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.codegen.onnx import control, layers, recurrent, shapes  # noqa: F401  whose rules are registered
from tilewright.codegen.onnx.nodes import write_nodes
from tilewright.codegen.onnx.writer import IR_VERSION, OPSET, Writer, info
from tilewright.ir.expr import Var
from tilewright.ir.graph import Graph
from tilewright.ops.rooms import is_room
from tilewright.support.errors import UnsupportedError

MAX_BYTES = (1 << 31) - 1
"""The largest size of a model in one file, by its format."""


def onnx_model(graph: Graph, weights: Mapping[str, Any]) -> onnx.ModelProto:
    """The ONNX model of `graph`, of operator set 21. `weights` are the arrays of the graph's parameters by name, which
    become initializers.

    Raises UnsupportedError, which lists every operator that ONNX has no words for here.
    """
    size = sum(np.asarray(weights[p.name]).nbytes for p in graph.params)
    if size > MAX_BYTES:
        raise UnsupportedError("the weights are too large for an ONNX file", expected=MAX_BYTES, got=size)
    w = Writer()
    arguments = [v for v in graph.inputs if not is_room(v)]
    w.names.update({v: "" for v in graph.inputs if is_room(v)})
    for value in (*arguments, *graph.params):
        w.name(value)
    computed = {v for n in graph.nodes for v in n.outputs}
    w.outputs = frozenset(v for v in graph.outputs if v in computed)
    w.shared.used_names.update(v.name for v in w.outputs)
    for p in graph.params:
        array = np.ascontiguousarray(weights[p.name]).astype(p.dtype.numpy, copy=False)
        w.shared.initializers.append(numpy_helper.from_array(array.reshape(np.shape(weights[p.name])), w.names[p]))
    for value in arguments:
        for axis, d in enumerate(value.shape):
            if isinstance(d, Var) and d not in w.symbols:
                w.symbols[d] = w.op("Shape", [w.names[value]], start=axis, end=axis + 1)
    write_nodes(w, graph)
    inputs = [info(w.names[v], v.type) for v in arguments]
    outputs = _outputs(w, graph)
    body = helper.make_graph([*w.shared.constant_nodes, *w.nodes], graph.name, inputs, outputs, w.shared.initializers)
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tilewright")


def _outputs(w: Writer, graph: Graph) -> list[onnx.ValueInfoProto]:
    """The declarations of the model's outputs, each with its own name; an output that is an input, a constant or a
    weight is copied."""
    results: list[onnx.ValueInfoProto] = []
    for value in graph.outputs:
        name = w.names[value]
        if value not in w.outputs or name != value.name or any(name == other.name for other in results):
            free = value in w.outputs and not any(value.name in n.output for n in w.nodes)
            (name,) = w.several("Identity", [name], [value.name if free else w.shared.fresh(value.name)])
        results.append(info(name, value.type))
    return results
