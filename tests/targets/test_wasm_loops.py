"""WebAssembly's hot loops: what an engine reads before it multiplies has room in registers beside the sums."""

from __future__ import annotations

import re

import onnx
import pytest

import tilewright as tw
from benchmarks.onnx_builder import Builder
from tests.targets.hot_loops import SUITE
from tilewright.plans.framework.tiles import whole_step
from tilewright.targets.target import Target

REGISTERS = Target.parse("wasm32-simd128").registers


def bodies(assembly: str) -> list[list[str]]:
    """The instructions of each innermost loop that multiplies vectors."""
    result = []
    for text in re.findall(r"\n\s*loop\b(.*?)\n\s*end_loop", assembly, re.S):
        lines = [line.split()[0] for line in text.rsplit("\tloop", 1)[-1].splitlines() if line.strip()]
        if "f32x4.mul" in lines:
            result.append(lines)
    return result


def largest(model: onnx.ModelProto) -> list[str]:
    """The body with the most products."""
    text = tw.compile_program(model, target="wasm32-simd128").texts["asm"]
    return max(bodies(text() if callable(text) else text), key=lambda lines: lines.count("f32x4.mul"))


def blocked() -> onnx.ModelProto:
    """Convolutions of 1x1 whose maps lie in blocks of channels between them."""
    b = Builder("blocked", seed=1)
    x = b.conv(b.conv(b.input("x", [1, 16, 14, 14]), "first", 16, 96, 1), "second", 96, 96, 1)
    b.output(b.conv(x, "third", 96, 16, 1), "y", [1, 16, 14, 14])
    return b.build()


def test_the_operands_of_a_step_and_a_product_count() -> None:
    assert whole_step(4, 2) == 8 + 4 + 2 + 1 == REGISTERS


@pytest.mark.parametrize("name", ["product of 64 rows", "convolution of 1x1", "blocked"])
def test_a_body_is_one_step_that_has_room(name: str) -> None:
    body = largest(blocked() if name == "blocked" else SUITE[name])
    products, reads = body.count("f32x4.mul"), sum("load" in line for line in body)
    assert products == body.count("f32x4.add") >= 6
    assert products + reads + 1 <= REGISTERS


def extrema() -> onnx.ModelProto:
    """Operators that compare numbers and select one of the two, or a constant."""
    b = Builder("extrema", seed=1)
    x = b.input("x", [3, 37])
    y = b.op("Softmax", [x], axis=-1)
    for name in ("Relu", "LeakyRelu", "Elu", "HardSigmoid", "HardSwish", "Selu", "ThresholdedRelu", "Tanh", "Erf"):
        y = b.op("Max", [b.op(name, [x]), y])
    b.output(b.op("ReduceMax", [b.op("Min", [x, y])], keepdims=1), "y", [1, 1])
    return b.build()


def test_relaxed_extrema_of_nan_are_not_the_engines_choice() -> None:
    """LLVM 22.1 with `relaxed-simd` makes of `x < y ? y : x`, whose result for NaN is stated, f32x4.relaxed_max,
    whose is not: a softmax of rows with NaN lost it in Node. Comparison and selection stay two instructions."""
    text = tw.compile_program(extrema(), target="wasm32-relaxed-simd").texts["asm"]
    text = text() if callable(text) else text
    assert "f32x4.relaxed_madd" in text and "v128.bitselect" in text
    assert not re.findall(r"relaxed_(?:min|max)", text)
