"""Arm's code of hot loops: accumulators in registers, an empty stack, factors that are lanes, dot instructions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from benchmarks.onnx_builder import Builder
from tests.targets.hot_loops import MIN_ACCUMULATORS, SUITE, HotLoop, hot_loops, largest


def test_loops_are_counted() -> None:
    text = """
kernel:
    mov x0, #4
.LBB0_1:
    ldr q2, [sp, #16]
.LBB0_2:
    fmla v0.4s, v2.4s, v3.s[1]
    fmla v1.4s, v2.4s, v3.4s
    sub x8, x29, #64
    str z0, [x8, #1, mul vl]   // a spill
    b.ne .LBB0_2
    cbnz x0, .LBB0_1
    ret
other:
.LBB1_1:
    add x0, x0, #1
    b.lt .LBB1_1
"""
    assert list(hot_loops(text)) == [HotLoop("kernel", 2, 1, 2, 1, ("fmla",))]


@pytest.mark.parametrize("name", ["product of 64 rows", "product of 512 rows", "convolution of 1x1"])
def test_tiles_fill_the_registers(name: str) -> None:
    loop = largest(SUITE[name], "neoverse-n1")
    assert loop.accumulators >= MIN_ACCUMULATORS and loop.stack == 0 and loop.by_element >= loop.adds * 2 // 3


def test_products_of_winograd_keep_their_sums_in_registers() -> None:
    # As many rows as divide the tiles of a block: five of 25, by four vectors.
    loop = largest(SUITE["convolution of 3x3"], "neoverse-n1")
    assert loop.accumulators >= 20 and loop.stack == 0 and loop.by_element >= loop.adds * 2 // 3


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ["product of 64 rows", "convolution of 1x1", "convolution of 5x5"])
def test_tiles_of_scalable_vectors_stay_in_registers(name: str) -> None:
    loop = largest(SUITE[name], "neoverse-v1-sve")
    assert loop.accumulators >= MIN_ACCUMULATORS and loop.stack == 0


def _in_bytes(
    kind: type, size: int = 20, channels: int = 32, filters: int = 64, kernel: int = 3, stride: int = 1
) -> onnx.ModelProto:
    """A convolution in 8 bits, between QuantizeLinear and DequantizeLinear."""
    b, rng = Builder("bytes", seed=8), np.random.default_rng(8)
    scale, zero = b.constant(np.float32(0.05)), b.constant(kind(128 if kind is np.uint8 else 3))
    fine, none = b.constant(np.float32(0.01)), b.constant(np.int8(0))
    x = b.op("QuantizeLinear", [b.input("x", [1, channels, size, size]), scale, zero])
    weight = b.constant(rng.integers(-127, 128, (filters, channels, kernel, kernel)).astype(np.int8))
    factors = [b.op("DequantizeLinear", [x, scale, zero]), b.op("DequantizeLinear", [weight, fine, none])]
    y = b.op("Conv", factors, pads=[kernel // 2] * 4, kernel_shape=[kernel] * 2, strides=[stride] * 2)
    b.output(y, "y", [1, filters, -(-size // stride), -(-size // stride)])
    return b.build()


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("target", "kind", "instruction"),
    [
        ("neoverse-n1", np.uint8, "sdot"),
        ("neoverse-n1", np.int8, "sdot"),
        ("neoverse-v1", np.uint8, "usmmla"),
        ("neoverse-v1", np.int8, "smmla"),
        ("neoverse-v1-sve", np.int8, "smmla"),
    ],
)
def test_bytes_are_multiplied_by_dot_instructions(target: str, kind: type, instruction: str) -> None:
    loop = largest(_in_bytes(kind), target)
    assert loop.kinds == (instruction,) and loop.accumulators >= 20 and loop.stack == 0


def test_tiles_of_bytes_leave_room_for_what_is_read() -> None:
    # 14 rows by 2 vectors would leave four registers: every step moved all accumulators on by one.
    loop = largest(_in_bytes(np.int8, 28), "neoverse-n1")
    assert loop.accumulators >= MIN_ACCUMULATORS and loop.stack == 0


@pytest.mark.daily(3)
@pytest.mark.parametrize("target", ["neoverse-n1", "neoverse-v1", "neoverse-v1-sve"])
@pytest.mark.parametrize(
    "layer",
    [{"kernel": 1, "channels": 64, "filters": 128, "size": 24}, {"kernel": 7, "channels": 3, "stride": 2, "size": 56}],
    ids=["of one pixel", "of three channels"],
)
def test_steps_of_bytes_leave_the_stack_alone(target: str, layer: dict[str, int]) -> None:
    loop = largest(_in_bytes(np.int8, **layer), target)
    assert loop.accumulators >= MIN_ACCUMULATORS and loop.stack == 0
