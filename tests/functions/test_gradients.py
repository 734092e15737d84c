"""Gradients of comprehensions against central differences in f64 on the interpreter; compiled against interpreted."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fuzz.comprehensions import generate
from tests.ops.oracle import type_of
from tilewright import te
from tilewright.functions.backward import backward_graph
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import emit1
from tilewright.te.adjoint import adjoint

Array = np.ndarray[Any, Any]
STEP = 1e-7
TOLERANCE = 1e-5
"""The tolerance of differences along a line, relative to the sum of absolute gradients."""
RNG = np.random.default_rng(21)


def normal(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape))


def weighted(function: Any, arrays: list[Array]) -> Graph:
    """The sum of a comprehension's results, each element with a weight of its own."""
    builder = GraphBuilder("g")
    values = [builder.input(n, type_of(a)) for n, a in zip(function.inputs, arrays, strict=True)]
    total = None
    for y in function.emit(builder, *values):
        shape = tuple(int(str(d)) for d in y.shape)
        weight = emit1(builder, "constant", value=np.random.default_rng(5).uniform(0.5, 1.5, shape))
        part = emit1(builder, "mul", y, weight)
        part = emit1(builder, "reduce_sum", part, axes=tuple(range(len(shape))), keepdims=False) if shape else part
        total = part if total is None else emit1(builder, "add", total, part)
    assert total is not None
    return builder.finish((total,))


def gradients_of(text: str, arrays: list[Array], native: bool = False) -> list[Array]:
    """The gradients by all floating point inputs, once they are what differences along a line give."""
    function = tw.comprehension(text)
    graph = weighted(function, arrays)
    names = [n for n, a in zip(function.inputs, arrays, strict=True) if a.dtype.kind == "f"]
    whole = tw.gradient(graph, graph.outputs[0].name, names)
    arguments = dict(zip(function.inputs, arrays, strict=True))
    with np.errstate(all="ignore"):
        match = run_graph(whole, arguments)
        results = [match[v.name] for v in whole.outputs[1:]]
        for name, result in zip(names, results, strict=True):
            along = np.random.default_rng(7).standard_normal(arguments[name].shape)
            ends = [
                float(run_graph(graph, {**arguments, name: arguments[name] + s * along})[graph.outputs[0].name])
                for s in (STEP, -STEP)
            ]
            want = (ends[0] - ends[1]) / (2 * STEP)
            assert result.shape == arguments[name].shape
            if np.isfinite(want):  # a root of what is negative has none
                scale = max(1.0, abs(want), float(np.abs(result).sum()), 0.1 * abs(ends[0]))
                assert abs(float((result * along).sum()) - want) <= TOLERANCE * scale, (text, name)
    if native:
        for got, result in zip(tw.compile(whole)(*arrays)[1:], results, strict=True):
            np.testing.assert_allclose(np.asarray(got), result, rtol=1e-9, atol=1e-9, err_msg=text)
    return results


CONVOLUTION = (
    "Y[n, f, h, w] +! pad(X[n, c, 2 * h + r - 1, 2 * w + s - 1], 0) * W[f, c, r, s]"
    " where h in 0:X.shape[2] // 2, w in 0:X.shape[3] // 2"
)
ATTENTION = """
    S[h, i, j] = sum(Q[h, i, d] * K[h, j, d]) * 0.5
    P[h, i, j] = exp(S[h, i, j] - max(S[h, i, l]))
    O[h, i, d] = sum(P[h, i, j] * V[h, j, d]) / sum(P[h, i, l])
"""
CASES: list[tuple[str, list[Array]]] = [
    ("C[m, n] +! A[m, k] * B[k, n]", [normal(3, 4), normal(4, 5)]),
    ("O[o, h] +! I[c, 2 * h + 3 * r] * W[o, c, r]", [normal(2, 17), normal(3, 2, 3)]),
    (CONVOLUTION, [normal(1, 2, 6, 5), normal(2, 2, 3, 3)]),
    ("Y[i] = clamp(X[i - 2]) ** 2.0 - X[i]", [normal(9)]),
    ("Y[i] = wrap(X[i - 2]) * X[i]", [normal(9)]),
    ("Y[i] = (X[i - 1] * X[i] if i > 0 else 0) + X[i]", [normal(9)]),
    ("Y[n, d] = T[I[n], d] * T[I[n], d]", [normal(5, 4), np.array([0, 4, 2, 2, -3, 9])]),
    ("Y[n] +! T[d, I[n]] * W[n, d] where n in 0:3", [normal(2, 5), np.array([0, 4, 4]), normal(3, 2)]),
    ("Y[i] *! X[i, j]", [np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])]),
    ("Y[i] max! X[i, j]", [normal(3, 4)]),
    ("C[i, j] min! A[i, k] + B[k, j]", [normal(3, 4), normal(4, 3)]),
    ("Y[i] +! X[i, j] where j <= i", [normal(4, 4)]),
    ("Y[i] +! X[i, j] where X[i, j] > 0", [normal(4, 4)]),
    ("Y[i] = X[i, i]", [normal(4, 4)]),
    ("Y[i, j] = X[i // 2, j % 3] ** 2.0 where i in 0:7, j in 0:5", [normal(4, 3)]),
    ("Y[i] = X[i // 3, i % 3] where i in 0:11", [normal(4, 3)]),
    ("Y[i] = exp(X[3 - i]) where i in 0:4", [normal(4)]),
    (ATTENTION, [normal(2, 3, 2), normal(2, 4, 2), normal(2, 4, 2)]),
]


@pytest.mark.parametrize(("text", "arrays"), CASES)
def test_gradients(text: str, arrays: list[Array]) -> None:
    gradients_of(text, arrays)


@pytest.mark.daily(3)
@pytest.mark.parametrize(("text", "arrays"), [CASES[k] for k in (2, 3, 7, 8, 9, 15)])
def test_compiled_gradients(text: str, arrays: list[Array]) -> None:
    gradients_of(text, arrays, native=True)


def test_what_is_expected() -> None:
    """Equals share; each factor of a product gets the others' product, also beside zeros; a gather's rows add up."""
    weights = np.random.default_rng(5).uniform(0.5, 1.5, 1)
    (result,) = gradients_of("Y[i] max! X[i, j]", [np.array([[2.0, 1.0, 3.0]])])
    np.testing.assert_allclose(result, weights * [[0, 0, 1]])
    (result,) = gradients_of("Y[i] *! X[i, j]", [np.array([[2.0, 0.0, 3.0]])])
    np.testing.assert_allclose(result, weights * [[0, 6, 0]])
    function = tw.comprehension("y max! X[j]")
    (shared,) = function.backward(np.array([1.0, 3.0, 3.0]), np.array(2.0))
    np.testing.assert_array_equal(shared, [0, 1, 1])


@pytest.mark.daily(2)
@pytest.mark.parametrize("part", range(4))
def test_random_gradients(part: int) -> None:
    """Gradients of the generator's comprehensions that have floating point results."""
    tried = 0
    for seed in range(part, 300, 4):
        case = generate(seed)
        kinds = {a.dtype.name for a in case.arrays}
        if kinds.isdisjoint({"float32", "float64"}) or kinds & {"float16", "bfloat16"}:
            continue
        text = re.sub(r"\bf32\(", "f64(", case.text)
        arrays = [np.nan_to_num(a.astype(np.float64)) if a.dtype.kind == "f" else a for a in case.arrays]
        try:
            program = tw.comprehension(text).bind([type_of(a) for a in arrays])
        except tw.Error:  # types that fit no longer
            continue
        if all(program.types[n].dtype.is_float for n in tw.comprehension(text).outputs):
            gradients_of(text, arrays)
            tried += 1
    assert tried > 10


def test_adjoints_are_comprehensions_that_can_be_read() -> None:
    function = tw.comprehension("C[m, n] +! A[m, k] * B[k, n]")
    graph = weighted(function, [normal(3, 4), normal(4, 5)])
    text = str(tw.gradient(graph, graph.outputs[0].name, ["A", "B"]))
    assert 'text = "y[i0, i1] +! x0[i0, i2] * x1[i1, i2]"' in text
    assert 'text = "y[i0, i1] +! x0[i2, i1] * x1[i2, i0]"' in text
    assert "scatter" not in text


def test_second_order() -> None:
    """The gradient of a gradient: of sum(x^3), weighted once more."""
    function = tw.comprehension("Y[i] = X[i] ** 3.0")
    x = normal(5)
    graph = weighted(function, [x])
    first = tw.gradient(graph, graph.outputs[0].name, ["X"])
    builder = GraphBuilder(
        "g", list(first.inputs), [], list(first.nodes), {v.name for n in first.nodes for v in n.outputs}
    )
    total = emit1(builder, "reduce_sum", first.outputs[1], axes=(0,), keepdims=False)
    second = tw.gradient(builder.finish((total,)), total.name, ["X"])
    weights = np.random.default_rng(5).uniform(0.5, 1.5, 5)
    np.testing.assert_allclose(run_graph(second, {"X": x})[second.outputs[-1].name], 6 * x * weights, rtol=1e-12)


def test_sizes_that_are_symbols() -> None:
    """One gradient for all sizes."""
    function = tw.comprehension("C[m, n] +! exp(A[m, k]) * B[k, n]", dynamic=True)
    types = function._with_symbols([type_of(np.zeros((2, 2), np.float32))] * 2)
    model = tw.compile(backward_graph(function, types))
    for m, k, n in ((3, 4, 5), (1, 7, 2)):
        a, b, g = (RNG.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n), (m, n)))
        by_a, by_b = model(a, b, g)
        np.testing.assert_allclose(by_a, g @ b.T * np.exp(a), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(by_b, np.exp(a).T @ g, rtol=1e-4, atol=1e-5)


def test_a_step_learns_through_a_comprehension() -> None:
    builder = GraphBuilder("line")
    x, y = (builder.input(n, type_of(np.zeros((64, 3), np.float32))) for n in "xy")
    w = builder.param("w", type_of(np.zeros((3, 3), np.float32)))
    (off,) = tw.comprehension("E[n, j] = sum(X[n, i] * W[i, j]) - Y[n, j]").emit(builder, x, w, y)
    loss = emit1(builder, "reduce_mean", emit1(builder, "mul", off, off), axes=(0, 1), keepdims=False)
    step = tw.compile_step((builder.finish((loss,)), {"w": np.zeros((3, 3), np.float32)}), optimizer=tw.train.Adam(0.1))
    goal = RNG.standard_normal((3, 3)).astype(np.float32)
    for _ in range(300):
        rows = RNG.standard_normal((64, 3)).astype(np.float32)
        result = step(rows, rows @ goal)
    assert result["loss"] < 1e-5
    np.testing.assert_allclose(step.parameters["w"], goal, atol=1e-3)


def test_what_has_no_gradient_is_refused() -> None:
    second = te.comm_reducer(lambda a, b: a + 2 * b, lambda t: te.const(0, t), name="skewed")
    k = te.reduce_axis(3)
    t = te.placeholder((3,), "float64")
    tensor = te.compute((1,), lambda i: second(t[k], axis=k))
    with pytest.raises(tw.Error, match="the reducer skewed has no gradient"):
        adjoint(tensor, te.placeholder((1,), "float64"), [t])
