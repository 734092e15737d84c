"""Lanes near each other of which some are off: vectors of neighbours, and no element is touched that no lane reads."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.llvm_run import run
from tests.schedule.guard import guarded
from tilewright import te
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.ir.dtype import BY_NAME, DType, boolean, f32, f64, i8, i64
from tilewright.ir.expr import Buffer, Expr, Var, const
from tilewright.ir.loops import For, If, PrimFunc, Store
from tilewright.ir.parser import parse_func
from tilewright.targets.target import Target

LANES = 16
PLACES: dict[str, Callable[[Expr], Expr]] = {
    "every second": lambda v: v * 2,
    "every third": lambda v: v * 3,
    "each twice": lambda v: v // 2,
    "each four times": lambda v: v // 4,
    "backwards": lambda v: (LANES - 1) - v,
    "two runs far apart": lambda v: v // 8 * 40 + v % 8,
    "a triangle": lambda v: v * v // 4,
}


def copied(place: Callable[[Expr], Expr], dtype: DType, size: int) -> PrimFunc:
    """`b[v] = a[place(v)]` where `on[v]`."""
    v = Var("v")
    a, on, b = (
        Buffer(name, t, (const(n),)) for name, t, n in (("a", dtype, size), ("on", i8, LANES), ("b", dtype, LANES))
    )
    body = If(on[(v,)] > 0, Store(b, (v,), a[(place(v),)]))
    return PrimFunc("f", (a, on, b), For(v, const(LANES), body, "vectorized"))


@pytest.mark.costly(3)
@pytest.mark.parametrize("dtype", [f32, f64, i8, i64, boolean], ids=str)
@pytest.mark.parametrize("where", PLACES)
def test_lanes_that_are_on(where: str, dtype: DType) -> None:
    """Masks of all kinds. The array ends at a guarded page, right after the last element that a lane reads."""
    rng = np.random.default_rng(0)
    places = np.array([int(str(PLACES[where](const(v)))) for v in range(LANES)])
    masks = (np.zeros(LANES), np.ones(LANES), np.arange(LANES) < 5, np.arange(LANES) == 0, rng.integers(0, 2, LANES))
    for on in (mask.astype(np.int8) for mask in masks):
        last = int(places[on > 0].max(initial=0))
        data = rng.integers(-9, 10, last + 1).astype(dtype.numpy)
        got, wanted = np.zeros(LANES, dtype.numpy), np.zeros(LANES, dtype.numpy)
        run(copied(PLACES[where], dtype, last + 1), guarded(data), on, got)
        wanted[on > 0] = data[places[on > 0]]
        np.testing.assert_array_equal(got, wanted)


def test_there_is_no_gather() -> None:
    assert "masked.gather" not in emit_llvm(copied(PLACES["every second"], f32, 31), Target.parse("znver4"))


def test_masks_of_a_tail_are_compared_and_not_shuffled() -> None:
    """The lanes up to `n` read the elements up to `2 n - 1`: masks of loads are the places below that."""
    v, n = Var("v"), Var("n", lo=1, hi=LANES)
    a, b = Buffer("a", f32, (n * 2,)), Buffer("b", f32, (n,))
    body = If(v < n, Store(b, (v,), a[(v * 2,)]))
    func = PrimFunc("f", (a, b), For(v, const(LANES), body, "vectorized"))
    text = emit_llvm(func, Target.parse("znver4"))
    assert text.count("call <16 x float> @llvm.masked.load") == 2
    assert not re.search(r"shufflevector <\d+ x i1>", text)
    for size in range(1, LANES + 1):
        data, got = guarded(np.arange(2 * size - 1, dtype=np.float32)), np.zeros(size, np.float32)
        run(func, data, got, n=size)
        np.testing.assert_array_equal(got, data[::2])


def test_tails_of_several_vectors() -> None:
    """Four vectors at a time of sizes that are not known, with and without a whole one among them."""
    n = te.var("n", lo=1, hi=200)
    x = te.placeholder((n, 2), name="X")
    y = te.compute((n,), lambda i: x[i, 0] + x[n - 1 - i, 1], name="Y")
    s = te.create_schedule(y)
    s[y].vectorize(s[y].split(y.axis[0], 64)[1])
    f = tw.build(s, [x, y])
    for size in range(1, 201):
        a = np.random.default_rng(size).standard_normal((size, 2)).astype(np.float32)
        memory, got = guarded(a), guarded(np.full(size, np.nan, np.float32))
        f(memory, got)
        np.testing.assert_array_equal(got, a[:, 0] + a[::-1, 1])


@pytest.mark.parametrize("first", [16, 3])
@pytest.mark.parametrize("element", ["i8", "u8", "i16", "bf16", "f16", "bool", "i32"])
@pytest.mark.parametrize("cpu", ["x86-64-v4", "x86-64-v3"])
def test_a_lane_that_is_alone_writes_nothing_beside_it(cpu: str, element: str, first: int) -> None:
    """LLVM 22 stores 32 bits of a vector that it narrows under a mask with one lane."""
    target = Target.parse(cpu)
    if not set(target.features) <= set(Target.on_host("host").features):
        pytest.skip(f"this machine cannot run {cpu}")
    func = parse_func(f"""
        func @f(x: f32[48], y: {element}[48]) {{
          for k in 0..2 unrolled {{
            for v in 0..16 vectorized {{
              if k * 16 + v < {first + 1} and k * 16 + v >= {first} {{ y[k * 16 + v] = {element}(x[k * 16 + v]) }}
            }}
          }}
        }}""")
    t = BY_NAME[element].numpy
    x, y = np.full(48, 3.0, np.float32), np.full(48, 1, t)
    run(func, x, y, target=target)
    want = np.full(48, 1, t)
    want[first] = 3
    np.testing.assert_array_equal(y, want)
