"""Kernels of the GPU's plans as threads of blocks: no races, and the results of what was not scheduled."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.codegen.ptx.cases import H100, ROWS, arguments, emit, function, lowered, tensor
from tests.codegen.ptx.emulator import run_both_ways
from tests.plans.gpu.test_products import convolution, product
from tests.plans.gpu.test_rows import softmax
from tilewright.codegen.interpret.grid import interpret_grid
from tilewright.codegen.interpret.interpreter import InterpretError, interpret
from tilewright.codegen.ptx.emit import emit_module
from tilewright.ir.loops import Barrier, Intrinsic, PrimFunc, Seq, Stmt
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import walk, with_children
from tilewright.plans.gpu import products
from tilewright.schedule.mma_intrinsics import is_async
from tilewright.targets.target import Target
from tilewright.transform.loops.barriers import insert_barriers

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
    "copies while products go on": ("gpu product", product(20, 24, 40, transposed=True)),
    "four warps together": ("gpu product", product(66, 24, 72, transposed=True)),
    "four warps together, whole tiles": ("gpu product", product(66, 24, 64, transposed=True)),
    "parts of the depth": ("gpu product", product(9, 24, 64, transposed=True)),
    "product of symbolic rows": ("gpu product", product(ROWS, 24, 32, transposed=True)),
    "product of bytes": ("gpu product", product(5, 8, 40, transposed=True, t="i8")),
    "convolution": ("gpu product", convolution(1, 3, 7, 5, 3, 1, 1)),
}


@pytest.fixture
def _tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("four"):
        monkeypatch.setattr(products, "TILES", ())
    if name.startswith("parts"):
        monkeypatch.setattr(products, "SPLITS", (2,))


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("_tiles")
def test_no_races(name: str) -> None:
    plan, func = CASES[name]
    flat = lowered(func, plan, Target.parse("nvidia-sm_90a") if "four" in name else H100)
    assert not name.startswith("four") or any(isinstance(s, Intrinsic) and "wgmma" in s.name for s in walk(flat.body))
    arrays = arguments(flat, dict.fromkeys(func.symbols, 3))
    wanted = [a.copy() for a in arrays[: len(func.params)]]
    interpret(func, wanted)
    interpret_grid(flat, arrays)
    for got, expected in zip(arrays, wanted, strict=False):
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=1e-5, atol=1e-4)


def without(func: PrimFunc, which: set[int] | None = None) -> PrimFunc:
    """The function without its barriers, or without some of them, by their order."""
    numbers = itertools.count()

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Barrier):
            number = next(numbers)
            return Seq(()) if which is None or number in which else s
        return with_children(s, tuple(map(go, s.children))) if s.children else s

    return func.with_body(go(func.body))


@pytest.mark.parametrize("name", ["a block a row", "product of bytes", "copies while products go on"])
def test_without_barriers_there_are(name: str) -> None:
    plan, func = CASES[name]
    flat = lowered(func, plan)
    assert any(isinstance(s, Barrier) for s in walk(flat.body))
    bare = without(flat)
    with pytest.raises(InterpretError, match="a race on"):
        interpret_grid(bare, arguments(bare, dict.fromkeys(func.symbols, 3)))


def test_each_barrier_between_copies_and_products_is_needed() -> None:
    """Before each step that is begun ahead, and before each that is multiplied; no barrier is inside of the copies."""
    _, func = CASES["copies while products go on"]
    flat = lowered(func, "gpu product")
    count = sum(isinstance(s, Barrier) for s in walk(flat.body))
    assert count == 2 and any(isinstance(s, Intrinsic) and is_async(s.name) for s in walk(flat.body))
    for k in range(count):
        bare = without(flat, {k})
        with pytest.raises(InterpretError, match="a race on"):
            interpret_grid(bare, arguments(bare, {}))


COPY = """func @copied(x: f32[128], y: f32[32]) {
  for b in 0..1 thread(blockIdx.x) {
    alloc s: f32[32, 4] in shared {
      for t in 0..32 thread(threadIdx.x) {
        call copy_async_f32(s[t +: 1, 0 +: 4]; x[t * 4 +: 4])
        y[t] = s[t, 1]
      }
    }
  }
}"""


def test_a_copy_races_with_its_own_thread() -> None:
    """The bytes are there after the next barrier, in the interpreter and in the emulator."""
    func = parse_func(COPY)
    x = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    with pytest.raises(InterpretError, match=r"a race on s.*an asynchronous copy of thread.*no barrier"):
        interpret_grid(func, [x, np.empty(32, np.float32)])
    done = insert_barriers(func)
    y = np.empty(32, np.float32)
    interpret_grid(done, [x, y])
    np.testing.assert_array_equal(y, x[1::4])
    _, emulated = run_both_ways(emit_module(done, H100), [x, np.empty(32, np.float32)], {})
    np.testing.assert_array_equal(emulated, x[1::4])
    with pytest.raises(AssertionError, match="nobody waited"):
        run_both_ways(emit_module(func, H100), [x, np.empty(32, np.float32)], {})
