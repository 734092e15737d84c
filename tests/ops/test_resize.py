"""Where one sample, or the first and the last of several, lie in the input: computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.oracle import check

RAMP = 10 * np.arange(5, dtype=np.float32)
ATTRS: dict[str, Any] = {"axis": 0, "mode": "linear", "rounding": "floor", "cubic_a": -0.75}

# coordinates, size, places of the samples in the input, further attributes
PLACES: list[tuple[str, int, list[float], dict[str, Any]]] = [
    ("tf_crop_and_resize", 1, [2.5], {"roi": (0.25, 1.0)}),
    ("tf_crop_and_resize", 3, [1, 2, 3], {"roi": (0.25, 0.75)}),
    ("align_corners", 1, [0], {}),
    ("align_corners", 3, [0, 2, 4], {}),
    ("half_pixel", 1, [2], {}),
    ("pytorch_half_pixel", 1, [0], {}),
    ("asymmetric", 2, [0, 2.5], {}),
    ("half_pixel_symmetric", 1, [2], {}),
]


@pytest.mark.parametrize(("coordinates", "size", "places", "further"), PLACES, ids=str)
def test_samples_lie_where_one_computes(
    coordinates: str, size: int, places: list[float], further: dict[str, Any]
) -> None:
    (result,) = check("resize", RAMP, size=size, scale=size / 5, coordinates=coordinates, **ATTRS, **further)
    np.testing.assert_allclose(result, 10 * np.array(places), rtol=1e-6)
