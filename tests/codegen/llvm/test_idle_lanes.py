"""Vectors that are no power of two: what lies after their lanes in memory is not calculated with."""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import pytest

from tests.codegen.llvm.llvm_run import call, native
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.ir.dtype import DType, f16, f32, f64
from tilewright.ir.expr import Buffer, Var, const
from tilewright.ir.loops import Allocate, For, PrimFunc, Store, seq
from tilewright.targets.target import Target

ROWS, STRIDE = 5, 64
DENORMAL_OPERAND = 2
"""The bit of MXCSR, the register of states of vector arithmetic (Intel SDM, volume 1, 10.2.3)."""


class Environment(ctypes.Structure):
    """`fenv_t` of the C libraries on x86-64, whose last word is MXCSR."""

    _fields_ = (("x87", ctypes.c_uint32 * 7), ("mxcsr", ctypes.c_uint32))


def doubled(dtype: DType, width: int, rows: int = ROWS) -> PrimFunc:
    """`b[r, v] = 2 a[r, v]` for the first `width` elements of rows, which lie in an allocation on the way."""
    r, q, v, w = Var("r"), Var("q"), Var("v"), Var("w")
    a, own, b = (Buffer(name, dtype, (const(rows), const(STRIDE))) for name in ("a", "own", "b"))
    copy = For(w, const(STRIDE), Store(own, (q, w), a[(q, w)]), "vectorized")
    add = For(v, const(width), Store(b, (r, v), own[(r, v)] + own[(r, v)]), "vectorized")
    body = seq([For(q, const(rows), copy), For(r, const(rows), add)])
    return PrimFunc("f", (a, b), Allocate(own, body))


def rows_of(dtype: DType, width: int) -> np.ndarray:
    """Rows of ones whose rest is denormal."""
    data = np.full((ROWS, STRIDE), np.finfo(dtype.numpy).smallest_subnormal)
    data[:, :width] = 1
    return data


@pytest.mark.skipif(platform.machine() != "x86_64", reason="MXCSR is a register of x86")
@pytest.mark.parametrize("name", ["host", "x86-64-v3"])
@pytest.mark.parametrize("width", [3, 5, 9, 13, 25, 32])
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_no_denormal_operand(dtype: DType, width: int, name: str) -> None:
    libm = ctypes.CDLL("libm.so.6")
    data, got = rows_of(dtype, width), np.zeros((ROWS, STRIDE), dtype.numpy)
    kernel = native(doubled(dtype, width), Target.on_host(name))
    state = Environment()
    libm.fegetenv(ctypes.byref(state))
    state.mxcsr &= ~DENORMAL_OPERAND
    libm.fesetenv(ctypes.byref(state))
    call(kernel, [data, got])
    libm.fegetenv(ctypes.byref(state))
    assert not state.mxcsr & DENORMAL_OPERAND
    np.testing.assert_array_equal(got[:, :width], 2)
    assert not got[:, width:].any()


@pytest.mark.parametrize("dtype", [f32, f64, f16], ids=str)
@pytest.mark.parametrize("width", [8, 9, 24])
def test_what_is_read_under_a_mask(dtype: DType, width: int) -> None:
    """Tails of an allocation's rows, of what is calculated with as it is; powers of two are vectors of their own."""
    text = emit_llvm(doubled(dtype, width), Target.parse("znver4"))
    lanes = 64 // dtype.itemsize if dtype is not f16 else 16
    rest = width % lanes
    assert ("masked.load" in text) == (dtype is not f16 and rest & (rest - 1) != 0)
    assert "masked" not in emit_llvm(doubled(dtype, width), Target.parse("x86-64"))
    assert "masked" not in emit_llvm(doubled(dtype, width, rows=1), Target.parse("znver4"))


def unaligned(width: int) -> PrimFunc:
    """`b[r, v] = 2 a[r, v]` of rows that begin anywhere in a line."""
    r, v = Var("r"), Var("v")
    a, b = (Buffer(name, f32, (const(ROWS), const(STRIDE + 1))) for name in ("a", "b"))
    return PrimFunc(
        "f", (a, b), For(r, const(ROWS), For(v, const(width), Store(b, (r, v), a[(r, v)] * 2), "vectorized"))
    )


@pytest.mark.parametrize(
    ("width", "wide", "narrow"), [(12, 0, 0), (13, 1, 0), (15, 1, 1), (16, 0, 0), (30, 1, 0), (7, 1, 1)]
)
def test_what_is_not_aligned_is_not_put_together_of_several_pieces(width: int, wide: int, narrow: int) -> None:
    """Three and more pieces of a vector are one load under a mask: 8 + 4 + 1 of 13, but 4 + 1 where 8 fill a vector."""
    for name, loads in (("znver4", wide), ("x86-64-v3", narrow), ("x86-64", 0)):
        text = emit_llvm(unaligned(width), Target.parse(name))
        assert text.count("@llvm.masked.load") - text.count("declare") == loads


@pytest.mark.skipif(platform.machine() != "x86_64", reason="targets of x86")
@pytest.mark.parametrize("name", ["host", "x86-64-v3"])
@pytest.mark.parametrize("width", [7, 11, 13, 14, 15, 30, 63])
def test_what_is_read_under_a_mask_is_what_was_there(width: int, name: str) -> None:
    data, got = np.full((ROWS, STRIDE + 1), np.nan, np.float32), np.zeros((ROWS, STRIDE + 1), np.float32)
    data[:, :width] = np.arange(ROWS * width).reshape(ROWS, width)
    call(native(unaligned(width), Target.on_host(name)), [data, got])
    np.testing.assert_array_equal(got[:, :width], 2 * data[:, :width])
    assert not got[:, width:].any()
