"""Store a map that some layer rounds to 16 bits as 16 bits for all of its readers.

    y = relu(...)                                     y = relu(...)
    a = conv_dot(cast(y, bf16), w)                    h = cast(y, bf16)
    z = add(y, b)                       ->            a = conv_dot(h, w);  z = add(cast(h, f32), b)

With `precision="bf16"` a layer rounds its input. If a residual sum reads the same map, the map would be stored in f32
too, and a separate kernel would round it. Sums are computed in f32 and rounded once where they are stored.

A residual sum that a product of higher `exactness` reads (JAX's `precision="highest"`) is of maps in f32. Layout
assignment notes which nodes compute such a product; this pass takes the notes away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright import ops
from tilewright.ir.dtype import FLOATS_OF_16_BITS, f32
from tilewright.ir.graph import Graph, Node, Value
from tilewright.transform.graph.fixed import fixed_values
from tilewright.transform.graph.options import Options
from tilewright.transform.regions.captures import builder_for

LAYERS = frozenset(("lowered.conv_dot", "lowered.conv_tiles", "lowered.conv_mmla"))
"""Convolutions that read maps of 16 bits."""


def store_in_16_bits(graph: Graph, options: Options) -> Graph:
    """The graph in which maps are stored in 16 bits for all readers if a layer rounds them to 16 bits. Notes of
    exactness are removed."""
    result = _rounded(graph) if options.precision == "bf16" else graph
    if all(n.selected is None for n in result.nodes):
        return result
    return replace(result, nodes=tuple(n if n.selected is None else replace(n, selected=None) for n in result.nodes))


def _rounded(graph: Graph) -> Graph:
    readers = graph.consumers()
    rounded = {v: cast for v, nodes in readers.items() if (cast := _rounds_for_all(v, nodes, readers)) is not None}
    for v in (*fixed_values(graph), *graph.inputs, *graph.outputs):
        rounded.pop(v, None)
    if not rounded:
        return graph
    builder = builder_for(graph)
    renamed: dict[Value, Value] = {}
    for node in graph.nodes:
        first = rounded.get(node.inputs[0]) if node.op == "cast" and node.inputs[0] is not None else None
        if first is not None and node.output.dtype is first.output.dtype and node.output not in graph.outputs:
            renamed[node.output] = first.output  # it stands where its operand is computed
            continue
        builder.nodes.append(replace(node, inputs=tuple(v if v is None else renamed.get(v, v) for v in node.inputs)))
        for v in node.outputs:
            if v in rounded:
                builder.nodes.append(rounded[v])
                renamed[v] = ops.emit1(builder, "cast", rounded[v].output, dtype=f32, name=f"{v.name}_rounded")
    return replace(graph, nodes=tuple(builder.nodes))


def _rounds_for_all(value: Value, nodes: Sequence[Node], readers: Mapping[Value, list[Node]]) -> Node | None:
    """The first cast of an f32 value to 16 bits that a layer reads, if the value has several readers, all pointwise,
    and no product of higher exactness reads it or a value computed from it; None otherwise."""
    if value.dtype is not f32 or len(nodes) < 2 or any(ops.get(n.op).kind != "pointwise" for n in nodes):
        return None
    if _is_exact(value, readers):
        return None
    casts = (n for n in nodes if n.op == "cast" and n.output.dtype in FLOATS_OF_16_BITS)
    return next((n for n in casts if any(r.op in LAYERS for r in readers.get(n.output, ()))), None)


def _is_exact(value: Value, readers: Mapping[Value, list[Node]]) -> bool:
    """Whether a product of higher exactness reads a value, or values computed from it element by element."""
    asked, seen = [value], {value}
    while asked:
        for node in readers.get(asked.pop(), ()):
            if node.selected is not None:
                return True
            if ops.get(node.op).kind in ("pointwise", "injective"):
                asked += [v for v in node.outputs if v not in seen]
                seen.update(node.outputs)
    return False
