"""Give memory to values that leave a graph: each output gets its own, and so do numbers that loop programs read.

return x, relu, relu         ->         return identity(x), relu, identity(relu)
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import ops
from tilewright.ir.graph import Graph, Value
from tilewright.transform.graph.memory import places
from tilewright.transform.regions.captures import builder_for, with_inputs


def materialize_outputs(graph: Graph, *, share_params: bool = False) -> Graph:
    """Give every output memory of its own: outputs that are inputs, parameters, aliases or occur twice are copied.
    Numbers that loop programs read are copied too (`_in_memory`).

    With `share_params` an output may be a parameter seen with another shape.
    """
    graph = _in_memory(graph)
    sources = {v: place.base for v, place in places(graph.nodes).items()}
    owned: set[Value] = {*graph.inputs, *(() if share_params else graph.params)}
    shared = set(graph.params) if share_params else set()
    constants = {v for n in graph.nodes if n.op == "constant" for v in n.outputs}
    builder = builder_for(graph)
    builder.nodes = list(graph.nodes)
    outputs = []
    for value in graph.outputs:
        root = value
        while root in sources:
            root = sources[root]
        if root in owned or root in constants:
            value = root = ops.emit1(builder, "identity", value, name=f"{value.name}_copy")
        if root not in shared:
            owned.add(root)
        outputs.append(value)
    if outputs == list(graph.outputs):
        return graph
    return replace(graph, nodes=tuple(builder.nodes), outputs=tuple(outputs))


def _in_memory(graph: Graph) -> Graph:
    """The graph in which constants that loop programs and checks read are copied to memory, as these cannot have
    constants in their code. The constants are those that passes have created: `hoist_constants` has made parameters of
    the model's."""
    constants = {v for n in graph.nodes if n.op == "constant" for v in n.outputs}
    sources = {v: place.base for v, place in places(graph.nodes).items()}
    builder = builder_for(graph)
    copies: dict[Value, Value] = {}
    for node in graph.nodes:
        in_memory = ops.get(node.op).loops is not None or node.op == "require"
        for value in node.inputs if in_memory else ():
            root = value
            while root in sources:
                root = sources[root]
            if value is not None and root in constants and value not in copies:
                copies[value] = ops.emit1(builder, "identity", value, name=f"{value.name}_copy")
        builder.nodes.append(with_inputs(node, copies) if in_memory else node)
    return replace(graph, nodes=tuple(builder.nodes)) if copies else graph
