"""Loops that collect values and whose bound is no bound of memory: 2**63 - 1 is what exporters write for "none"."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright as tw
from tilewright.support.errors import Error

X = np.ones(4, np.float32)


def model(count: str, last: str, carried: str = "y") -> Any:
    """Doubles x until the sum of its elements is `lim`; collects each value added to x."""
    inputs = "int64 n, " if count == "data" else ""
    constant = "" if count in ("data", "none") else f"int64 n = {{{count}}}, "
    name = "" if count == "none" else "n"
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    g ({inputs}float[4] x, float lim) => (float[4] y, float[T,4] z) <{constant}bool c = {{1}}, int64[1] ax = {{0}}> {{
      y, v = Loop({name or '""'}, c, x) <body = b (int64 i, bool ci, float[4] s) => (bool co, float[4] s2, float[4] o)
        <float two = {{2.0}}> {{
        s2 = Mul(s, two) t = ReduceSum<keepdims=0>(s2) co = Less(t, lim) o = Add(s2, x) }}>
      z = {last} }}"""
    return parser.parse_model(text.replace('Loop("", ', "Loop(, "))


def rows(lim: float, most: int = 1 << 62) -> Any:
    result, s = [], X
    while True:
        s = s * 2
        result.append(s + X)
        if len(result) >= most or not s.sum() < lim:
            return s, np.stack(result)


@pytest.mark.daily(4)
@pytest.mark.parametrize("count", ["100", str(2**63 - 1), str(1 << 40), str(1 << 21), "none"])
@pytest.mark.parametrize("last", ["Identity(v)", "ReduceSum<keepdims=1>(v, ax)"])
def test_as_with_a_bound(count: str, last: str) -> None:
    compiled = tw.compile(model(count, last))
    for lim in (40.0, 0.0, 1e9, 40.0):  # 4, 1, 28 and 4 iterations: rooms grow
        s, want = rows(lim)
        got = compiled(X, np.float32(lim))
        np.testing.assert_array_equal(got[0], s)
        np.testing.assert_array_equal(got[1], want if "Id" in last else want.sum(0, keepdims=True))


def test_a_bound_that_data_says() -> None:
    compiled = tw.compile(model("data", "Identity(v)"))
    for most in (2**63 - 1, 1, 3, 20, 28, 1 << 33):
        s, want = rows(1e9, most)
        got = compiled(np.int64(most), X, np.float32(1e9))
        np.testing.assert_array_equal(got[0], s)
        np.testing.assert_array_equal(got[1], want)
    for most in (0, -1, -(2**63)):
        assert compiled(np.int64(most), X, np.float32(1e9))[1].shape == (0, 4)


def test_what_is_collected_and_not_read() -> None:
    proto = model(str(2**63 - 1), "Reshape(y, o)")
    proto.graph.initializer.add(name="o", dims=[2], data_type=7, int64_data=[1, 4])
    got = tw.compile(proto)(X, np.float32(1e9))
    np.testing.assert_array_equal(got[0], rows(1e9)[0])


def test_what_does_not_end_is_an_error() -> None:
    compiled = tw.compile(model(str(2**63 - 1), "Identity(v)"))
    compiled.max_iterations = 1000
    with pytest.raises(Error, match="more than 1000 iterations"):
        compiled(np.zeros(4, np.float32), np.float32(1.0))
