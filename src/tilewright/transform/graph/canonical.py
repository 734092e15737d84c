"""The canonical form of a graph: no node twice, no unused node, no operator without effect, constants folded, and no
concatenation of neighbouring slices.

    b = reshape(a)  to a's own shape             ->     a, in all readers
    y = cast(constant)                           ->     y = constant
    y = concat(x[0:8], x[8:16], z)               ->     y = concat(x, z)
    y = add(pad(p, 0, 4), pad(q, 4, 0))          ->     y = concat(p, q)
    a = tanh(x); b = tanh(x)                     ->     a, in all readers of b

No rule depends on the readers of a value, and nodes are visited in order: one sweep of the driver reaches the fixpoint.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.expr import is_const
from tilewright.ir.graph import Graph, Value
from tilewright.ops.shape import ConstantAttrs, TransposeAttrs
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.pads import JOIN_PADS
from tilewright.transform.graph.rewrite import Match, Rule, eliminate_dead, rewrite
from tilewright.transform.graph.views import JOIN_SLICES


def canonicalise(graph: Graph) -> Graph:
    """The graph with equal nodes merged, unused nodes and operators without effect removed, constants folded, and
    neighbouring slices joined. Outputs keep their names, and with them the nodes that compute them."""
    result = rewrite(graph, RULES, repeat=True, common=True)
    return eliminate_dead(graph) if result is graph else result


def eliminate_common(graph: Graph) -> Graph:
    """The graph in which equal nodes are computed once. Outputs keep their own names."""
    return rewrite(graph, (), common=True)


def _source(m: Match) -> Value | None:
    """The operand of an operator that returns it unchanged; None for other nodes."""
    x = m.node.inputs[0]  # of a surrogate also what its gradient goes to, which matters no more
    permutes = m.node.op == "transpose" and m.node.of(TransposeAttrs).perm != tuple(range(m.node.output.type.rank))
    return None if m.is_output or permutes else x


def _shape_before(m: Match) -> Value | None:
    """The value that a chain of reshapes started from, if the last reshape restores its shape."""
    return None if m.is_output else m["x"]


def _folded(m: Match) -> Value | None:
    """Emit a constant for a cast, reshape or broadcast of a constant number."""
    if not all(is_const(d) for d in m.node.output.shape):
        return None
    (array,) = ops.get(m.node.op).reference([m.producer("c").of(ConstantAttrs).value.array], m.node.attrs)
    return m.emit("constant", attrs=ConstantAttrs(ConstantArray(array)))


RULES = (
    Rule(op(("reshape", "identity", "stop_gradient", "surrogate", "broadcast", "cast", "transpose"), "x"), _source),
    Rule(op("reshape", op("reshape", "x", through=("reshape",))), _shape_before),
    Rule(op(("cast", "reshape"), op("constant", name="c")), _folded),
    JOIN_SLICES,
    JOIN_PADS,
)


__all__ = ["canonicalise", "eliminate_common"]
