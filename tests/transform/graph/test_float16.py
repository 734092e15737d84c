"""16-bit floats in operators that are faster in f32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.oracle import reference
from tilewright import ops
from tilewright.compiler import compile_graph
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ops import parse_graph
from tilewright.runtime.model import Model
from tilewright.targets.target import Target
from tilewright.transform.graph.float16 import widen_float16

rng = np.random.default_rng(11)
F16, BF16 = np.float16, ml_dtypes.bfloat16


def data(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def run(op: str, arrays: list[np.ndarray], attrs: dict[str, Any], params: int) -> tuple[list[str], list[np.ndarray]]:
    """Names of the operators after the pass, and what the compiled graph gives; the last `params` are weights."""
    b = GraphBuilder("g")
    types = [TensorType(dtype(a.dtype), tuple(const(d) for d in a.shape)) for a in arrays]
    split = len(arrays) - params
    values = [b.input(f"x{k}", t) if k < split else b.param(f"x{k}", t) for k, t in enumerate(types)]
    graph = b.finish(ops.emit(b, op, *values, **attrs))
    weights = {f"x{k}": arrays[k] for k in range(split, len(arrays))}
    result = Model(compile_graph(graph, weights, Target.host(), records=None))(*arrays[:split])
    results = [np.asarray(y) for y in (result if isinstance(result, list | tuple) else [result])]
    return [n.op for n in widen_float16(graph).nodes], results


CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "odd sizes": ("conv", ((2, 5, 9, 7), (7, 5, 3, 3)), {"strides": (1, 1), "pads": (1, 1, 1, 1)}),
    "blocks": ("conv", ((1, 32, 12, 12), (32, 32, 3, 3)), {"strides": (1, 1), "pads": (1, 1, 1, 1)}),
    "strides": ("conv", ((1, 16, 11, 10), (24, 16, 1, 1)), {"strides": (2, 2), "pads": (0, 0, 0, 0)}),
    "groups": ("conv", ((1, 12, 8, 8), (12, 1, 3, 3)), {"strides": (1, 1), "pads": (1, 1, 1, 1), "groups": 12}),
    "lines": ("conv", ((2, 6, 30), (4, 6, 5)), {"strides": (1,), "pads": (2, 2), "dilations": (1,)}),
    "transposed": (
        "conv_transpose",
        ((1, 8, 6, 5), (8, 4, 2, 2)),
        {"strides": (2, 2), "pads": (0, 0, 0, 0), "output_padding": (0, 0)},
    ),
    "rows": ("matmul", ((33, 40), (40, 17)), {}),
}


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("element", [F16, BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_f32_rounded_once(name: str, element: Any) -> None:
    op, shapes, attrs = CASES[name]
    if op != "matmul":
        attrs = {"dilations": (1,) * (len(shapes[0]) - 2), "groups": 1, **attrs}
    arrays = [data(*shape, scale=0.3).astype(element) for shape in shapes]
    names, (got,) = run(op, arrays, attrs, 1)
    (want,) = reference(op, [a.astype(np.float64) for a in arrays], attrs)
    assert got.dtype == element
    assert names == ([op] if op == "matmul" and element is BF16 else ["cast", "cast", op, "cast"])
    ulp = 2.0**-10 if element is F16 else 2.0**-7
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=ulp, atol=ulp * np.abs(want).max() * 0.1)


@pytest.mark.daily(4)
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("element", [F16, BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("shapes", [((1, 64), (64, 17)), ((8, 64), (64, 32)), ((100, 64), (64, 32)), ((3, 8), (8, 1))])
def test_sums_that_are_not_rounded(shapes: tuple[tuple[int, int], ...], element: Any, target: str) -> None:
    """A bias is added to sums in f32; weights are halves where they were."""
    x, w = (data(*shape).astype(element) for shape in shapes)
    graph = parse_graph(
        f"""graph @g(%x: {element.__name__}[{x.shape[0]}, {x.shape[1]}])
        params(%w: {element.__name__}[{w.shape[0]}, {w.shape[1]}]) {{
      %y = matmul(%x, %w) {{dtype = f32}} : f32[{x.shape[0]}, {w.shape[1]}]
      return %y
    }}""".replace("bfloat16", "bf16").replace("float16", "f16")
    )
    machine = Target.host() if target == "host" else Target.parse(target)
    got = Model(compile_graph(graph, {"w": w}, machine, records=None))(x)
    np.testing.assert_allclose(got, x.astype(np.float64) @ w.astype(np.float64), rtol=1e-5, atol=1e-5)


def test_what_is_infinite_or_no_number_stays_so() -> None:
    x = np.zeros((1, 1, 4, 4), F16)
    x[0, 0, 0, 0], x[0, 0, 3, 3], x[0, 0, 0, 3] = np.inf, np.nan, 60000.0
    attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    _, (got,) = run("conv", [x, np.full((1, 1, 1, 1), 2.0, F16)], attrs, 1)
    with np.errstate(over="ignore"):
        want = (x.astype(np.float32) * 2).astype(F16)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "text",
    [
        "(%x: f16[8, 64]) params(%w: f16[64, 8]) { %y = matmul(%x, %w) : f16[8, 8]",  # few rows read few bytes
        "(%x: f16[n, 64]) params(%w: f16[64, 8]) where n in 1.. { %y = matmul(%x, %w) : f16[n, 8]",
        "(%x: f16[64]) params(%w: f16[64, 8]) { %y = matmul(%x, %w) : f16[8]",
        "(%x: f32[64, 64]) params(%w: f32[64, 8]) { %y = matmul(%x, %w) : f32[64, 8]",
        "(%x: bf16[64, 64]) params(%w: bf16[64, 8]) { %y = matmul(%x, %w) : bf16[64, 8]",  # there are instructions
        "(%x: f16[8, 64]) params(%w: f16[64, 8]) { %y = matmul(%x, %w) {dtype = f32} : f32[8, 8]",
        "(%x: f16[64, 64]) params(%w: f16[64]) { %y = mul(%x, %w) : f16[64, 64]",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    graph = parse_graph(f"graph @g{text} return %y }}")
    assert widen_float16(graph) is graph


def test_a_value_is_widened_once() -> None:
    graph = parse_graph("""
    graph @g(%x: f16[1, 4, 8, 8]) params(%w: f16[4, 4, 1, 1], %v: f16[4, 4, 1, 1]) {
      %a = conv(%x, %w) {dilations = [1, 1], groups = 1, pads = [0, 0, 0, 0], strides = [1, 1]} : f16[1, 4, 8, 8]
      %b = conv(%x, %v) {dilations = [1, 1], groups = 1, pads = [0, 0, 0, 0], strides = [1, 1]} : f16[1, 4, 8, 8]
      return %a, %b
    }""")
    names = [n.op for n in widen_float16(graph).nodes]
    assert names.count("cast") == 5 and names.count("conv") == 2
    assert [v.name for v in widen_float16(graph).outputs] == ["a", "b"]
