"""Convolution of maps whose channels are innermost: type rule, expression and reference against an ordinary one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.oracle import check, reference

# filters, channels, image, window, strides, dilations, pads, groups
CASES = [
    (6, 5, (7, 6), (3, 2), (1, 1), (1, 1), (1, 0, 2, 1), 1),
    (9, 3, (8, 9), (3, 3), (2, 3), (1, 2), (1, 2, 0, 1), 1),
    (4, 8, (5, 7), (1, 1), (2, 1), (1, 1), (0, 0, 0, 0), 1),
    (12, 6, (5, 4), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 6),
    (9, 6, (5, 4), (2, 3), (1, 2), (1, 1), (1, 0, 0, 1), 3),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("t", "tolerance"), [(np.float32, 1e-5), (np.float16, 1e-3)])
def test_convolution_of_channels_innermost(case: tuple, t: type, tolerance: float) -> None:
    filters, channels, image, window, strides, dilations, pads, groups = case
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, channels, *image)).astype(t)
    w = (rng.standard_normal((filters, channels // groups, *window)) / 4).astype(t)
    geometry = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    (want,) = reference("conv", [x, w], geometry)
    forms = (np.ascontiguousarray(np.moveaxis(v, 1, -1)[:, None]) for v in (x, w))
    (got,) = check("lowered.conv_last", *forms, **geometry)
    np.testing.assert_allclose(np.moveaxis(got[:, 0], -1, 1), want, rtol=tolerance, atol=tolerance)
