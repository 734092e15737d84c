"""Packed weights: the expression lays out what NumPy does, and past the last row, column or channel stand zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.oracle import check

# operator, weights, attributes
PACKS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("gates", (5, 15), {"gates": 3, "width": 4}),
    ("gates", (8, 32), {"gates": 4, "width": 4}),
    ("gates", (3, 3), {"gates": 1, "width": 8}),
    ("depthwise", (7, 1, 3, 2), {"block": 4}),
    ("pointwise", (6, 5, 1, 1), {"groups": 2, "width": 2}),
    ("pointwise", (9, 2, 1, 1), {"groups": 3, "width": 4}),
    ("conv", (7, 8, 2, 3), {"block": 4, "width": 4}),
    ("conv", (8, 4, 1, 1), {"block": 1, "width": 8}),
    ("matmul", (5, 7), {"width": 4, "transpose": False}),
    ("matmul", (2, 7, 5), {"width": 4, "transpose": True}),
]


@pytest.mark.parametrize(("op", "shape", "attrs"), PACKS, ids=str)
def test_packed_weights_are_each_weight_once_and_zeros(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    weights = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    (packed,) = check(f"lowered.pack_{op}", weights, **attrs)
    np.testing.assert_array_equal(np.sort(packed[packed != 0]), weights.ravel())


@pytest.mark.parametrize("panels", [1, 2, 3])
@pytest.mark.parametrize("transpose", [False, True])
def test_packed_dots_are_each_weight_once_and_zeros(panels: int, transpose: bool) -> None:
    weights = np.arange(1, 1 + 2 * 8 * 9, dtype=np.int32).reshape(2, 8, 9).astype(np.uint8)
    supplied = weights.swapaxes(1, 2).copy() if transpose else weights
    (packed,) = check("lowered.pack_dot", supplied, width=4, group=4, panels=panels, transpose=transpose)
    assert packed.shape == (2, -(-3 // panels) * panels, 2, 4, 4)
    for b, column, k in np.ndindex(2, 9, 8):
        assert packed[b, column // 4, k // 4, column % 4, k % 4] == weights[b, k, column]
    assert np.count_nonzero(packed) == weights.size
