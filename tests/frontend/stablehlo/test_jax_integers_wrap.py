"""Arithmetic of integers in StableHLO wraps, whatever is compared or divided after it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jaxlib")

import tilewright as tw

MODULE = """
func.func @main(%x: tensor<11xTYPE>) -> (tensor<11xi1>, tensor<11xTYPE>, tensor<11xi1>, tensor<11xTYPE>) {
  %one = stablehlo.constant dense<1> : tensor<11xTYPE>
  %three = stablehlo.constant dense<3> : tensor<11xTYPE>
  %ten = stablehlo.constant dense<10> : tensor<11xTYPE>
  %a = stablehlo.add %x, %one : tensor<11xTYPE>
  %b = stablehlo.add %x, %ten : tensor<11xTYPE>
  %c = stablehlo.multiply %x, %three : tensor<11xTYPE>
  %p = stablehlo.compare GT, %a, %x : (tensor<11xTYPE>, tensor<11xTYPE>) -> tensor<11xi1>
  %q = stablehlo.remainder %b, %ten : tensor<11xTYPE>
  %r = stablehlo.compare EQ, %c, %one : (tensor<11xTYPE>, tensor<11xTYPE>) -> tensor<11xi1>
  %s = stablehlo.maximum %a, %x : tensor<11xTYPE>
  return %p, %q, %r, %s : tensor<11xi1>, tensor<11xTYPE>, tensor<11xi1>, tensor<11xTYPE>
}
"""


@pytest.mark.parametrize("t", [np.int8, np.uint8, np.int32, np.int64], ids=lambda t: t.__name__)
def test_integers_wrap(t: type) -> None:
    lo, hi = int(np.iinfo(t).min), int(np.iinfo(t).max)
    third = np.array(pow(3, -1, 1 << np.dtype(t).itemsize * 8), np.uint64).astype(t)  # three times this is one
    x = np.array([lo, lo + 1, lo + 9, hi, hi - 1, hi - 9, hi // 2 + 1, 0, 1, int(third), 10]).astype(t)
    name = ("ui" if lo == 0 else "i") + str(np.dtype(t).itemsize * 8)
    with np.errstate(over="ignore"):
        one, ten = t(1), t(10)
        want = x + one > x, np.fmod(x + ten, ten), x * t(3) == one, np.maximum(x + one, x)
    for got, expected in zip(tw.compile(MODULE.replace("TYPE", name))(x), want, strict=True):
        np.testing.assert_array_equal(got, expected)
