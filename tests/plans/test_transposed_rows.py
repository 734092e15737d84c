"""A chain over rows after a transposition reads tiles that went through registers: any planes, lengths and targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.plans.programs import shown
from tilewright import ops
from tilewright.compiler import compile_graph
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.targets.target import Target

Array = np.ndarray[Any, Any]


def tensor(*shape: int) -> TensorType:
    return TensorType(f32, tuple(const(d) for d in shape))


def norm_after(perm: tuple[int, ...], *shape: int) -> Graph:
    """A norm over the last dimension of a transposed input."""
    b = GraphBuilder("case")
    x = b.input("x", tensor(*shape))
    scale = b.input("scale", tensor(shape[perm[-1]]))
    (transposed,) = ops.emit(b, "transpose", x, perm=perm)
    (y,) = ops.emit(b, "layer_norm", transposed, scale, axis=3, epsilon=1e-5)
    return b.finish((y,))


def softmax_after(*shape: int) -> Graph:
    b = GraphBuilder("case")
    x: Value = b.input("x", tensor(*shape))
    (transposed,) = ops.emit(b, "transpose", x, perm=(0, 2, 1))
    return b.finish(tuple(ops.emit(b, "softmax", transposed, axis=2)))


def norm64(x: Array, scale: Array) -> Array:
    wide = x.astype(np.float64)
    centered = wide - wide.mean(-1, keepdims=True)
    return np.asarray(centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * scale)


@pytest.mark.daily(3)
@pytest.mark.costly(6)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("plane", [(2, 16), (3, 8), (4, 24), (8, 7), (4, 28), (16, 16)])
@pytest.mark.parametrize("channels", [8, 40, 96, 601])
def test_norms_of_channels_last(channels: int, plane: tuple[int, int], threads: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, channels, *plane), dtype=np.float32)
    scale = rng.standard_normal(channels, dtype=np.float32)
    model = tw.compile((norm_after((0, 2, 3, 1), *x.shape), {}), threads=threads)
    (got,) = model.run({"x": x, "scale": scale}).values()
    np.testing.assert_allclose(got, norm64(x.transpose(0, 2, 3, 1), scale), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 33, 16), (1, 8, 40), (3, 20, 10)])
def test_softmax_over_what_was_transposed(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    (got,) = tw.compile((softmax_after(*shape), {})).run({"x": x}).values()
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(got, (e / e.sum(1, keepdims=True)).transpose(0, 2, 1), rtol=2e-6)


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("channels", "columns", "rows"), [(96, 64, 16), (96, 56, 16), (96, 8, 16), (96, 21, 32), (384, 14, 8), (768, 16, 8)]
)
def test_each_element_is_read_once(channels: int, columns: int, rows: int, target: str) -> None:
    graph = norm_after((0, 2, 3, 1), 1, channels, 4, columns)
    text = shown(compile_graph(graph, {}, Target.parse(target)), "loops")
    assert f"alloc transpose: f32[1, {rows}, {channels}]" in text
    reading = [line.strip() for line in text.splitlines() if "= x[0," in line or " x[0," in line]
    assert reading and all(line.startswith("x_local") for line in reading), "the passes of the norm read the tiles"


@pytest.mark.parametrize("multiple", [1, 8, 16])
def test_planes_of_any_size(multiple: int) -> None:
    """Turned together are as many rows of places as are known to divide a line of the plane."""
    rng, channels = np.random.default_rng(0), 40
    h, w = Var("h", lo=1, hi=64), Var("w", lo=multiple, hi=112, multiple=multiple)
    b = GraphBuilder("case")
    x = b.input("x", TensorType(f32, (const(1), const(channels), h, w)))
    scale = b.input("scale", tensor(channels))
    (transposed,) = ops.emit(b, "transpose", x, perm=(0, 2, 3, 1))
    (y,) = ops.emit(b, "layer_norm", transposed, scale, axis=3, epsilon=1e-5)
    model = tw.compile((b.finish((y,)), {}))
    assert (f"alloc transpose: f32[1, {multiple}, 40]" in model.show("loops")) == (multiple > 1)
    for height, width in ((1, multiple), (5, 3 * multiple), (7, 7 * multiple)):
        a = rng.standard_normal((1, channels, height, width), dtype=np.float32)
        s = rng.standard_normal(channels, dtype=np.float32)
        (got,) = model.run({"x": a, "scale": s}).values()
        np.testing.assert_allclose(got, norm64(a.transpose(0, 2, 3, 1), s), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(1, 96, 4, 3), (1, 4, 4, 64)])
def test_small_planes_and_a_small_number_of_channels_are_read_in_place(shape: tuple[int, ...]) -> None:
    assert "alloc transpose" not in tw.compile((norm_after((0, 2, 3, 1), *shape), {})).show("loops")
