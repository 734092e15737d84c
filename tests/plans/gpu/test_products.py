"""Products and convolutions by instructions for matrices: the emulator and the interpreter against what was not
scheduled. f32 are rounded to TF32, so that their tolerance is that of 10 bits."""

from __future__ import annotations

import pytest

from tests.codegen.ptx.cases import H100, ROWS, check, emit, function, lowered, tensor
from tilewright.codegen.ptx.emit import emit_module
from tilewright.ir.expr import Var
from tilewright.ir.loops import PrimFunc
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.gpu import products
from tilewright.plans.gpu.contractions import contraction

TF32 = 2e-2


def product(
    m: int | Var, n: int, k: int, *, transposed: bool = False, t: str = "f32", batch: tuple[int, ...] = ()
) -> PrimFunc:
    """relu(x w + c), or x w alone where there is a batch; `transposed`: w is the transpose."""

    def build(b):  # type: ignore[no-untyped-def]
        w = b.input("w", tensor(*batch, n, k, t=t) if transposed else tensor(*batch, k, n, t=t))
        y = emit(b, "matmul", b.input("x", tensor(*batch, m, k, t=t)), w, transpose_b=transposed)
        return (y if batch or t == "i8" else emit(b, "relu", emit(b, "add", y, b.input("c", tensor(n, t=t)))),)

    return function(build)


def convolution(n: int, c: int, size: int, f: int, k: int, stride: int = 1, pad: int = 0) -> PrimFunc:
    def build(b):  # type: ignore[no-untyped-def]
        x, w = b.input("x", tensor(n, c, size, size)), b.input("w", tensor(f, c, k, k))
        y = emit(b, "conv", x, w, strides=(stride, stride), pads=(pad,) * 4, dilations=(1, 1), groups=1)
        return (emit(b, "relu", emit(b, "add", y, b.input("c", tensor(f, 1, 1)))),)

    return function(build)


@pytest.mark.parametrize(
    "func",
    [
        pytest.param(product(20, 40, 50, transposed=True), id="odd"),
        pytest.param(product(ROWS, 24, 32, transposed=True), id="symbolic rows, 16 bytes a copy"),
        pytest.param(product(17, 20, 33, batch=(2,)), id="batch"),
        pytest.param(convolution(2, 3, 7, 5, 3, 1, 1), id="padded convolution"),
        pytest.param(convolution(1, 8, 8, 24, 3, 2, 1), id="strided convolution"),
    ],
)
def test_products_of_f32(func: PrimFunc) -> None:
    check(func, "gpu product", tolerance=TF32, loops=False)


@pytest.mark.parametrize(("t", "tolerance"), [("f16", 1e-3), ("bf16", 1e-2), ("i8", 0.0)])
def test_products_of_other_types(t: str, tolerance: float) -> None:
    check(product(5, 8, 40, transposed=True, t=t), "gpu product", tolerance=tolerance, loops=t == "i8")


@pytest.mark.costly(6)
@pytest.mark.parametrize("tile", products.TILES)
def test_each_tile(tile: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever warps share a tile."""
    monkeypatch.setattr(products, "TILES", (tile,))
    check(product(tile[0] + 3, tile[1] - 5, 17, t="i8"), "gpu product", tolerance=0.0, loops=False)


def test_roles_of_iterators() -> None:
    """Columns are what follows each other in the result: pixels of a convolution, whose filters are rows."""
    (stage,) = [s for s in analyse(convolution(2, 3, 7, 5, 3)).stages if s.block.is_reduction]
    c = contraction(stage.block)
    assert c is not None
    names = [
        [it.var.name.removeprefix("v").rstrip("_0123456789") for it in x] for x in (c.batch, c.rows, c.columns, c.depth)
    ]
    assert names == [[], ["f"], ["n", "h", "w"], ["rc", "kh", "kw"]]


def test_large_products_take_large_tiles() -> None:
    module = emit_module(lowered(product(4096, 4096, 1024, transposed=True, t="bf16"), "gpu product"), H100)
    (launch,) = module.launches
    assert launch.block == (32, 8, 1) and [str(e) for e in launch.grid] == ["32", "32", "1"]
    assert module.text.count("call { float, float, float, float }") == 2 * (2 * 4 * 4)  # two tiles that take turns
