"""Strassen's products in native code, on awkward shapes, and where they are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import BATCH, tensor
from tilewright import ops
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.target import Target
from tilewright.plans.matmul_tiles import Product
from tilewright.plans.strassen import pays
from tilewright.transform.graph import layout_strassen
from tilewright.transform.graph.layout import assign_layouts
from tilewright.transform.graph.options import Options

TARGETS = ("x86-64-v3", "znver4", "skylake-avx512", "neoverse-n1")


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
    return [node.op for node in assign_layouts(graph, target, Options(winograd=winograd)).nodes]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_strassen, "pays", lambda *_: True)


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
    target = Target.parse(name)
    if not set(target.features) <= set(Target.host().features):
        pytest.skip("this machine lacks its features")
    rng = np.random.default_rng(rows)
    graph = layer(rows, depth, columns, transpose, lead)
    assert "matmul_strassen" in operators(graph, target)
    x, skip = (rng.standard_normal((*lead, rows, n)).astype(np.float32) for n in (depth, columns))
    w, bias = rng.standard_normal((depth, columns)).astype(np.float32), rng.standard_normal(columns).astype(np.float32)
    weights = {"w": np.ascontiguousarray(w.T) if transpose else w, "bias": bias}
    got = np.asarray(tw.compile((graph, weights), target=target, threads=threads, winograd="strassen")(x, skip))
    want = np.maximum(x.astype(np.float64) @ w + bias + skip, 0)
    np.testing.assert_allclose(got, want, rtol=0, atol=4e-6 * np.abs(want).max())


@pytest.mark.parametrize("name", TARGETS)
def test_taken_where_products_are_large_and_rows_are_known(name: str) -> None:
    target = Target.parse(name)
    large = layer(256, 1024, 1024, False)
    assert "matmul_strassen" in operators(large, target)
    for setting in ("auto", "exact", "f6"):  # Rows of a batch do not meet unless somebody says so.
        assert "matmul_strassen" not in operators(large, target, setting)
    assert "matmul_strassen" not in operators(layer(BATCH, 1024, 1024, False), target)
    assert "matmul_strassen" not in operators(layer(1, 1024, 1024, False), target)
    assert "matmul_strassen" not in operators(layer(256, 1024, 1002, False), target)
    assert "matmul_strassen" not in operators(layer(256, 1024, 1024, False, (2,)), target)


@pytest.mark.parametrize("name", TARGETS)
def test_few_rows_whose_weights_come_from_far_stay_plain(name: str) -> None:
    """The weights of the seven products are 7/4 of the plain ones, which few rows wait for."""
    target = Target.parse(name)
    assert not pays(Product(8, 4096, 4096), 1 << 30, target)
    assert not pays(Product(64, 64, 64), 1 << 14, target)
    assert pays(Product(256, 1024, 1024), 4 << 20, target)
