"""Gradients by weights over Winograd's tiles: the expression, in chunks of any size, against the reference, and the
reference against the convolution's own gradient."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.oracle import by_expression, by_function, reference
from tilewright import ops
from tilewright.algorithms.winograd.operators.weight_gradient import WinogradWeightAttrs, sums_in_chunks

LANES = 4

CASES = [
    # tile, window, images, channels, filters, height, width, pads, tile rows of a chunk
    (4, 3, 1, 4, 4, 4, 4, (1, 1, 1, 1), 1),
    (4, 3, 2, 5, 7, 9, 6, (1, 1, 1, 1), 2),
    (4, 3, 3, 8, 4, 5, 7, (0, 2, 1, 0), 4),
    (2, 3, 2, 3, 5, 7, 8, (1, 0, 2, 1), 3),
    (4, 3, 1, 4, 4, 3, 3, (0, 0, 0, 0), 1),
    (4, 3, 1, 4, 4, 1, 1, (1, 1, 1, 1), 5),
    (3, 2, 2, 4, 9, 5, 4, (1, 0, 0, 1), 2),
    (2, 5, 1, 4, 4, 6, 7, (2, 2, 2, 2), 2),
    (2, 3, 1, 4, 4, 6, 5, (5, 4, 6, 3), 2),
]


@pytest.mark.costly(3)
@pytest.mark.parametrize("case", CASES)
def test_expression_reference_and_gradient_agree(case: tuple) -> None:
    tile, window, images, channels, filters, height, width, pads, rows = case
    rng = np.random.default_rng(tile)
    created = [n + pads[k] + pads[2 + k] - window + 1 for k, n in enumerate((height, width))]
    x = rng.standard_normal((images, channels, height, width)).astype(np.float32)
    g = rng.standard_normal((images, filters, *created)).astype(np.float32)
    ordinary = {"strides": (1, 1), "dilations": (1, 1), "pads": pads, "window": (window, window)}
    (want,) = reference("conv_weight_gradient", [x.astype(np.float64), g.astype(np.float64)], ordinary)
    blocked = [reference("lowered.block_channels", [a], {"block": LANES})[0] for a in (x, g)]
    attrs = {"tile": tile, "window": window, "pads": pads}
    typed = ops.attributes("lowered.winograd_weight", attrs)
    assert isinstance(typed, WinogradWeightAttrs)
    (got,) = reference("lowered.winograd_weight", blocked, attrs)
    assert got.dtype == np.float32
    (computed,) = by_expression("lowered.winograd_weight", blocked, attrs)
    stated = by_function(lambda x, g: sums_in_chunks(x, g, typed, rows), blocked)
    scale = np.abs(want).max()
    for result in (got, computed, stated):
        outer, inner, *_, narrow, wide = result.shape
        weights = result.transpose(0, 5, 1, 4, 2, 3).reshape(outer * wide, inner * narrow, window, window)
        np.testing.assert_allclose(weights[:filters, :channels] / scale, want / scale, atol=2e-6, rtol=0)
