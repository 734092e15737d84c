"""Products of two rows with weights of 8-bit floats, which stay such floats where reading them takes longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import passed
from tilewright.ir.dtype import DType, f8e4m3fn, f8e5m2, f32
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.registry import emit1
from tilewright.targets.target import Target

DEPTH, COLUMNS = 64, 48


def product(kind: DType, rows: int, transposed: bool) -> Graph:
    """Rows times weights that are 8-bit floats with a scale a column."""
    b = GraphBuilder("g")
    shape = (COLUMNS, DEPTH) if transposed else (DEPTH, COLUMNS)
    x = b.input("x", TensorType(f32, tuple(map(const, (rows, DEPTH)))))
    w = b.param("w", TensorType(kind, tuple(map(const, shape))))
    s = b.param("s", TensorType(f32, tuple(map(const, (COLUMNS, 1) if transposed else (COLUMNS,)))))
    wide = emit1(b, "mul", emit1(b, "cast", w, dtype=f32), s)
    return b.finish((emit1(b, "matmul", x, wide, name="y", transpose_b=transposed),))


@pytest.mark.parametrize(("kind", "transposed"), [(f8e5m2, False), (f8e4m3fn, True)])
def test_weights_stay_as_they_are_stored(kind: DType, transposed: bool) -> None:
    host = Target.host()
    target = replace(host, caches=replace(host.caches, l2=1 << 10, l3=1 << 11))
    rng = np.random.default_rng(0)
    shape = (COLUMNS, DEPTH) if transposed else (DEPTH, COLUMNS)
    codes = rng.integers(0, 256, shape).astype(np.uint8).view(kind.numpy)
    wide = codes.astype(np.float32)
    codes = np.where(np.isfinite(wide), codes, codes.dtype.type(1.5))
    weights = {"w": codes, "s": rng.random((COLUMNS, 1) if transposed else COLUMNS).astype(np.float32)}
    x = rng.standard_normal((2, DEPTH)).astype(np.float32)
    real = codes.astype(np.float64) * weights["s"]
    want = x @ (real.T if transposed else real)
    model = tw.compile((product(kind, 2, transposed), weights), target=target)
    assert next(p.nbytes for p in model.manifest.packed) < 2 * codes.nbytes
    np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    codes[(3, 5)] = np.float32(np.nan)  # one NaN makes its column NaN
    model.update({**weights, "w": codes}, finite=False)
    assert np.isnan(np.asarray(model(x))).sum(1).tolist() == [1, 1]


@pytest.mark.parametrize("rows", [1, 64])
def test_small_weights_and_64_rows_are_decoded_once(rows: int) -> None:
    graph = passed(product(f8e5m2, rows, False), Target.parse("x86-64-v3"))
    packed = next(n for n in graph.nodes if n.op == "lowered.pack_matmul")
    assert packed.output.dtype is f32
