"""Reduced precision: errors against float64 within what docs/accuracy.md states, exact structure otherwise.

bf16 weights have eight bits: rms error 2^-9 / sqrt(3) a product of rounded weights, about 1.7e-3 of the result's rms;
both factors rounded give sqrt(2) times that. int8 by rows and columns: about 1.2e-2.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.compiler import compile_graph
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.support.errors import ModelError
from tilewright.targets.target import Target
from tilewright.transform.graph.options import DEFAULTS, Options

RNG = np.random.default_rng(0)
BOUNDS = {"bf16": 3e-3, "int8": 2e-2}
"""Root mean square of the error over that of the result."""


def layer(rows: Expr, k: int, n: int, transpose: bool = False) -> Graph:
    builder = GraphBuilder("layer")
    x = builder.input("x", TensorType(f32, (rows, const(k))))
    shape = (n, k) if transpose else (k, n)
    w = builder.param("w", TensorType(f32, tuple(map(const, shape))))
    b = builder.param("b", TensorType(f32, (const(n),)))
    y = ops.emit1(builder, "matmul", x, w, transpose_a=False, transpose_b=transpose)
    return builder.finish((ops.emit1(builder, "relu", ops.emit1(builder, "add", y, b)),))


def weights(k: int, n: int, transpose: bool = False) -> dict[str, np.ndarray]:
    w = (RNG.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
    return {"w": np.ascontiguousarray(w.T) if transpose else w, "b": RNG.standard_normal(n).astype(np.float32)}


def exact(x: np.ndarray, inputs: dict[str, np.ndarray], transpose: bool = False) -> np.ndarray:
    w = inputs["w"].astype(np.float64)
    return np.maximum(x.astype(np.float64) @ (w.T if transpose else w) + inputs["b"], 0)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("m,k,n,transpose", [(1, 64, 100, False), (7, 33, 17, True), (30, 96, 48, False)])
def test_errors(precision: str, m: int, k: int, n: int, transpose: bool) -> None:
    inputs = weights(k, n, transpose)
    model = tw.compile((layer(const(m), k, n, transpose), inputs), precision=precision)
    x = RNG.standard_normal((m, k)).astype(np.float32)
    got = np.asarray(model(x))
    assert 0 < error(got, exact(x, inputs, transpose)) < BOUNDS[precision]
    fresh = weights(k, n, transpose)
    model.update(fresh)
    assert error(np.asarray(model(x)), exact(x, fresh, transpose)) < BOUNDS[precision]


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_any_number_of_rows(precision: str) -> None:
    inputs = weights(40, 24)
    model = tw.compile((layer(Var("n", lo=0), 40, 24), inputs), precision=precision)
    for m in (0, 1, 3, 20):
        x = RNG.standard_normal((m, 40)).astype(np.float32)
        got = np.asarray(model(x))
        assert got.shape == (m, 24)
        if m:
            assert error(got, exact(x, inputs)) < BOUNDS[precision]


def test_int8_of_rows_of_zeros_and_of_huge_and_undefined_numbers() -> None:
    inputs = weights(32, 16)
    inputs["w"][:, 3] = 0
    model = tw.compile((layer(const(5), 32, 16), inputs), precision="int8")
    x = RNG.standard_normal((5, 32)).astype(np.float32)
    x[1], x[2, 4] = 0, np.nan
    x[3] *= 1e30
    got, want = np.asarray(model(x)), exact(x, inputs)
    assert np.isnan(got[2]).all()
    for row in (0, 1, 3, 4):
        assert error(got[row], want[row]) < 2 * BOUNDS["int8"]
    np.testing.assert_array_equal(got[1], np.maximum(inputs["b"], 0))


@pytest.mark.parametrize("precision,instruction", [("bf16", "vdpbf16ps"), ("int8", "vpdpbusd")])
def test_avx512_code_has_the_instruction(precision: str, instruction: str) -> None:
    inputs = weights(64, 64)
    program = compile_graph(layer(const(24), 64, 64), inputs, Target.parse("znver4"), options=Options(precision))
    assert instruction in program.texts["asm"]()


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ["generic-aarch64", "x86-64", "skylake-avx512"])
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_every_target_has_code(name: str, precision: str) -> None:
    inputs = weights(32, 20)
    compile_graph(layer(const(3), 32, 20), inputs, Target.parse(name), options=Options(precision))


@pytest.mark.parametrize(("name", "value"), [("precision", "fp8"), ("fast", "f3"), ("fast", "")])
def test_options_that_do_not_exist(name: str, value: str) -> None:
    with pytest.raises(ModelError, match=f"no such setting of {name}") as caught:
        Options(**{name: value})
    assert repr(value) in str(caught.value) and str(getattr(DEFAULTS, name)) in str(caught.value)
