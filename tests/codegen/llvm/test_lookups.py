"""Elements at places that a table in memory says: picked in registers, or by scalar loads on x86 of 256 bits, with
NumPy's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import compile_program
from tilewright.ops import parse_graph
from tilewright.targets.target import Target

SPARSE = """
    graph @g(%x: f32[1, 300]) params(%v: f32[20, 64, 1], %i: i32[20, 64]) {
      %y = sparse_matmul(%x, %v, %i) {columns = 20} : f32[1, 20]
      return %y
    }"""


def test_a_sparse_product_is_numpy_s() -> None:
    rng = np.random.default_rng(0)
    values, index = rng.standard_normal((20, 64, 1)).astype("f4"), rng.integers(0, 300, (20, 64)).astype("i4")
    x = rng.standard_normal((1, 300)).astype("f4")
    want = np.einsum("pj,pj->p", x[0][index].astype("f8"), values[..., 0])
    got = tw.compile((parse_graph(SPARSE), {"v": values, "i": index}))(x)
    np.testing.assert_allclose(got[0], want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("cpu,scalar", [("znver3", True), ("znver4", False), ("x86-64-v3", True)])
def test_who_looks_up_lane_by_lane(cpu: str, scalar: bool) -> None:
    weights: dict[str, Any] = {"v": np.zeros((20, 64, 1), "f4"), "i": np.zeros((20, 64), "i4")}
    assert ("llvm.masked.gather" in kernel_text(SPARSE, weights, cpu)) is not scalar


WINDOWS = """
    graph @g(%x: f32[1, {depth}]) params(%v: f32[4, 30, {lanes}], %i: u16[4, 30], %p: u8[4, 30, {lanes}]) {{
      %y = sparse_window_matmul(%x, %v, %i, %p) {{window = {window}}} : f32[1, {columns}]
      return %y
    }}"""


def windows(lanes: int, window: int, depth: int) -> tuple[str, dict[str, Any]]:
    """A product by windows, some of which say that they begin at the end of the row or beyond."""
    rng = np.random.default_rng(lanes)
    index = rng.integers(0, depth + 9, (4, 30)).astype("u2")
    index[:, -1], index[:, 0] = 65535, 0
    values, place = rng.standard_normal((4, 30, lanes)).astype("f4"), rng.integers(0, 256, (4, 30, lanes)).astype("u1")
    text = WINDOWS.format(depth=depth, lanes=lanes, window=window, columns=4 * lanes)
    return text, {"v": values, "i": index, "p": place}


@pytest.mark.parametrize(
    "cpu,lanes,window,name",
    [
        ("x86-64-v4", 16, 32, "llvm.x86.avx512.vpermi2var.ps.512"),
        ("x86-64-v4", 16, 16, "llvm.x86.avx512.permvar.sf.512"),
        ("x86-64-v4", 16, 8, "llvm.masked.gather"),
        ("x86-64-v3", 8, 16, "llvm.x86.avx2.permps"),
        ("x86-64-v3", 8, 32, "llvm.masked.gather"),
    ],
)
def test_windows_are_picked_in_registers(cpu: str, lanes: int, window: int, name: str) -> None:
    text, weights = windows(lanes, window, 57)
    assert name in kernel_text(text, weights, cpu)


@pytest.mark.daily(5)
@pytest.mark.parametrize("lanes,window", [(16, 32), (16, 16), (8, 16), (8, 32), (4, 8)])
@pytest.mark.parametrize("depth", [32, 57])
@pytest.mark.parametrize("name", ["host", "x86-64-v3"])
def test_a_product_by_windows_is_numpy_s(lanes: int, window: int, depth: int, name: str) -> None:
    if name != "host" and not Target.host().triple.startswith("x86"):
        pytest.skip("a target of x86")
    text, weights = windows(lanes, window, depth)
    x = np.random.default_rng(1).standard_normal((1, depth)).astype("f4")
    rows = np.minimum(weights["i"].astype(int), depth - window)[:, :, None] + weights["p"] % window
    want = (x[0][rows].astype("f8") * weights["v"]).sum(axis=1).reshape(-1)
    got = tw.compile((parse_graph(text), weights), target=Target.on_host(name))(x)
    np.testing.assert_allclose(got[0], want, rtol=0, atol=1e-4)


def kernel_text(graph: str, weights: dict[str, Any], cpu: str) -> str:
    text = compile_program((parse_graph(graph), weights), target=Target.parse(cpu)).texts["llvm"]
    return (text() if callable(text) else text).split("// sparse")[1].split("\n// ")[0]
