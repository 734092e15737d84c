"""A quantised graph whose weights are codes: what a file holds that other runtimes read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.ir.dtype import f32, i8, i32
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import emit1
from tilewright.transform.graph.fixed import fixed_values
from tilewright.transform.regions.captures import names_of


def folded(graph: Graph, weights: Mapping[str, Any]) -> tuple[Graph, dict[str, Any]]:
    """The graph with all that depends on weights alone computed: codes and scales of quantised weights, and arrays."""
    fixed, made = fixed_values(graph), graph.producers()
    constants = {v for n in graph.nodes if n.op == "constant" for v in n.outputs}
    reading = [n for n in graph.nodes if not all(v in fixed for v in n.outputs)]
    wanted = {v for n in reading for v in n.inputs if v is not None and v in fixed and v not in constants}
    wanted |= {v for v in graph.outputs if v in fixed and v not in constants}
    dequantised = {v: pair for v in wanted if (pair := _codes(made, v)) is not None}
    computed = [v for v in wanted if v not in dequantised] + [v for pair in dequantised.values() for v in pair]
    computed = [v for v in dict.fromkeys(computed) if v not in graph.params]
    arrays = run_graph(replace(graph, inputs=(), outputs=tuple(computed), nodes=_needed(graph, computed)), {}, weights)
    builder = GraphBuilder(graph.name, list(graph.inputs), taken=names_of(graph))
    params = {v: v for v in graph.params if v in wanted}
    known = {v.name: weights[v.name] for v in params}
    for v in computed:
        flat = _is_scale(v, dequantised)
        array = np.asarray(arrays[v.name])
        known[v.name] = array.reshape(-1) if flat else array
        params[v] = Value(v.name, TensorType(v.dtype, tuple(map(_const, known[v.name].shape)))) if flat else v
    for value, (codes, scale) in dequantised.items():
        numbers = emit1(builder, "cast", emit1(builder, "cast", params[codes], dtype=i32), dtype=f32)
        factor = params[scale]
        if factor.shape != scale.shape:
            factor = emit1(builder, "reshape", factor, shape=scale.shape)
        emit1(builder, "mul", numbers, factor)
        builder.nodes.append(replace(builder.nodes.pop(), outputs=(value,)))
    kept = [n for n in graph.nodes if n.op == "constant" or n in reading]
    nodes = tuple(n for n in (*builder.nodes, *kept))
    whole = replace(graph, params=tuple(params.values()), nodes=nodes)
    return replace(whole, nodes=whole.needed()), known


def _codes(made: Mapping[Value, Node], value: Value) -> tuple[Value, Value] | None:
    """(codes of i8, their scale) of dequantised weights."""
    node = made.get(value)
    if node is None or node.op != "mul":
        return None
    numbers, scale = node.inputs
    for _ in range(2):
        cast = None if numbers is None else made.get(numbers)
        if cast is None or cast.op != "cast":
            return None
        numbers = cast.inputs[0]
    return None if numbers is None or scale is None or numbers.dtype is not i8 else (numbers, scale)


def _is_scale(value: Value, dequantised: Mapping[Value, tuple[Value, Value]]) -> bool:
    return any(value == scale for _, scale in dequantised.values())


def _needed(graph: Graph, outputs: list[Value]) -> tuple[Node, ...]:
    return replace(graph, outputs=tuple(outputs)).needed()


def _const(n: int) -> Any:
    from tilewright.ir.expr import const

    return const(n)
