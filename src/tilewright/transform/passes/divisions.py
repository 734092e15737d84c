"""Turn divisions by values that depend on weights alone into products, on machines with a fused multiply-add.

    y = div(x, d)       ->      h = lowered.reciprocal(d)               once for each set of weights
                                l = lowered.reciprocal_rest(d, h)
                                y = lowered.quotient(x, h, l)

A vector of 16 numbers is divided in as much time as some twenty of them are multiplied, and files of 8 bits divide by a
scale after every layer. The quotients are as good as a division's (`ops/lowered/quotient.py`). A divisor for only few
numbers stays: two factors would be read in its place. The factors of a constant are constants too: in a small policy
network the kernels to compute them would take as long as its products.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int, const, is_const
from tilewright.ir.graph import Graph, Value
from tilewright.ops.lowered.quotient import factors
from tilewright.ops.shape import ConstantAttrs
from tilewright.targets.target import Target
from tilewright.transform.graph.extra import GraphPass
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

SHARED = 8
"""The least number of elements that share a divisor."""


def divide_by_products(graph: Graph, target: Target) -> Graph:
    """The graph with products in place of divisions by values that depend on weights alone."""
    return rewrite(graph, [Rule(op("div", "x", "divisor"), _quotient)]) if target.isa.fma else graph


PASS = GraphPass("divide by products", divide_by_products, ("after", "widen halves"))


def _quotient(m: Match) -> Value | None:
    divisor, fixed = m["divisor"], m.rewriter.fixed
    if m.node.output.dtype is not f32 or m.node.output in fixed or divisor not in fixed:
        return None
    if not _is_shared(divisor, m.node.output):
        return None
    constant = m.rewriter.producer(divisor, "constant")
    if constant is not None:
        high, rest = (
            m.emit("constant", value=ConstantArray(a)) for a in factors(constant.of(ConstantAttrs).value.array)
        )
    else:
        high = m.once("lowered.reciprocal", divisor)
        rest = m.once("lowered.reciprocal_rest", divisor, high)
    return m.emit("lowered.quotient", m["x"], high, rest)


def _is_shared(divisor: Value, output: Value) -> bool:
    """Whether each divisor divides at least `SHARED` elements, or a symbolic number of them."""
    own = (const(1),) * (output.type.rank - divisor.type.rank) + divisor.shape
    shared = [as_int(d) for d, part in zip(output.shape, own, strict=True) if is_const(part, 1)]
    return None in shared or prod(d for d in shared if d is not None) >= SHARED
