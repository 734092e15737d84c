"""Stages that constants make superfluous are not in a kernel's function; where they make nothing so, the function
stays."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright import te
from tilewright.ir.dtype import i64
from tilewright.ir.expr import const
from tilewright.ir.loops import PrimFunc
from tilewright.schedule.state import blocks_in
from tilewright.transform.fold_stages import fold_stages


def scaled(factor: int) -> PrimFunc:
    a = te.placeholder((6, 4), dtype=i64, name="A")
    r = te.reduce_axis(4, "k")
    total = te.compute((6,), lambda i: te.sum(a[i, r], r), name="total")
    number = te.compute((), lambda: const(factor, i64), name="number")
    return te.create_prim_func([a, te.compute((6,), lambda i: total[i] * number[()], name="C")], "scaled")


def test_a_sum_times_nothing() -> None:
    resolved = fold_stages(scaled(0))
    assert [b.name for b in blocks_in(resolved.body)] == ["C"] and not resolved.buffers
    func = scaled(2)
    assert fold_stages(func) is func


@pytest.mark.parametrize("outputs", [["e"], ["e", "f"], ["d", "e"]])
def test_a_product_of_which_nothing_is_left(outputs: list[str]) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["d"]),
        node("Mul", ["d", "zero"], ["e"]),
        node("Add", ["e", "one"], ["f"]),
    ]
    w = np.arange(160, dtype=np.int32).reshape(16, 10)
    weights = {"w": w, "zero": np.array(0, np.int32), "one": np.array(1, np.int32)}
    x = np.arange(64, dtype=np.int32).reshape(4, 16)
    result = tw.compile(model(nodes, [info("x", [4, 16], TensorProto.INT32)], outputs, weights), fallback="never")(x)
    want = {"d": x @ w, "e": 0 * (x @ w), "f": 0 * (x @ w) + 1}
    for name, y in zip(outputs, result if isinstance(result, tuple) else (result,), strict=True):
        np.testing.assert_array_equal(y, want[name])
