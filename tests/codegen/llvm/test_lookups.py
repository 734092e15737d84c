"""Elements at places that a table in memory says: scalar loads on AMD's cores of 256 bits, with NumPy's results."""

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


@pytest.mark.parametrize("cpu,scalar", [("znver3", True), ("znver4", False), ("x86-64-v3", False)])
def test_who_looks_up_lane_by_lane(cpu: str, scalar: bool) -> None:
    weights: dict[str, Any] = {"v": np.zeros((20, 64, 1), "f4"), "i": np.zeros((20, 64), "i4")}
    text = compile_program((parse_graph(SPARSE), weights), target=Target.parse(cpu)).texts["llvm"]
    text = (text() if callable(text) else text).split("// sparse_matmul")[1].split("\n// ")[0]
    assert ("llvm.masked.gather" in text) is not scalar
