"""Recognise softmax: the maximum, differences, powers, sum and quotient as which JAX writes it become one operator.

    m = reduce_max(x); e = exp(x - m); y = e / reduce_sum(e)   ->   y = softmax(x)

The subtraction of the maximum does not change the quotient; the maximum may have passed through `max` with minus
infinity, which changes nothing, and through reshapes that put the reduced dimension back.
"""

from __future__ import annotations

import math

from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, Value
from tilewright.ops.reduce import ReduceAttrs
from tilewright.transform.graph.matching import Operand, either, op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

PASSED = ("reshape", "identity", "stop_gradient")
"""Operators that may stand between a reduction and the operator that reads its result."""


def _reduced(name: str, source: str) -> Operand:
    """The pattern of the reduction `name` of a value, perhaps followed by reshapes or a maximum with minus infinity."""
    reduction = op(name, source, name=name, through=PASSED)
    return either(reduction, op("max", reduction, -math.inf, through=PASSED))


EXP = op("exp", op("sub", "x", _reduced("reduce_max", "x"), name="difference"), name="e")


def recognise_softmax(graph: Graph) -> Graph:
    """The graph in which each quotient that computes a softmax is that one operator."""
    return rewrite(graph, [Rule(op("div", EXP, _reduced("reduce_sum", "e")), _softmax)])


def _softmax(m: Match) -> Value | None:
    x = m["x"]
    (axis, *more), other = (m.producer(name).of(ReduceAttrs).axes for name in ("reduce_max", "reduce_sum"))
    ones = tuple(const(1) if k == axis else d for k, d in enumerate(x.shape))
    rows = (m.producer("difference").inputs[1], m.node.inputs[1])  # broadcast along the axis alone
    if more or other != (axis,) or any(v is None or v.shape != ones for v in rows):
        return None
    return m.emit("softmax", x, axis=axis) if x.dtype.is_float else None
