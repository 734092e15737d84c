"""Learning steps with products in bf16: what is rounded, that sums and parameters are not, on every target."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.train.test_step import Array, batch, network, of, weights
from tilewright.ir.dtype import bf16
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ops.registry import emit1
from tilewright.schedule.dot_intrinsics import find_dot, find_tile_dot
from tilewright.targets.target import Target
from tilewright.train.entry import compile_step
from tilewright.train.optimizers import SGD, Adam
from tilewright.train.step import Step

ROWS, DEPTH, COLUMNS = 64, 32, 48
TARGETS = [None, "x86-64-v3"]


def line(rows: int = ROWS, depth: int = DEPTH) -> Graph:
    """The sum of (x w) * y: the gradient by w is x' y, rounded as the products are."""
    builder = GraphBuilder("line")
    x, y = builder.input("x", of(rows, depth)), builder.input("y", of(rows, COLUMNS))
    product = emit1(builder, "matmul", x, builder.param("w", of(depth, COLUMNS)))
    total = emit1(builder, "reduce_sum", emit1(builder, "mul", product, y), axes=(0, 1), keepdims=False)
    return builder.finish((total,))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rounded(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def step_of(graph: Graph, values: dict[str, Array], optimizer: Any, target: str | None, **options: Any) -> Step:
    return compile_step((graph, values), optimizer=optimizer, target=target, precision="bf16", **options)


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "depth"), [(ROWS, DEPTH), (ROWS, DEPTH + 1), (ROWS - 1, DEPTH), (ROWS + 3, 5)])
def test_factors_are_rounded_and_sums_are_not(target: str | None, rows: int, depth: int) -> None:
    """Both factors by registers of matrices, which estimates choose, or with an instruction for pairs of them, where
    the sum has pairs alone; the right one elsewhere."""
    machine = Target.host() if target is None else Target.parse(target)
    dot, matrices = find_dot(bf16, bf16, machine), find_tile_dot(bf16, bf16, machine)

    def products(a: Array, b: Array) -> list[Array]:
        """The possible results of a product: one thing where no estimate chooses."""
        pairs = dot is not None and a.shape[1] % dot.group == 0
        lefts = [rounded(a) if pairs else a.astype(np.float64), *([rounded(a)] if matrices is not None else [])]
        return [left @ rounded(b) for left in lefts]

    x, y, w = normal(rows, depth), normal(rows, COLUMNS, seed=1), normal(depth, COLUMNS, seed=2)
    step = step_of(line(rows, depth), {"w": w}, SGD(1.0), target)
    result = step(x, y)
    losses, gradients = [float((p * y).sum()) for p in products(x, w)], products(x.T, y)
    scale = float(np.abs(products(x, w)[0] * y).sum())
    assert min(abs(result["loss"] - loss) for loss in losses) <= 1e-6 * scale
    close = 2e-6 * np.abs(gradients[0]).max() * rows**0.5
    assert min(np.abs(step.parameters["w"] - (w - gradient)).max() for gradient in gradients) <= close
    exact = w - x.T.astype(np.float64) @ y
    assert np.abs(step.parameters["w"] - exact).max() > 1e-4, "nothing was rounded"


@pytest.mark.parametrize("target", TARGETS)
def test_parameters_keep_what_bf16_would_lose(target: str | None) -> None:
    """Steps of a 4096th of a parameter: bf16 has 8 bits, each step alone would be rounded away."""
    w = np.ones((DEPTH, COLUMNS), np.float32)
    x, y = np.ones((ROWS, DEPTH), np.float32), np.ones((ROWS, COLUMNS), np.float32)
    step = step_of(line(), {"w": w}, SGD(2.0**-12 / ROWS), target)
    for _ in range(100):
        step(x, y)
    np.testing.assert_allclose(step.parameters["w"], 1 - 100 * 2.0**-12, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_it_learns_as_single_precision_does(target: str | None) -> None:
    rough = step_of(network(), weights(), Adam(0.01), target, clip=0.5)
    fine = compile_step((network(), weights()), optimizer=Adam(0.01), clip=0.5, target=target)
    x, y = batch(1)
    first = fine(x, y)["loss"]
    rough(x, y)
    losses = [(rough(x, y)["loss"], fine(x, y)["loss"]) for _ in range(300)][-1]
    assert max(losses) < 0.05 * first


def test_small_gradients_need_no_scaling() -> None:
    """bf16 has the exponents of f32: gradients of 1e-30 keep all of its digits."""
    x, y = np.full((ROWS, DEPTH), 1.0, np.float32), np.full((ROWS, COLUMNS), 1e-30, np.float32)
    step = step_of(line(), {"w": np.zeros((DEPTH, COLUMNS), np.float32)}, SGD(1.0), None)
    step(x, y)
    np.testing.assert_allclose(step.parameters["w"], -ROWS * 1e-30, rtol=4e-3)


def test_other_precisions_are_refused() -> None:
    with pytest.raises(tw.Error, match="no such setting of precision: expected fp32, bf16"):
        compile_step((network(), weights()), precision="int8")  # type: ignore[arg-type]
