"""Convolution of blocked channels with packed weights: type rule, expression and reference against an ordinary one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.oracle import check, reference

BLOCK = 4

# filters, channels, image, window, strides, dilations, pads, width of a panel, pixels in one dimension
CASES = [
    (6, 5, (7, 6), (3, 2), (1, 1), (1, 1), (1, 0, 2, 1), 8, False),
    (6, 5, (7, 6), (2, 3), (1, 1), (2, 1), (0, 1, 1, 0), 4, True),
    (9, 3, (8, 9), (3, 3), (2, 3), (1, 2), (1, 2, 0, 1), 4, False),
    (4, 8, (5, 7), (1, 1), (2, 1), (1, 1), (0, 0, 0, 0), 4, True),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("blocked", [True, False])
def test_convolution_of_blocked_channels(case: tuple, blocked: bool) -> None:
    filters, channels, image, window, strides, dilations, pads, width, flat = case
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, channels, *image)).astype(np.float32)
    w = rng.standard_normal((filters, channels, *window)).astype(np.float32)
    geometry = {"strides": strides, "dilations": dilations, "pads": pads}
    (want,) = reference("conv", [x, w], {**geometry, "groups": 1})
    packed = _packed(w, BLOCK if blocked else 1, width)
    if blocked:
        (x,) = reference("lowered.block_channels", [x], {"block": BLOCK})
    (got,) = check("lowered.conv_blocked", x, packed, **geometry, channels=filters, out_block=BLOCK, flat=flat)
    (ordinary,) = reference("lowered.unblock_channels", [got], {"channels": filters})
    np.testing.assert_allclose(ordinary, want, rtol=1e-4, atol=1e-5)


def _packed(w: np.ndarray, inner: int, width: int) -> np.ndarray:
    """Filters in panels, channels in blocks: `[k, c, kh, kw]` as `[k / width, c / inner, kh, kw, inner, width]`."""
    k, c, kh, kw = w.shape
    panels, outer = -(-k // width), -(-c // inner)
    grown = np.zeros((panels * width, outer * inner, kh, kw), w.dtype)
    grown[:k, :c] = w
    return np.ascontiguousarray(grown.reshape(panels, width, outer, inner, kh, kw).transpose(0, 2, 4, 5, 3, 1))
