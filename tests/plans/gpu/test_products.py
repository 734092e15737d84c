"""Products and convolutions by instructions for matrices: the emulator and the interpreter against what was not
scheduled. f32 are rounded to TF32, so that their tolerance is that of 10 bits."""

from __future__ import annotations

import pytest

from tests.codegen.ptx.cases import H100, ROWS, check, emit, function, lowered, tensor
from tilewright import plans
from tilewright.codegen.ptx.emit import emit_module
from tilewright.ir.expr import Var
from tilewright.ir.loops import Intrinsic, PrimFunc
from tilewright.ir.rewrite import walk
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.gpu import products
from tilewright.plans.gpu.contractions import contraction
from tilewright.targets.target import Target

TF32 = 2e-2
SM_90A = Target.parse("nvidia-sm_90a")


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


def innermost(
    n: int | Var, c: int, size: int, f: int, k: int, stride: int = 1, pad: int = 0, t: str = "f32"
) -> PrimFunc:
    """relu(conv + c + s) of maps whose channels are innermost."""
    after = (size + 2 * pad - k) // stride + 1

    def build(b):  # type: ignore[no-untyped-def]
        x, w = b.input("x", tensor(n, 1, size, size, c, t=t)), b.input("w", tensor(f, 1, k, k, c, t=t))
        more = {"strides": (stride, stride), "pads": (pad,) * 4, "dilations": (1, 1), "groups": 1}
        y = emit(b, "lowered.conv_last", x, w, **more)
        y = emit(b, "add", y, b.input("c", tensor(f, t=t)))
        return (emit(b, "relu", emit(b, "add", y, b.input("s", tensor(n, 1, after, after, f, t=t)))),)

    return function(build)


@pytest.mark.daily(2)
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


def across(t: str) -> PrimFunc:
    """x^T w: both factors lie across the depth."""

    def build(b):  # type: ignore[no-untyped-def]
        x, w = b.input("x", tensor(40, 72, t=t)), b.input("w", tensor(40, 24, t=t))
        return (emit(b, "matmul", x, w, transpose_a=True),)

    return function(build)


def test_factors_that_lie_across() -> None:
    """Also those, if of 16 bits, are copied 16 bytes at once."""
    flat = check(across("bf16"), "gpu product", tolerance=2e-2, loops=False)
    names = [s.name for s in walk(flat.body) if isinstance(s, Intrinsic)]
    assert set(names) == {"copy_async_bf16", "mma_bf16_a_b"}


CONVOLUTIONS = [
    pytest.param(innermost(2, 12, 7, 20, 3, 1, 1), TF32, id="f32, padded"),
    pytest.param(innermost(ROWS, 8, 7, 13, 3, 2, 1, "f16"), 1e-2, id="f16, strided, symbolic images"),
    pytest.param(innermost(2, 72, 5, 17, 1, t="bf16"), 5e-2, id="bf16, a pixel"),
]


@pytest.mark.daily(3)
@pytest.mark.parametrize(("func", "tolerance"), CONVOLUTIONS)
def test_convolutions_of_channels_innermost(func: PrimFunc, tolerance: float) -> None:
    """Both factors are copied 16 bytes at once, and copies go on while others are multiplied."""
    flat = check(func, "gpu product", tolerance=tolerance, loops=False)
    t = func.params[0].dtype.name
    assert {s.name for s in walk(flat.body) if isinstance(s, Intrinsic)} == {f"copy_async_{t}", f"mma_{t}"}


@pytest.mark.daily(2)
@pytest.mark.costly(6)
@pytest.mark.parametrize(
    ("func", "name", "tolerance"),
    [
        pytest.param(innermost(2, 16, 6, 72, 3, 1, 1, "f16"), "wgmma64_f16", 1e-2, id="a convolution"),
        pytest.param(
            innermost(2, 64, 6, 40, 1, t="bf16"), "wgmma64_tile_bf16", 5e-2, id="a convolution of pixels, whole tiles"
        ),
        pytest.param(product(70, 24, 132, transposed=True), "wgmma64_f32", TF32, id="tf32"),
        pytest.param(product(70, 24, 192, transposed=True), "wgmma64_tile_f32", TF32, id="tf32, whole tiles"),
        pytest.param(product(ROWS, 72, 128, transposed=True, t="f16"), "wgmma64_tile_f16", 1e-2, id="f16, whole tiles"),
        pytest.param(
            product(66, 24, 128, transposed=True, t="bf16", batch=(2,)), "wgmma64_tile_bf16", 3e-2, id="a batch"
        ),
        pytest.param(across("f16"), "wgmma64_f16_a_b", 1e-2, id="f16 across"),
        pytest.param(product(66, 24, 144, transposed=True, t="i8"), "wgmma64_i8", 0.0, id="i8"),
        pytest.param(product(66, 24, 256, transposed=True, t="i8"), "wgmma64_tile_i8", 0.0, id="i8, whole tiles"),
    ],
)
def test_four_warps_together(func: PrimFunc, name: str, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wgmma`, whose factors the emulator reads by their descriptors."""
    monkeypatch.setattr(products, "TILES", ())
    flat = check(func, "gpu product", tolerance=tolerance, target=SM_90A, loops=False)
    assert any(isinstance(s, Intrinsic) and s.name == name for s in walk(flat.body))


@pytest.mark.parametrize("t", ["f32", "i8"])
def test_parts_of_the_depth(t: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks add parts of a deep sum, and another kernel adds these, with what follows the product."""
    monkeypatch.setattr(products, "SPLITS", (2,))
    func = product(9, 24, 128 if t == "f32" else 256, transposed=True, t=t)
    flat = check(func, "gpu product", tolerance=TF32 if t == "f32" else 0.0, loops=False)
    assert len(emit_module(flat, H100).launches) == 2


@pytest.mark.parametrize(("rows", "depth", "splits"), [(4, 4096, 8), (4, 128, 1), (65536, 4096, 1)])
def test_deep_products_of_one_tile_are_split(rows: int, depth: int, splits: int) -> None:
    chosen = plans.plan(product(rows, 64, depth, transposed=True, t="bf16"), H100).chosen
    assert chosen.knob("splits") == splits


def test_large_products_are_of_four_warps_where_a_gpu_has_them() -> None:
    func = product(4096, 4096, 1024, t="bf16")
    text = emit_module(lowered(func, "gpu product", SM_90A), SM_90A).text
    assert text.count("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16") == 4
    assert "mma_bf16" in str(lowered(func, "gpu product")) and "wgmma" not in str(lowered(func, "gpu product"))


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
    assert module.text.count("call { float, float, float, float }") == 2 * 4 * 4
    assert launch.shared == 4 * (128 + 128) * 64  # four stages of both factors


@pytest.mark.parametrize(("columns", "at_once"), [(64, True), (63, False)])
def test_neighbours_are_stored_at_once(columns: int, at_once: bool) -> None:
    """The two sums of a row that a thread has, where the result has an even number of columns."""
    text = emit_module(lowered(product(32, columns, 64, transposed=True), "gpu product"), H100).text
    assert ("store <2 x float>" in text) is at_once
