"""Replace functions from 8-bit to 8-bit values by look-ups in a table of all 256 results.

    y = cast(round(mul(gelu(mul(cast(q), s)), r)))    ->    t = cast(round(mul(gelu(mul(cast(0..255), s)), r)))
                                                            y = lowered.entry(q, t)

Quantised models round after each operator, so an activation of any number of operators is between two roundings. Scales
are weights, so tables are computed once per set of weights. The results are bit-equal: the same expressions compute
them.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import i8, u8
from tilewright.ir.expr import Var, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.lowered.entry import ENTRIES
from tilewright.ops.pointwise import BODIES
from tilewright.plans.framework.cost import fma_cycles, number, operations
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import cheapest
from tilewright.targets.target import Target
from tilewright.transform.graph.extra import GraphPass
from tilewright.transform.graph.fixed import fixed_values
from tilewright.transform.graph.fuse import same_shape
from tilewright.transform.graph.matching import any_op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

NUMBERS = (u8, i8)

COMPUTED, READ = "computed", "read"


def tabulate(graph: Graph, target: Target) -> Graph:
    """The graph with table look-ups in place of chains of 8-bit to 8-bit operators where look-ups are estimated to be
    faster."""
    if not any(v.dtype in NUMBERS for node in graph.nodes for v in node.inputs if v is not None):
        return graph
    chains = _Chains(graph)
    members = {v for v in chains.source if v.dtype in NUMBERS and _is_read(chains, v, target)}
    if not members:
        return graph
    tables: dict[Value, Value] = {}

    def entry(m: Match) -> Value:
        y = m.node.output
        return m.emit("lowered.entry", chains.source[y], _table(chains, tables, m, y))

    return rewrite(graph, [Rule(any_op(where=lambda node: node.outputs[0] in members), entry)])


PASS = GraphPass("tabulate", tabulate, ("after", "separate pooling"), lambda target: target.gpu is None)


class _Chains:
    """Values that are functions of one 8-bit value, element by element: `source` maps each to the first 8-bit value on
    its chain, `producers` each value to its node."""

    def __init__(self, graph: Graph) -> None:
        self.fixed = fixed_values(graph)
        self.source: dict[Value, Value] = {}
        self.producers: dict[Value, Node] = {}
        self.place = {v: k for k, node in enumerate(graph.nodes) for v in node.outputs}
        for node in graph.nodes:
            computes = node.op == "cast" or node.op in BODIES
            if computes and len(node.outputs) == 1 and node.output not in self.fixed:
                self.visit(node)

    def visit(self, node: Node) -> None:
        operands = [v for v in node.inputs if v is not None and not self.is_single(v)]
        sources = {self.source.get(v, v) for v in operands}
        if len(sources) != 1 or not all(same_shape(v, node.output) for v in operands):
            return
        (source,) = sources
        if source.dtype in NUMBERS:
            self.source[node.output] = source
            self.producers[node.output] = node

    def between(self, y: Value) -> list[Node]:
        """The nodes between the source of `y` and `y`, in order."""
        members: set[Value] = set()
        asked = [y]
        while asked:
            v = asked.pop()
            if v in self.producers and v not in members:
                members.add(v)
                asked += [u for u in self.producers[v].inputs if u is not None]
        return [self.producers[v] for v in sorted(members, key=self.place.__getitem__)]

    def is_single(self, v: Value) -> bool:
        """Whether a value is one number that is known before the call."""
        return v in self.fixed and all(is_const(d, 1) for d in v.shape)


def _is_read(chains: _Chains, y: Value, target: Target) -> bool:
    """Whether look-ups in a table are chosen for `y`: a decision by the estimated cycles of both ways."""
    nodes, elements, arithmetic = chains.between(y), number(y.type.size), target.costs.arithmetic
    computed = fma_cycles(sum(_work(node, target) for node in nodes), target.lanes(4), target)
    picks = target.isa.byte_tables >= ENTRIES
    entry = arithmetic.entry_vector / target.lanes(4) if picks else arithmetic.gathered
    key = partial(key_of_nodes, "table", nodes, target)
    return cheapest(key, {COMPUTED: elements * computed, READ: elements * entry}) == READ


def _work(node: Node, target: Target) -> float:
    """The estimated operations of a node per element."""
    body = BODIES.get(node.op)
    args = [Var(f"x{k}", v.dtype) for k, v in enumerate(node.inputs) if v is not None]
    return 1.0 if body is None else operations(body(args, node.attrs), target)


def _table(chains: _Chains, tables: dict[Value, Value], m: Match, v: Value) -> Value:
    """Emit the values of `v` for all 8-bit numbers, [256], and return them; [] if `v` is one number. `tables` has the
    ones that were emitted before."""
    if v not in tables:
        if v in chains.producers:
            node = chains.producers[v]
            inputs = [None if u is None else _table(chains, tables, m, u) for u in node.inputs]
            tables[v] = m.emit(node.op, *inputs, attrs=node.attrs, name=f"{v.name}_table")
        elif chains.is_single(v):
            tables[v] = m.once("reshape", v, shape=()) if v.type.rank else v
        else:
            numbers = np.arange(ENTRIES).astype(np.uint8).view(v.dtype.numpy)
            tables[v] = m.once("constant", value=ConstantArray(numbers))
    return tables[v]
