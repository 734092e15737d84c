"""GELU in the forms in which exporters write it, against the graph as it came."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, f16, f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.verify import verify_graph
from tilewright.ops.interpret import run_graph
from tilewright.transform.graph.activations import recognise_activations
from tilewright.transform.graph.rewrite import eliminate_dead

BATCH = Var("batch", lo=1)


class Form:
    """Shorthand for building a graph: `f("add", a, 1.0)`."""

    def __init__(self, dtype: DType = f32) -> None:
        self.b = GraphBuilder("case")
        self.dtype = dtype
        self.x = self.b.input("x", TensorType(dtype, (BATCH, const(7))))

    def __call__(self, op: str, *inputs: Value | float) -> Value:
        values = [self.number(v) if isinstance(v, float) else v for v in inputs]
        return ops.emit1(self.b, op, *values)

    def number(self, value: float) -> Value:
        return ops.emit1(self.b, "constant", value=ConstantArray(np.array(value, self.dtype.numpy)))

    def finish(self, *results: Value) -> Graph:
        return self.b.finish(results)


def divided(f: Form) -> Value:
    """An activation as torch.onnx writes it."""
    erf = f("erf", f("div", f.x, math.sqrt(2)))
    return f("mul", f("mul", f.x, f("add", erf, 1.0)), 0.5)


def half_first(f: Form) -> Value:
    return f("mul", f("add", 1.0, f("erf", f("mul", math.sqrt(0.5), f.x))), f("mul", 0.5, f.x))


def as_a_sum(f: Form) -> Value:
    half = f("div", f.x, 2.0)
    return f("add", half, f("mul", f("erf", f("mul", f.x, math.sqrt(0.5))), half))


def of_a_sum(f: Form) -> Value:
    """The argument is computed by a sum itself."""
    f.x = f("add", f.x, f("mul", f.x, f.x))
    return divided(f)


def by_tanh(f: Form) -> Value:
    cube = f("mul", f("mul", f.x, f.x), f.x)
    inner = f("mul", math.sqrt(2 / math.pi), f("add", f.x, f("mul", cube, 0.044715)))
    return f("mul", f("mul", f.x, 0.5), f("add", f("tanh", inner), 1.0))


def by_tanh_and_power(f: Form) -> Value:
    inner = f("mul", f("add", f.x, f("mul", 0.044715, f("pow", f.x, 3.0))), math.sqrt(2 / math.pi))
    return f("mul", f.x, f("mul", 0.5, f("add", 1.0, f("tanh", inner))))


def by_tanh_factored(f: Form) -> Value:
    inner = f("mul", f("mul", f.x, math.sqrt(2 / math.pi)), f("add", 1.0, f("mul", f("mul", 0.044715, f.x), f.x)))
    return f("mul", f("add", 1.0, f("tanh", inner)), f("mul", f.x, 0.5))


@pytest.mark.parametrize(
    "form", [divided, half_first, as_a_sum, of_a_sum, by_tanh, by_tanh_and_power, by_tanh_factored]
)
def test_forms(form: Callable[[Form], Value]) -> None:
    f = Form()
    graph = f.finish(form(f))
    result = eliminate_dead(recognise_activations(graph))
    verify_graph(result)
    kinds = [n.op for n in result.nodes]
    assert kinds.count("gelu") == 1 and not {"erf", "tanh"} & set(kinds)
    assert len(kinds) == (3 if form is of_a_sum else 1)
    x = np.linspace(-9, 9, 21, dtype=np.float32).reshape(3, 7)
    (want,), (got,) = (list(run_graph(g, {"x": x}, {}).values()) for g in (graph, result))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def other_factor(f: Form) -> Value:
    return f("mul", f("mul", f.x, f("add", f("erf", f("mul", f.x, 0.7)), 1.0)), 0.5)


def other_sum(f: Form) -> Value:
    return f("mul", f("mul", f.x, f("add", f("erf", f("mul", f.x, math.sqrt(0.5))), 1.001)), 0.5)


def other_argument(f: Form) -> Value:
    y = f.b.input("y", f.x.type)
    return f("mul", f("mul", y, f("add", f("erf", f("mul", f.x, math.sqrt(0.5))), 1.0)), 0.5)


def not_an_activation(f: Form) -> Value:
    return f("tanh", f("erf", f.x))


@pytest.mark.parametrize("form", [other_factor, other_sum, other_argument, not_an_activation])
def test_what_is_none(form: Callable[[Form], Value]) -> None:
    f = Form()
    graph = f.finish(form(f))
    assert recognise_activations(graph) is graph


def test_narrow_floats_stay() -> None:
    f = Form(f16)
    graph = f.finish(divided(f))
    assert recognise_activations(graph) is graph


def test_what_is_read_twice_stays() -> None:
    f = Form()
    erf = f("erf", f("mul", f.x, math.sqrt(0.5)))
    graph = f.finish(erf, f("mul", f("mul", f.x, f("add", erf, 1.0)), 0.5))
    result = eliminate_dead(recognise_activations(graph))
    verify_graph(result)
    assert sorted(n.op for n in result.nodes if n.op != "constant") == ["erf", "gelu", "mul"]


def test_several_ways_after_a_function_are_not_all_gone() -> None:
    """Four layers in which each value has 38 users: two million ways, of which some are looked at."""
    f = Form()
    layer = [f("erf", f("mul", f.x, math.sqrt(0.5)))] * 20
    for _ in range(4):
        sums = [[f("add", a, layer[(k + s) % 20]) for s in range(1, 20)] for k, a in enumerate(layer)]
        layer = [row[0] for row in sums]
    graph = f.finish(*layer)
    assert recognise_activations(graph) is graph
