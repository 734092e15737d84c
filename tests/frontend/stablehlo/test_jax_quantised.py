"""StableHLO's quantised types: every operation computes with the numbers that codes mean, and rounds to codes.

The reference is the specification's formulas (quantize, dequantize, dequantize_op_quantize) written in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.quantization.million import numbers, scales, zeros
from tilewright.compiler import passed
from tilewright.frontend.stablehlo import import_stablehlo
from tilewright.frontend.stablehlo.quantised import Quantised, quantised_type, rewritten
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import ModelError, UnsupportedError
from tilewright.targets.target import Target
from tilewright.transform.graph.constant_operands import hoist_constants

pytest.importorskip("jaxlib", reason="its parser reads StableHLO: `make jax` runs this")

RNG = np.random.default_rng(0)


def coded(x: Any, text: str) -> Any:
    """quantize of the specification."""
    t = quantised_type(text)
    assert t is not None
    scale, zero = (_along(v, t, x) for v in (t.scales, t.zeros))
    clamped = np.clip(np.float32(x) / scale + zero, np.float32(t.low), np.float32(t.high))
    return np.clip(np.rint(clamped).astype(np.float64), t.low, t.high).astype(t.storage.numpy)


def number(codes: Any, text: str) -> Any:
    """dequantize of the specification."""
    t = quantised_type(text)
    assert t is not None
    return (codes.astype(np.int64) - _along(t.zeros, t, codes).astype(np.int64)).astype(np.float32) * _along(
        t.scales, t, codes
    )


def _along(values: Any, t: Quantised, x: Any) -> Any:
    return np.float32(values).reshape([-1 if k == t.axis else 1 for k in range(np.ndim(x))])


X = "!quant.uniform<i8:f32, 0.5:-3>"
Y = "!quant.uniform<u8:f32, 0.25:7>"
W = "!quant.uniform<i8<-127:127>:f32:1, {0.0078125,0.015625,0.03125}>"
SUM = "!quant.uniform<i32:f32:1, {0.00390625,0.0078125,0.015625}>"


def dense(codes: Any) -> str:
    return str(codes.tolist())


def test_products_sums_and_a_result_of_codes() -> None:
    w, x = RNG.integers(-127, 128, (64, 3)).astype(np.int8), RNG.normal(0, 30, (5, 64)).astype(np.float32)
    x[0, :4] = [0.25, 0.75, -0.25, 100]  # ties, of an odd zero point, and one that saturates
    text = f"""
    !w = {W}
    func.func @main(%a: tensor<5x64xf32>) -> tensor<5x3x{Y}> {{
      %b = stablehlo.constant() <{{value = dense<{dense(w)}> : tensor<64x3xi8>}}> : () -> tensor<64x3x!w>
      %q = stablehlo.uniform_quantize %a : (tensor<5x64xf32>) -> tensor<5x64x{X}>
      %d = "stablehlo.dot_general"(%q, %b) {{dot_dimension_numbers =
        #stablehlo.dot<lhs_contracting_dimensions=[1], rhs_contracting_dimensions=[0]>}} :
        (tensor<5x64x{X}>, tensor<64x3x!w>) -> tensor<5x3x{SUM}>
      %r = stablehlo.uniform_quantize %d : (tensor<5x3x{SUM}>) -> tensor<5x3x{Y}>
      %s = stablehlo.add %r, %r : tensor<5x3x{Y}>
      return %s : tensor<5x3x{Y}>
    }}"""
    sums = coded(number(coded(x, X), X) @ number(w, W), SUM)
    result = coded(number(sums, SUM), Y)
    want = coded(number(result, Y) + number(result, Y), Y)
    got = np.asarray(tw.compile(text)(x))
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, want)
    read = import_stablehlo(text)
    graph, constants = hoist_constants(read.graph, ())
    after = passed(graph, Target.parse("znver4"))
    assert "lowered.matmul_dot" in [n.op for n in after.nodes]  # integers, with dot instructions
    (other,) = run_graph(after, {after.inputs[0].name: x}, {**read.weights, **constants}).values()
    np.testing.assert_array_equal(other, want)


def test_rounding_is_the_specification_s() -> None:
    """The zero point is added before rounding: 0.5 of an odd zero point goes to the even sum."""
    types = [X, Y, "!quant.uniform<i16:f32, 0.25:5>", "!quant.uniform<i4:f32, 2.0:1>"]
    x = np.float32(np.arange(-300, 300) / 8)
    shape, lines = f"tensor<{x.size}xf32>", []
    for k, t in enumerate(types):
        own = f"tensor<{x.size}x{t}>"
        lines += [f'%q{k} = "stablehlo.uniform_quantize"(%a) : ({shape}) -> {own}']
        lines += [f"%d{k} = stablehlo.uniform_dequantize %q{k} : ({own}) -> {shape}"]
    names = ", ".join(f"%q{k}, %d{k}" for k in range(len(types)))
    kinds = ", ".join(f"tensor<{x.size}x{t}>, {shape}" for t in types)
    body = "\n".join([*lines, f"return {names} : {kinds}"])
    results = tw.compile(f"func.func @main(%a: {shape}) -> ({kinds}) {{\n{body}\n}}")(x)
    for k, t in enumerate(types):
        want = coded(x, t)
        np.testing.assert_array_equal(np.asarray(results[2 * k]).astype(int), want.astype(int))
        np.testing.assert_array_equal(results[2 * k + 1], number(want, t))


def test_convolution_of_codes_that_come_in_and_are_moved() -> None:
    w, x = RNG.integers(-127, 128, (1, 1, 4, 3)).astype(np.int8), RNG.integers(-128, 128, (1, 3, 3, 4)).astype(np.int8)
    per_filter = W.replace("f32:1,", "f32:3,")
    text = f"""
    !f = {per_filter}
    func.func @main(%x: tensor<1x3x3x4x{X}>) -> tensor<9x3x{Y}> {{
      %w = "stablehlo.constant"() {{value = dense<{dense(w)}> : tensor<1x1x4x3xi8>}} : () -> tensor<1x1x4x3x!f>
      %c = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {{stride = [1, 1]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} :
        (tensor<1x3x3x4x{X}>, tensor<1x1x4x3x!f>) -> tensor<1x3x3x3x{Y}>
      %r = stablehlo.reshape %c : (tensor<1x3x3x3x{Y}>) -> tensor<9x3x{Y}>
      return %r : tensor<9x3x{Y}>
    }}"""
    want = coded(number(x, X).reshape(9, 4) @ number(w, per_filter).reshape(4, 3), Y)
    model = tw.compile(text)
    assert model.inputs[0].dtype == "i8"
    np.testing.assert_array_equal(model(x), want)


@pytest.mark.parametrize(
    "t,error,said",
    [
        ("!quant.uniform<i8:f32, -0.5>", ModelError, "scales are positive"),
        ("!quant.uniform<i8:f32, 0.5:300>", ModelError, "zero points are codes"),
        ("!quant.uniform<i8<5:200>:f32, 0.5>", ModelError, "bounds of codes"),
        ("!quant.uniform<i8:f32, {0.5}>", UnsupportedError, "not supported"),
        ("!quant.uniform<i8:f32:{0:1, 1:2}, {{0.5}}>", UnsupportedError, "not supported"),
        ("!quant.uniform<i8:f32:0, {0.5,1e}>", ModelError, "no number"),
        ("!quant.uniform<i64:f32, 0.5>", UnsupportedError, "not supported"),
    ],
)
def test_what_is_no_quantised_type_is_refused(t: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        rewritten(f"func.func @main(%x: tensor<2x{t}>) -> tensor<2x{t}> {{ return %x : tensor<2x{t}> }}")


def test_a_type_without_an_end_is_refused() -> None:
    with pytest.raises(ModelError, match="no end"):
        rewritten("func.func @main(%x: tensor<2x!quant.uniform<i8:f32, 0.5")


def test_text_without_quantised_types_stays() -> None:
    assert rewritten("stablehlo.add %a, %b : tensor<2xf32>") == "stablehlo.add %a, %b : tensor<2xf32>"


@pytest.mark.parametrize("storage,low,high", [("i8", -128, 127), ("u8", 0, 255), ("i16", -32768, 32767)])
def test_a_million_numbers_are_rounded_as_the_formula_says(storage: str, low: int, high: int) -> None:
    """Zero points are added before the rounding: ties with odd ones go to other codes than ONNX's."""
    channels = zip(scales().tolist(), zeros(low, high).tolist(), strict=True)
    kind = f"!quant.uniform<{storage}:f32:1, {{{','.join(f'{s!r}:{z}' for s, z in channels)}}}>"
    x = numbers(low, high)
    x = np.where(np.isfinite(x), x, np.float32(1e30))
    of_f32, of_codes = (f"tensor<{x.shape[0]}x{x.shape[1]}x{t}>" for t in ("f32", kind))
    text = f"""
    func.func @main(%x: {of_f32}) -> {of_f32} {{
      %q = stablehlo.uniform_quantize %x : ({of_f32}) -> {of_codes}
      %y = stablehlo.uniform_dequantize %q : ({of_codes}) -> {of_f32}
      return %y : {of_f32}
    }}"""
    assert x.size > 1_000_000
    with np.errstate(all="ignore"):
        want = number(coded(x, kind), kind)
    np.testing.assert_array_equal(np.asarray(tw.compile(text)(x)), want)
