"""Kernels of the GPU's plans as threads of blocks: no races, and the results of what was not scheduled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.ptx.cases import ROWS, arguments, emit, function, lowered, tensor
from tests.plans.gpu.test_products import convolution, product
from tests.plans.gpu.test_rows import softmax
from tilewright.codegen.interpret.grid import interpret_grid
from tilewright.codegen.interpret.interpreter import InterpretError, interpret
from tilewright.ir.loops import Barrier, PrimFunc, Seq, Stmt
from tilewright.ir.rewrite import walk, with_children

CASES = {
    "a warp a row": ("gpu rows", softmax(3, 64)),
    "a block a row": ("gpu rows", softmax(1, 1100)),
    "a sum of everything": (
        "gpu rows",
        function(lambda b: (emit(b, "reduce_sum", b.input("x", tensor(5, 333)), axes=(0, 1), keepdims=False),)),
    ),
    "transposition": (
        "gpu pointwise",
        function(lambda b: (emit(b, "transpose", b.input("x", tensor(3, 34, 18)), perm=(2, 0, 1)),)),
    ),
    "product": ("gpu product", product(20, 40, 50, transposed=True)),
    "product of symbolic rows": ("gpu product", product(ROWS, 24, 32, transposed=True)),
    "product of bytes": ("gpu product", product(5, 8, 40, transposed=True, t="i8")),
    "convolution": ("gpu product", convolution(1, 3, 7, 5, 3, 1, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_races(name: str) -> None:
    plan, func = CASES[name]
    flat = lowered(func, plan)
    arrays = arguments(flat, dict.fromkeys(func.symbols, 3))
    wanted = [a.copy() for a in arrays[: len(func.params)]]
    interpret(func, wanted)
    interpret_grid(flat, arrays)
    for got, expected in zip(arrays, wanted, strict=False):
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["a block a row", "product of bytes"])
def test_without_barriers_there_are(name: str) -> None:
    plan, func = CASES[name]
    flat = lowered(func, plan)

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Barrier):
            return Seq(())
        return with_children(s, tuple(map(go, s.children))) if s.children else s

    assert any(isinstance(s, Barrier) for s in walk(flat.body))
    bare: PrimFunc = flat.with_body(go(flat.body))
    with pytest.raises(InterpretError, match="a race on"):
        interpret_grid(bare, arguments(bare, dict.fromkeys(func.symbols, 3)))
