"""Recognise GELU: the products and sums as which exporters write it become one operator.

    y = x * (erf(x / sqrt(2)) + 1) * 0.5                                         ->   y = gelu(x)
    y = x * 0.5 * (tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)) + 1)             ->   y = gelu(x, approximate="tanh")

In whatever order products and sums stand: both sides are compared as polynomials in x and the function's value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from tilewright import ops
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.shape import ConstantAttrs

Polynomial = dict[tuple[int, int], float]
"""Coefficients by the powers of x and of the function's value."""

FORMS = {"erf": "none", "tanh": "tanh"}
RESULT: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}
INNER: dict[str, Polynomial] = {
    "erf": {(1, 0): math.sqrt(0.5)},
    "tanh": {(1, 0): math.sqrt(2 / math.pi), (3, 0): 0.044715 * math.sqrt(2 / math.pi)},
}
CLOSE = 1e-6
"""Relative difference of coefficients that comes from rounding them."""
DEPTH = 6
"""Nodes that follow one another between x and the function, or after it."""

MOST_RESULTS = 64
"""Values after the function that are looked at: a value may have thousands of users, and each of these again."""


def recognise_activations(graph: Graph) -> Graph:
    """The graph with GELU as one operator wherever it is found; nodes that nothing needs any more stay."""
    return _Recogniser(graph).run()


class _Recogniser:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made = {v: n for n in graph.nodes for v in n.outputs}
        self.users = graph.consumers()

    def run(self) -> Graph:
        replaced: dict[Value, Node] = {}
        for node in self.graph.nodes:
            # A model of 16-bit floats rounds between the products, which its results show.
            if node.op in FORMS and node.output.dtype.is_float and node.output.dtype.bits >= 32:
                result = self.gelu(node)
                if result is not None:
                    replaced[result.output] = result
        if not replaced:
            return self.graph
        nodes = (replaced.get(n.outputs[0], n) if len(n.outputs) == 1 else n for n in self.graph.nodes)
        return replace(self.graph, nodes=tuple(nodes))

    def gelu(self, function: Node) -> Node | None:
        """The node to stand in place of the last product after `function`."""
        (z,) = function.inputs
        assert z is not None
        for x in self.sources(z, DEPTH):
            inner = self.polynomial(z, x, None, DEPTH)
            # Both functions are odd, so that f(-z) may stand with the other sign.
            sign = next((s for s in (1.0, -1.0) if _close(inner, _times(INNER[function.op], s))), None)
            if sign is not None:
                result = {**RESULT, (1, 1): RESULT[1, 1] * sign}
                for y in islice(self.results(function.output, DEPTH), MOST_RESULTS):
                    if y.type == x.type and _close(self.polynomial(y, x, function.output, DEPTH), result):
                        made = GraphBuilder("gelu")
                        ops.emit1(made, "gelu", x, approximate=FORMS[function.op])
                        return replace(made.nodes[-1], outputs=(y,))
        return None

    def sources(self, value: Value, depth: int) -> Iterator[Value]:
        """What `value` may be computed from."""
        node = self.made.get(value)
        if node is None or depth == 0 or node.op not in ("add", "sub", "mul", "div", "pow", "neg"):
            return
        for v in node.inputs:
            if v is not None and self.number(v) is None:
                yield v
                yield from self.sources(v, depth - 1)

    def results(self, value: Value, depth: int) -> Iterator[Value]:
        """What is computed from `value` by sums and products."""
        for node in self.users.get(value, []) if depth else ():
            if node.op in ("add", "sub", "mul", "div"):
                yield node.output
                yield from self.results(node.output, depth - 1)

    def number(self, value: Value) -> float | None:
        """The value of a constant of one element."""
        node = self.made.get(value)
        if node is None or node.op != "constant":
            return None
        array = node.of(ConstantAttrs).value.array
        return float(array.reshape(())) if array.size == 1 and np.issubdtype(array.dtype, np.number) else None

    def polynomial(self, value: Value, x: Value, f: Value | None, depth: int) -> Polynomial | None:
        """`value` as a polynomial in `x` and `f`; None if it is none."""
        if value in (x, f):
            return {(1, 0) if value == x else (0, 1): 1.0}
        constant = self.number(value)
        if constant is not None:
            return {(0, 0): constant}
        node = self.made.get(value)
        if node is None or depth == 0 or node.op not in ("add", "sub", "mul", "div", "pow", "neg"):
            return None
        if node.op == "neg":
            source = node.inputs[0]
            positive = None if source is None else self.polynomial(source, x, f, depth - 1)
            return None if positive is None else _times(positive, -1.0)
        a, b = (self.polynomial(v, x, f, depth - 1) for v in node.inputs if v is not None)
        if a is None or b is None:
            return None
        divisor = b.get((0, 0), 0.0) if b.keys() == {(0, 0)} else 0.0
        match node.op:
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
