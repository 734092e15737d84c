"""Apply graph passes to the bodies of loops and branches.

Weights that a body captures are its params, so that the passes pack them for the body's products. Nodes that depend on
params alone then move out of the body, and on to `prepare`. Other values that a loop captures are equal in all
iterations: they are params too, and nodes that depend on them alone are computed before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from tilewright import ops
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, as_expr, as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.control import LoopAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.materialize import materialize_outputs
from tilewright.transform.graph.views import place_views
from tilewright.transform.regions.captures import fixed_values, hoisted, names_of, recaptured, region
from tilewright.transform.work import polynomial

Pass = Callable[[Graph], Graph]


def optimise_bodies(graph: Graph, passes: Pass) -> Graph:
    """The graph with `passes` applied to all bodies, and nodes that depend on weights alone moved out of them."""
    if not any(node.bodies for node in graph.nodes):
        return graph
    return _Optimiser(graph, passes, graph.params).run()


@dataclass(slots=True)
class _Optimiser:
    """Rewrites one graph. `weights` are those of its values that depend on the model's weights or constants alone."""

    graph: Graph
    passes: Pass
    weights: Collection[Value]

    def run(self) -> Graph:
        graph = self.graph
        used_names = names_of(graph)
        fixed = fixed_values(graph, self.weights)
        constants = {n.output: n for n in graph.nodes if n.op == "constant"}
        carriers = [*graph.inputs, *(v for n in graph.nodes for v in n.outputs)]
        nodes: list[Node] = []
        for node in graph.nodes:
            if node.bodies:
                params = {v for v in region(node).captured if v in fixed or _invariant(node, v)}
                node = recaptured(node, params, constants, carriers)
                node = self.optimised(node, fixed)
                outside, node = hoisted(node, used_names, lambda n: n.op != "broadcast")
                result = region(node)  # what only left nodes have read is captured no more
                node = recaptured(node, set(result.captured[result.inputs :]), {}, carriers)
                node = node.with_bodies(lambda body: place_views(materialize_outputs(body)))
                nodes += outside
                node = self.operands(node, nodes, used_names, constants)
            nodes.append(node)
        return replace(graph, nodes=tuple(nodes))

    def optimised(self, node: Node, fixed: Collection[Value]) -> Node:
        """The node with its bodies after all passes; `fixed` are the values that depend on weights alone."""
        result = region(node)
        params = result.captured[result.inputs :]

        def body(graph: Graph) -> Graph:
            weights = [v for v, outer in zip(graph.params, params, strict=True) if outer in fixed]
            graph = self.passes(graph)
            if any(n.bodies for n in graph.nodes):
                graph = _Optimiser(graph, self.passes, weights).run()
            return graph

        return node.with_bodies(body)

    def operands(self, node: Node, nodes: list[Node], used_names: set[str], constants: dict[Value, Node]) -> Node:
        """`node` with its operands in memory: `constants` are copied there, and numbers of iterations are computed
        unless they are polynomials of the symbols. New nodes are added to `nodes`, new names to `used_names`."""
        builder = GraphBuilder(self.graph.name, reserved=used_names, nodes=nodes)
        inputs = [
            ops.emit1(builder, "identity", v, name=v.name) if v is not None and v in constants else v
            for v in node.inputs
        ]
        if isinstance(node.attrs, LoopAttrs):
            trip = trip_of(node)
            if trip is not None and polynomial(trip) is None:
                count = ops.emit1(builder, "range", start=trip, step=0, size=1, dtype=i64)
                count = ops.emit1(builder, "reshape", count, shape=())
                arguments = inputs[0]
                inputs[0] = count if arguments is None else ops.emit1(builder, "min", arguments, count)
        return replace(node, inputs=tuple(inputs))


def _invariant(node: Node, value: Value) -> bool:
    """Whether a captured value is the same in all iterations and has a known size."""
    return isinstance(node.attrs, LoopAttrs) and as_int(value.type.size) is not None


def trip_of(node: Node) -> Expr | None:
    """The largest number of iterations of a loop, as far as shapes determine it; None if they do not."""
    attrs = node.of(LoopAttrs)
    if attrs.scanned:
        sequence = node.inputs[2 + attrs.carried]
        assert sequence is not None
        return sequence.shape[0]
    return None if attrs.trip is None else as_expr(attrs.trip)
