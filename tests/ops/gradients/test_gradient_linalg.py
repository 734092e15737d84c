"""Gradients of factorisations, triangular systems, running operators and special functions against central differences
in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.gradients.test_gradient import check, differences, graph_of, inside, interpret, normal, positive
from tilewright.ir.dtype import f32, f64
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ops.registry import emit1
from tilewright.train.gradient import gradient


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems(upper: bool, unit: bool) -> None:
    for lead, n, m in (((), 4, 3), ((2, 1), 3, 2), ((3,), 1, 1)):
        a = normal(*lead, n, n) + 3 * np.eye(n)
        check("triangular_solve", [a, normal(*lead, n, m)], upper=upper, unit=unit)


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (2, 3, 3), (1, 1), (2, 2, 4)])
def test_lu(shape: tuple[int, ...]) -> None:
    """Square, wide and tall matrices, whose pivots are not on the diagonal."""
    x = normal(*shape)
    x[..., 0, 0] /= 100
    check("lu", [x])


def test_cholesky() -> None:
    """By a matrix of which the factorised one is the product with its transposed: the gradient is symmetric."""
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(f64, tuple(as_expr(d) for d in (2, 4, 4))))
    square = emit1(builder, "matmul", x, x, transpose_a=False, transpose_b=True)
    factor = emit1(builder, "cholesky", square)
    weighted = emit1(builder, "mul", factor, emit1(builder, "constant", value=normal(2, 4, 4)))
    total = emit1(builder, "reduce_sum", weighted, axes=(0, 1, 2), keepdims=False)
    graph = builder.finish((total,))
    inputs = {"x": normal(2, 4, 4) + 3 * np.eye(4)}
    result = interpret(gradient(graph, graph.outputs[0].name, ["x"]), inputs)[1]
    np.testing.assert_allclose(result, differences(graph, inputs, "x"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_products(axis: int, exclusive: bool, reverse: bool) -> None:
    x = normal(4, 3, 5)
    x[1, 2], x[3, 0, 2], x[2, 0, 2] = 0, 0, 0
    check("cumprod", [x], axis=axis, exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("axes", [(0, 2), (0, 1, 2), (2, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_products_over_several_axes(axes: tuple[int, ...], keepdims: bool) -> None:
    x = positive(2, 3, 4)
    x[1, 0, 2] = 0
    check("reduce_prod", [x], axes=axes, keepdims=keepdims)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_extremes_and_log_sum_exps(axis: int) -> None:
    for largest in (False, True):
        check("running_extreme", [normal(4, 3, 5)], axis=axis, largest=largest)
    check("cumulative_logsumexp", [4 * normal(4, 3, 5)], axis=axis)


def test_running_log_sum_exps_of_large_numbers() -> None:
    """e^800 is no number, and the shares are. Flows of either sign."""
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(f64, (as_expr(3),)))
    y = emit1(builder, "cumulative_logsumexp", x, axis=0)
    weighted = emit1(builder, "mul", y, emit1(builder, "constant", value=np.array([2.0, -3.0, 0.0])))
    graph = builder.finish((emit1(builder, "reduce_sum", weighted, axes=(0,), keepdims=False),))
    result = interpret(gradient(graph, graph.outputs[0].name, ["x"]), {"x": np.array([800.0, 800.0, -800.0])})[1]
    np.testing.assert_allclose(result, [0.5, -1.5, 0], rtol=1e-12)


SPECIAL: list[tuple[str, list[Any]]] = [
    ("lgamma", [np.array([-2.6, -0.4, 0.3, 1.7, 12.5])]),
    ("digamma", [np.array([0.3, 1.7, 12.5])]),
    ("erfc", [normal(7)]),
    ("erfcx", [normal(7)]),
    ("erfinv", [inside(7)]),
    ("ndtri", [np.array([0.05, 0.4, 0.93])]),
    *[(f"bessel_{k}", [np.array([-9.3, -1.2, 0.4, 3.1, 11.7])]) for k in ("i0", "i0e", "i1", "i1e")],
    *[(f"bessel_{k}", [np.zeros(1)]) for k in ("i0", "i1")],
    ("bessel_j0", [np.array([0.4, 3.1, 11.7])]),
]


@pytest.mark.parametrize(("op", "inputs"), SPECIAL)
def test_special_functions(op: str, inputs: list[Any]) -> None:
    check(op, inputs, tolerance=1e-5)


@pytest.mark.parametrize("op", ["bessel_j0", "erfcx"])
def test_special_functions_of_f32(op: str) -> None:
    """Special functions compute in f64; the gradient is of the operand's type, that of f64 rounded."""
    result = {}
    for kind in (np.float32, np.float64):
        builder = GraphBuilder("g")
        x = builder.input("x", TensorType(f64 if kind is np.float64 else f32, (as_expr(1),)))
        graph = builder.finish((emit1(builder, op, x),))
        (result[kind],) = interpret(gradient(graph, graph.outputs[0].name, ["x"]), {"x": np.array([1.25], kind)})[1:]
    assert result[np.float32].dtype == np.float32
    np.testing.assert_allclose(result[np.float32], result[np.float64], rtol=1e-6)


def test_zeta_by_its_place() -> None:
    builder = GraphBuilder("g")
    q = builder.input("q", TensorType(f64, (as_expr(2),)))
    s = emit1(builder, "constant", value=np.array([2.0, 4.5]))
    y = emit1(builder, "zeta", s, q)
    graph = builder.finish((emit1(builder, "reduce_sum", y, axes=(0,), keepdims=False),))
    inputs = {"q": np.array([0.7, 3.2])}
    result = interpret(gradient(graph, graph.outputs[0].name, ["q"]), inputs)[1]
    np.testing.assert_allclose(result, differences(graph, inputs, "q"), rtol=1e-6)


COMPILED: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("lu", [normal(3, 4)], {}),
    ("cholesky", [np.eye(3) + 0.1], {}),
    ("triangular_solve", [normal(3, 3) + 3 * np.eye(3), normal(3, 2)], {"upper": True}),
    ("cumprod", [normal(3, 4)], {"axis": 1, "exclusive": False, "reverse": False}),
    ("cumulative_logsumexp", [normal(3, 4)], {"axis": 0}),
    ("running_extreme", [normal(3, 4)], {"axis": 0, "largest": True}),
    ("scatter_elements", [normal(3), np.array([0, 0]), normal(2)], {"axis": 0, "reduction": "mul"}),
    ("lgamma", [positive(5)], {}),
]


@pytest.mark.daily(3)
@pytest.mark.parametrize(("op", "inputs", "attrs"), COMPILED)
def test_compiled_is_interpreted(op: str, inputs: list[Any], attrs: dict[str, Any]) -> None:
    graph = graph_of(op, inputs, attrs)
    whole = gradient(graph, graph.outputs[0].name, [f"x{k}" for k, a in enumerate(inputs) if a.dtype.kind == "f"])
    expected = interpret(whole, {f"x{k}": a for k, a in enumerate(inputs)})
    for got, want in zip(tw.compile(whole)(*inputs), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)
