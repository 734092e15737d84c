"""Recognise GELU: the products and sums as which exporters write it become one operator.

    y = x * (erf(x / sqrt(2)) + 1) * 0.5                                         ->   y = gelu(x)
    y = x * 0.5 * (tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)) + 1)             ->   y = gelu(x, approximate="tanh")

The order of products and sums does not matter: both sides are compared as polynomials in x and in the value of erf or
tanh.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from tilewright.ir.graph import Graph, Node, Value
from tilewright.transform.graph.matching import Facts, op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

Polynomial = dict[tuple[int, int], float]
"""A polynomial in x and in the value of erf or tanh: each coefficient under the two powers."""

FORMS = {"erf": "none", "tanh": "tanh"}
RESULT: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}
INNER: dict[str, Polynomial] = {
    "erf": {(1, 0): math.sqrt(0.5)},
    "tanh": {(1, 0): math.sqrt(2 / math.pi), (3, 0): 0.044715 * math.sqrt(2 / math.pi)},
}
CLOSE = 1e-6
"""The relative difference of coefficients that rounding may cause."""
DEPTH = 6
"""The longest chain of nodes that is followed between x and erf or tanh, or from there to the result."""
PRODUCTS = ("add", "sub", "mul", "div")
"""Operators that may stand between erf or tanh and the result."""
STEPS = (*PRODUCTS, "pow", "neg")
"""Operators whose result is a polynomial if their operands are polynomials."""


def recognise_activations(graph: Graph) -> Graph:
    """The graph in which each expression that equals GELU is one `gelu` operator."""
    reached = _reached(graph)
    if not reached:
        return graph
    return rewrite(graph, [Rule(op(PRODUCTS, where=lambda node: node.outputs[0] in reached), partial(_gelu, {}))])


def _reached(graph: Graph) -> dict[Value, int]:
    """The values that are computed from erf or tanh by at most `DEPTH` products and sums, each with that number of
    nodes."""
    reached: dict[Value, int] = {}
    for node in graph.nodes:
        if node.op in FORMS:
            reached[node.outputs[0]] = 0
        elif node.op in PRODUCTS and reached:
            steps = 1 + min(reached.get(v, DEPTH) for v in node.inputs if v is not None)
            if steps <= DEPTH:
                reached[node.outputs[0]] = steps
    return reached


Arguments = dict[Value, list[tuple[Value, float]]]
"""For each result of erf or tanh the candidates (x, sign) for GELU's input x: the function's argument is GELU's
polynomial of x, times the sign."""


def _gelu(known: Arguments, m: Match) -> Value | None:
    """Emit GELU for a match whose last product computes it; None if no candidate fits."""
    y, facts = m.node.output, m.rewriter
    # A model of 16-bit floats rounds between the products, which its results show.
    if not y.dtype.is_float or y.dtype.bits < 32:
        return None
    for f in _sources(facts, y, DEPTH, PRODUCTS):
        function = facts.producer(f, *FORMS)
        if function is None:
            continue
        if f not in known:
            known[f] = list(_arguments(facts, function))
        for x, sign in known[f]:
            wanted = {**RESULT, (1, 1): RESULT[1, 1] * sign}
            if y.type == x.type and _close(_polynomial(facts, y, x, f, DEPTH), wanted):
                return m.emit("gelu", x, approximate=FORMS[function.op])
    return None


def _arguments(facts: Facts, function: Node) -> Iterator[tuple[Value, float]]:
    (z,) = function.inputs
    assert z is not None
    for x in _sources(facts, z, DEPTH, STEPS):
        inner = _polynomial(facts, z, x, None, DEPTH)
        # Both functions are odd, so that f(-z) may stand with the other sign.
        yield from ((x, sign) for sign in (1.0, -1.0) if _close(inner, _times(INNER[function.op], sign)))


def _sources(facts: Facts, value: Value, depth: int, steps: Sequence[str]) -> Iterator[Value]:
    """The values from which `value` is computed by nodes with operators in `steps`, at most `depth` nodes back. Each is
    yielded once; constant numbers are not."""
    met: dict[Value, int] = {}

    def of(value: Value, depth: int) -> Iterator[Value]:
        node = facts.producer(value, *steps)
        for v in node.inputs if node is not None and depth else ():
            if v is None or met.get(v, -1) >= depth or facts.number(v) is not None:
                continue
            if v not in met:
                yield v
            met[v] = depth
            yield from of(v, depth - 1)

    return of(value, depth)


def _polynomial(facts: Facts, value: Value, x: Value, f: Value | None, depth: int) -> Polynomial | None:
    """`value` as a polynomial in `x` and `f`, at most `depth` nodes deep; None if it is not one."""
    known: dict[tuple[Value | None, int], Polynomial | None] = {}

    def of(value: Value | None, depth: int) -> Polynomial | None:
        if (value, depth) not in known:
            known[value, depth] = expanded(value, depth)
        return known[value, depth]

    def expanded(value: Value | None, depth: int) -> Polynomial | None:
        if value in (x, f):
            return {(1, 0) if value == x else (0, 1): 1.0}
        constant = facts.number(value)
        if constant is not None:
            return {(0, 0): constant}
        node = facts.producer(value, *STEPS)
        if node is None or depth == 0:
            return None
        a = of(node.inputs[0], depth - 1)
        if a is None or len(node.inputs) == 1:
            return None if a is None else _times(a, -1.0)
        b = of(node.inputs[1], depth - 1)
        return None if b is None else _combined(node.op, a, b)

    return of(value, depth)


def _combined(op: str, a: Polynomial, b: Polynomial) -> Polynomial | None:
    """The result of an operator of `STEPS` on two polynomials; None if that is not a polynomial."""
    divisor = b.get((0, 0), 0.0) if b.keys() == {(0, 0)} else 0.0
    match op:
        case "add":
            return _sum(a, b, 1.0)
        case "sub":
            return _sum(a, b, -1.0)
        case "mul":
            return _product(a, b)
        case "div" if divisor:
            return _product(a, {(0, 0): 1.0 / divisor})
        case "pow" if divisor in (2.0, 3.0):
            square = _product(a, a)
            return square if divisor == 2.0 else _product(square, a)
    return None


def _sum(a: Polynomial, b: Polynomial, sign: float) -> Polynomial:
    return {k: a.get(k, 0.0) + sign * b.get(k, 0.0) for k in {**a, **b}}


def _times(a: Polynomial, factor: float) -> Polynomial:
    return {k: c * factor for k, c in a.items()}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for (i, j), c in a.items():
        for (k, m), d in b.items():
            result[i + k, j + m] = result.get((i + k, j + m), 0.0) + c * d
    return result


def _close(result: Polynomial | None, wanted: Polynomial) -> bool:
    return result is not None and all(
        math.isclose(result.get(k, 0.0), wanted.get(k, 0.0), rel_tol=CLOSE) for k in {**result, **wanted}
    )
