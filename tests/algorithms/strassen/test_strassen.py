"""Strassen's products in native code, on awkward shapes, and where they are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import BATCH, tensor
from tilewright import ops
from tilewright.algorithms.strassen.operators.product import PRODUCTS
from tilewright.algorithms.strassen.plan import convolution as strassen_convolution
from tilewright.algorithms.strassen.plan import product as strassen_product
from tilewright.algorithms.strassen.plan.product import MAX_TIME, compared
from tilewright.algorithms.strassen.selection import StrassenStrips
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.loops import Block, For
from tilewright.ir.rewrite import variables, walk
from tilewright.plans import plan
from tilewright.plans.framework.cost import Cost
from tilewright.plans.matmul.tiles import Product
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import Options
from tilewright.transform.layout.assign import assign_layouts, in_blocks
from tilewright.transform.lower import lower_group
from tilewright.transform.select import choose
from tilewright.transform.select.choose import choose_algorithms

TARGETS = ("x86-64-v3", "znver4", "skylake-avx512", "neoverse-n1")
WIDE_L2 = 8 << 20
"""A second level of cache that holds the sums of all rows here."""


def layer(rows: Any, depth: int, columns: int, transpose: bool, lead: tuple[int, ...] = ()) -> Graph:
    """A product with bias, skip and ReLU."""
    b = GraphBuilder("layer")
    x = b.input("x", tensor(*lead, rows, depth))
    w = b.param("w", tensor(*((columns, depth) if transpose else (depth, columns))))
    skip = b.input("skip", tensor(*lead, rows, columns))
    y = ops.emit1(b, "matmul", x, w, transpose_b=transpose)
    y = ops.emit1(b, "add", ops.emit1(b, "add", y, b.param("bias", tensor(columns))), skip)
    return b.finish((ops.emit1(b, "relu", y),))


def operators(graph: Graph, target: Target, winograd: str = "strassen") -> list[str]:
    return [
        node.op
        for node in assign_layouts(choose_algorithms(graph, target, in_blocks(), Options(fast=winograd)), target).nodes
    ]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strassen_product, "compared", lambda *_: (Cost(compute=2.0), Cost(compute=1.0)))


@pytest.mark.daily(3)
@pytest.mark.costly(4)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["host", "x86-64-v3"])
@pytest.mark.parametrize(("lead", "rows", "depth", "columns", "transpose"), [
    ((), 64, 48, 64, False),
    ((), 33, 31, 192, True),
    ((1,), 17, 100, 32, False),
    ((1, 1), 3, 17, 64, True),
    ((), 2, 5, 256, False),
    ((), 40, 1, 96, True),
])  # fmt: skip
def test_native_code_on_awkward_shapes(
    lead: tuple[int, ...], rows: int, depth: int, columns: int, transpose: bool, name: str, threads: int
) -> None:
    # any machine: the fixture has the algorithm taken always
    target = Target.parse(name)
    if not set(target.features) <= set(Target.host().features):
        pytest.skip("this machine lacks its features")
    rng = np.random.default_rng(rows)
    graph = layer(rows, depth, columns, transpose, lead)
    assert "lowered.matmul_strassen" in operators(graph, target)
    x, skip = (rng.standard_normal((*lead, rows, n)).astype(np.float32) for n in (depth, columns))
    w, bias = rng.standard_normal((depth, columns)).astype(np.float32), rng.standard_normal(columns).astype(np.float32)
    weights = {"w": np.ascontiguousarray(w.T) if transpose else w, "bias": bias}
    got = np.asarray(tw.compile((graph, weights), target=target, threads=threads, fast="strassen")(x, skip))
    want = np.maximum(x.astype(np.float64) @ w + bias + skip, 0)
    np.testing.assert_allclose(got, want, rtol=0, atol=4e-6 * np.abs(want).max())


@pytest.mark.parametrize("name", TARGETS)
def test_selected_where_products_are_large_and_rows_are_known(name: str) -> None:
    target = Target.parse(name).adjusted(l2=WIDE_L2)
    large = layer(256, 1024, 1024, False)
    assert "lowered.matmul_strassen" in operators(large, target)
    for setting in ("auto", "exact", "f6"):  # Rows of a batch do not meet unless the caller says so.
        assert "lowered.matmul_strassen" not in operators(large, target, setting)
    assert "lowered.matmul_strassen" not in operators(layer(BATCH, 1024, 1024, False), target)
    assert "lowered.matmul_strassen" not in operators(layer(1, 1024, 1024, False), target)
    assert "lowered.matmul_strassen" not in operators(layer(256, 1024, 1002, False), target)
    assert "lowered.matmul_strassen" not in operators(layer(256, 1024, 1024, False, (2,)), target)


def normed(norm: str, lead: tuple[Any, ...], axis: int) -> Graph:
    """A product with 256 rows that a norm has made."""
    b = GraphBuilder("layer")
    shape = (*lead, 256, 1024)
    x = b.input("x", tensor(*shape))
    x = ops.emit1(b, norm, x, b.param("scale", tensor(*shape[axis:])), axis=axis, epsilon=1e-5)
    return b.finish((ops.emit1(b, "matmul", x, b.param("w", tensor(1024, 1024))),))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_rows_of_one_sequence_meet_after_a_norm(norm: str, name: str) -> None:
    target = Target.parse(name).adjusted(l2=WIDE_L2)
    for setting, selected in (("auto", True), ("f6", True), ("strassen", True), ("f4", False), ("exact", False)):
        assert ("lowered.matmul_strassen" in operators(normed(norm, (1,), -1), target, setting)) == selected
    assert "lowered.matmul_strassen" in operators(normed(norm, (1, 1), 3), target, "auto")
    for lead, axis in (((), 1), ((2,), 2), ((BATCH,), 2), ((1,), 1)):  # Several samples; rows of different sizes.
        assert "lowered.matmul_strassen" not in operators(normed(norm, lead, axis), target, "auto")
    b = GraphBuilder("layer")
    ordinary = ops.emit1(b, "matmul", b.input("x", tensor(1, 256, 1024)), b.param("w", tensor(1024, 1024)))
    assert "lowered.matmul_strassen" not in operators(b.finish((ordinary,)), target, "auto")


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_rows_after_a_norm_keep_their_digits(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of very different sizes come alike out of the norm, so that none loses digits; NaN reaches one row more."""
    # any machine: the costs that are compared are stated
    graph = normed(norm, (1,), 2)
    monkeypatch.setattr(strassen_product, "compared", lambda *_: (Cost(compute=2.0), Cost(compute=1.0)))
    assert "lowered.matmul_strassen" in operators(graph, Target.host(), "auto")
    rng = np.random.default_rng(0)
    scale, w = rng.uniform(0.5, 2, 1024).astype(np.float32), rng.standard_normal((1024, 1024)).astype(np.float32)
    x = rng.standard_normal((1, 256, 1024)).astype(np.float32) * 10.0 ** rng.integers(-2, 6, (1, 256, 1)).astype("f4")
    wide = x.astype(np.float64) - (x.mean(-1, keepdims=True, dtype=np.float64) if norm == "layer_norm" else 0)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * scale @ w
    model = tw.compile((graph, {"scale": scale, "w": w}))
    got = np.asarray(model(x))
    assert (np.abs(got - want).max(-1) / np.abs(want).max(-1)).max() < 4e-6
    x[0, 3] = np.nan
    assert set(np.nonzero(np.isnan(np.asarray(model(x))).any(-1))[1]) <= {3, 3 + 128}


def pays(product: Product, weights: int, target: Target) -> bool:
    ordinary, fast = compared(product, weights, target)
    return fast.cycles < MAX_TIME * ordinary.cycles


@pytest.mark.parametrize("name", TARGETS)
def test_a_small_number_of_rows_whose_weights_come_from_memory_stay_ordinary(name: str) -> None:
    """The weights of the seven products are 7/4 of the direct ones, which few rows wait for."""
    target = Target.parse(name).adjusted(l2=WIDE_L2)
    assert not pays(Product(8, 4096, 4096), 1 << 30, target)
    assert not pays(Product(64, 64, 64), 1 << 14, target)
    assert pays(Product(256, 1024, 1024), 4 << 20, target)


def test_sums_that_come_once_more_from_beyond_the_second_level_cost_more_than_they_save() -> None:
    """The sums are read for each panel."""
    target = Target.parse("emeraldrapids").adjusted(l2=2 << 20)
    is_short, several = (Product(rows, 768, 768) for rows in (128, 512))
    assert pays(is_short, 4 << 20, target) and not pays(several, 4 << 20, target)
    assert pays(several, 4 << 20, target.adjusted(l2=16 << 20))


def pixels(images: Any, channels: int, filters: int, size: tuple[int, int], stride: int = 1) -> Graph:
    """A convolution of one pixel with bias, skip and ReLU."""
    b = GraphBuilder("layer")
    out = [-(-d // stride) for d in size]
    x, skip = b.input("x", tensor(images, channels, *size)), b.input("skip", tensor(images, filters, *out))
    w, bias = b.param("w", tensor(filters, channels, 1, 1)), b.param("bias", tensor(1, filters, 1, 1))
    attrs = {"strides": (stride, stride), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    y = ops.emit1(b, "add", ops.emit1(b, "conv", x, w, **attrs), bias)
    return b.finish((ops.emit1(b, "relu", ops.emit1(b, "add", y, skip)),))


@pytest.mark.daily(3)
@pytest.mark.costly(4)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["host", "x86-64-v3"])
@pytest.mark.parametrize(("images", "channels", "filters", "size", "stride", "strip", "panels"), [
    (BATCH, 64, 128, (14, 14), 1, 49, 1),
    (BATCH, 96, 64, (7, 7), 1, 25, 1),
    (1, 32, 256, (7, 7), 1, 25, 1),
    (2, 32, 128, (9, 5), 2, 8, 2),
    (3, 64, 64, (10, 12), 2, 5, 1),
    (1, 32, 128, (16, 8), 1, 16, 2),
])  # fmt: skip
def test_convolutions_of_one_pixel_on_awkward_shapes(
    images: Any,
    channels: int,
    filters: int,
    size: tuple[int, int],
    stride: int,
    strip: int,
    panels: int,
    name: str,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # any machine: the choice is stated
    target = Target.parse(name)
    if not set(target.features) <= set(Target.host().features):
        pytest.skip("this machine lacks its features")
    width = 2 * target.lanes(4)
    together = panels if filters // 2 // width % panels == 0 else 1
    monkeypatch.setattr(choose, "convolution_algorithm", lambda *_: StrassenStrips(width, together))
    monkeypatch.setattr(strassen_convolution, "strips", lambda _: iter([strip]))
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")  # kernels of other strips
    graph = pixels(images, channels, filters, size, stride)
    assert "lowered.conv_strassen" in operators(graph, target, "auto")
    rng = np.random.default_rng(channels)
    w = rng.standard_normal((filters, channels, 1, 1)).astype(np.float32)
    bias = rng.standard_normal((1, filters, 1, 1)).astype(np.float32)
    model = tw.compile((graph, {"w": w, "bias": bias}), target=target, threads=threads)
    for count in (1, 3) if images is BATCH else (images,):
        x = rng.standard_normal((count, channels, *size)).astype(np.float32)
        want = np.einsum("nchw,kc->nkhw", x[:, :, ::stride, ::stride].astype(np.float64), w[:, :, 0, 0]) + bias
        skip = rng.standard_normal(want.shape).astype(np.float32)
        want = np.maximum(want + skip, 0)
        np.testing.assert_allclose(np.asarray(model(x, skip)), want, rtol=0, atol=4e-6 * np.abs(want).max())


def test_images_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An infinity in one caller's image reaches no other's."""
    # any machine: the choice is stated
    target = Target.host()
    choice = StrassenStrips(2 * target.lanes(4), 1)
    monkeypatch.setattr(choose, "convolution_algorithm", lambda *_: choice)
    graph = pixels(2, 64, 4 * target.lanes(4), (6, 6))
    assert "lowered.conv_strassen" in operators(graph, target, "auto")
    rng = np.random.default_rng(0)
    weights = {v.name: rng.standard_normal([as_int(d) or 0 for d in v.shape]).astype(np.float32) for v in graph.params}
    x, skip = (rng.standard_normal([as_int(d) or 0 for d in v.shape]).astype(np.float32) for v in graph.inputs)
    model = tw.compile((graph, weights), target=target)
    clean = np.array(model(x, skip))
    x[1, 3, 2, 2] = np.inf
    np.testing.assert_array_equal(np.asarray(model(x, skip))[0], clean[0])


@pytest.mark.parametrize("name", ["x86-64-v3", "znver3", "znver4"])
def test_convolutions_of_several_channels_take_it_where_fast_ones_are_allowed(name: str) -> None:
    target = Target.parse(name)
    deep = pixels(1, 512, 1024, (14, 14))
    for setting, selected in (("auto", True), ("strassen", True), ("f4", False), ("exact", False)):
        assert ("lowered.conv_strassen" in operators(deep, target, setting)) is selected
    assert "lowered.conv_strassen" in operators(pixels(BATCH, 512, 1024, (14, 14)), target, "auto")
    # Sums and products of few channels or filters cost what an eighth of the multiplications saves.
    for channels, filters, size in ((64, 256, 56), (256, 64, 56), (512, 1024, 1), (524, 1024, 14), (512, 1000, 14)):
        assert "lowered.conv_strassen" not in operators(pixels(1, channels, filters, (size, size)), target, "auto")


@pytest.mark.parametrize(("rows", "width", "columns"), [(197, 24, 1536), (64, 16, 512), (50, 40, 240), (33, 48, 288)])
def test_a_panel_computes_its_own_products_alone(rows: int, width: int, columns: int) -> None:
    """Tiles that overhang a panel (24 columns in vectors of 8, two at once) must not prefetch the next panel's."""
    b = GraphBuilder("product")
    x, w = b.input("x", tensor(rows, 32)), b.param("w", tensor(columns // 2 // width, PRODUCTS, 16, width))
    graph = b.finish((ops.emit1(b, "lowered.matmul_strassen", x, w, columns=columns),))
    (group,) = fuse(graph)
    planned = plan(lower_group(group, "product").func, Target.parse("x86-64-v3"))
    assert planned.plan == "strassen"
    blocks = {s.name: s for s in walk(planned.func.body) if isinstance(s, Block)}
    panels, *_ = blocks["product"].iters
    (loop,) = (s for s in walk(planned.func.body) if isinstance(s, For) and s.var in variables(panels.binding))
    assert loop.kind == "parallel" and loop.extent is panels.extent  # The panels' own loop, and none around it.
