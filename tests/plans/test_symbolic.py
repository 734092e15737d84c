"""What symbolic sizes are judged by, and what is chosen for them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.build import info, model, node
from tilewright.ir.expr import Var, ceildiv, const
from tilewright.plans.framework.symbolic import values_of

USUAL = (1, 2, 6, 15, 39, 96)


def test_values_of_an_extent() -> None:
    n, m = Var("n", lo=1, hi=20), Var("m", lo=1, likely=(8, 32, 33))
    assert values_of(const(7), USUAL) == (7,)
    assert values_of(const(0), USUAL) == (1,)
    assert values_of(n, USUAL) == (1, 2, 6, 15)
    assert values_of(Var("n", lo=100), USUAL) == (100,)
    assert values_of(Var("n", lo=3, hi=5), USUAL) == (3,)
    assert values_of(m, USUAL) == (8, 32, 33)
    assert values_of(ceildiv(m, 16), USUAL) == (1, 2, 3)
    assert values_of(m * 2, USUAL) == (16, 64, 66)


@pytest.mark.parametrize(("likely", "plan"), [((), "convolution"), ((224,), "winograd")])
def test_convolutions_over_maps_of_unknown_size(likely: tuple[int, ...], plan: str) -> None:
    """Tiles in registers, or transforms where sizes are known to be likely; not a plan that computes each pixel on its
    own: 50 times slower."""
    w = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32)
    conv = node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    m = model([conv], [info("x", [1, 32, "h", "w_"])], ["y"], {"w": w})
    said = tw.dim(32, 640, multiple=32, likely=likely)
    text = tw.compile(m, dims={"h": said, "w_": said}).show("schedule")
    assert f"plan {plan}" in text and "plan rows" not in text


def test_sizes_of_calls_are_counted() -> None:
    m = model([node("Relu", ["x"], ["y"])], [info("x", ["n", 3, "m"])], ["y"], {})
    compiled = tw.compile(m)
    x = np.zeros((4, 3, 2), np.float32)
    with compiled.record_shapes() as seen:
        compiled(x)
        compiled.run({"x": x[:2]})
        compiled(x, out=np.empty_like(x))
        with pytest.raises(tw.Error):
            compiled(x[0])
    compiled(x)
    assert seen == {"n": {4: 2, 2: 1}, "m": {2: 3}}


def test_rows_that_are_a_quotient_have_versions_for_their_remainders() -> None:
    """A quarter of the frames are rows of a product: what its tiles leave over is known outside the tile."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 64)).astype(np.float32)
    nodes = [
        node("MaxPool", ["x"], ["p"], kernel_shape=[3], strides=[4], pads=[1, 1]),
        node("Transpose", ["p"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["t", "w"], ["y"]),
    ]
    compiled = tw.compile(model(nodes, [info("x", [1, 16, "f"])], ["y"], {"w": w}), dims={"f": tw.dim(1, 400)})
    loops = next(t for t in compiled.show("loops").split("\n// ") if t.startswith("matmul_packed"))
    assert "// 4 % " in loops
    assert all("if" not in line or "% " in line or "== 1" in line for line in loops.splitlines())
    for frames in (1, 3, 8, 29, 57, 400):
        x = rng.standard_normal((1, 16, frames)).astype(np.float32)
        padded = np.pad(x, [(0, 0), (0, 0), (1, 4)], constant_values=-np.inf)
        pooled = np.stack([padded[0, :, k : k + 3].max(axis=1) for k in range(0, (frames - 1) // 4 * 4 + 1, 4)])
        np.testing.assert_allclose(compiled(x)[0], pooled @ w, rtol=1e-5, atol=1e-5)
