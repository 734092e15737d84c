"""A quantised graph whose weights are stored as codes, for ONNX files that other runtimes read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.codegen.onnx.quantised import linear_nodes
from tilewright.ir.dtype import f32, i8, i32
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import emit1
from tilewright.transform.graph.fixed import fixed_values
from tilewright.transform.regions.captures import names_of


def folded(graph: Graph, weights: Mapping[str, Any]) -> tuple[Graph, dict[str, Any]]:
    """`graph` with all values that depend on weights alone computed: codes and scales of quantised weights become
    parameters. Also the arrays of its parameters."""
    fixed = fixed_values(graph)
    constants = {v for n in graph.nodes if n.op == "constant" for v in n.outputs}
    reading = [n for n in graph.nodes if not all(v in fixed for v in n.outputs)]
    wanted = {v for n in reading for v in n.inputs if v is not None and v in fixed and v not in constants}
    wanted |= {v for v in graph.outputs if v in fixed and v not in constants}
    linear = linear_nodes(graph)
    coded = {v: linear[v] for v in wanted if v in linear and linear[v].value.dtype is i8}
    scales = {match.scale: graph.producers()[v].inputs[1] for v, match in coded.items()}
    values = [v for v in wanted if v not in coded]
    values += [part for match in coded.values() for part in (match.value, match.scale)]
    arrays = computed(graph, [v for v in dict.fromkeys(values) if v not in graph.params], weights)
    builder = GraphBuilder(graph.name, list(graph.inputs), reserved=names_of(graph))
    params = {v: v for v in graph.params if v in wanted}
    known = {v.name: weights[v.name] for v in params}
    for v, array in arrays.items():
        known[v.name] = array.reshape(-1) if v in scales else array
        params[v] = Value(v.name, TensorType(v.dtype, tuple(map(const, known[v.name].shape))))
    for value, match in coded.items():
        numbers = emit1(builder, "cast", emit1(builder, "cast", params[match.value], dtype=i32), dtype=f32)
        shaped = scales[match.scale]
        assert shaped is not None
        emit1(builder, "mul", numbers, emit1(builder, "reshape", params[match.scale], shape=shaped.shape))
        builder.nodes.append(replace(builder.nodes.pop(), outputs=(value,)))
    others = [n for n in graph.nodes if n.op == "constant" or n in reading]
    whole = replace(graph, params=tuple(params.values()), nodes=(*builder.nodes, *others))
    return replace(whole, nodes=whole.needed()), known


def computed(graph: Graph, values: Sequence[Value], weights: Mapping[str, Any]) -> dict[Value, Any]:
    """The arrays of the given values, which depend on weights alone."""
    results = [v for v in values if v not in graph.params]
    alone = replace(graph, inputs=(), outputs=tuple(results))
    arrays = run_graph(replace(alone, nodes=alone.needed()), {}, weights)
    return {v: np.asarray(arrays[v.name] if v in results else weights[v.name]) for v in values}
