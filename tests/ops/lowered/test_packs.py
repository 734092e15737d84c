"""Packed weights: the expression lays out what NumPy does, and past the last row, column or channel stand zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ops.oracle import check, reference

Place = Callable[..., tuple[int, ...]]

# operator, weights, attributes, where a weight stands
PACKS: list[tuple[str, tuple[int, ...], dict[str, Any], Place]] = [
    ("pack_gates", (5, 15), {"gates": 3, "width": 4}, lambda k, n: (n % 5 // 4, k, n // 5, n % 5 % 4)),
    ("pack_gates", (8, 32), {"gates": 4, "width": 4}, lambda k, n: (n % 8 // 4, k, n // 8, n % 4)),
    ("pack_gates", (3, 3), {"gates": 1, "width": 8}, lambda k, n: (0, k, 0, n)),
    ("pack_depthwise", (7, 1, 3, 2), {"block": 4}, lambda f, c, i, j: (f // 4, c, i, j, f % 4)),
    ("pack_pointwise", (6, 5, 1, 1), {"groups": 2, "width": 2}, lambda f, c, *_: (f // 3, f % 3 // 2, c, f % 3 % 2)),
    ("pack_pointwise", (9, 2, 1, 1), {"groups": 3, "width": 4}, lambda f, c, *_: (f // 3, 0, c, f % 3)),
    ("pack_conv", (7, 8, 2, 3), {"block": 4, "width": 4}, lambda f, c, i, j: (f // 4, c // 4, i, j, c % 4, f % 4)),
    ("pack_conv", (8, 4, 1, 1), {"block": 1, "width": 8}, lambda f, c, i, j: (0, c, i, j, 0, f)),
    ("pack_matmul", (5, 7), {"width": 4, "transpose": False}, lambda k, n: (n // 4, k, n % 4)),
    ("pack_matmul", (2, 7, 5), {"width": 4, "transpose": True}, lambda b, n, k: (b, n // 4, k, n % 4)),
    (
        "pack_conv_dot",
        (5, 9, 2, 1),
        {"block": 8, "width": 4, "group": 4, "panels": 3},
        lambda f, c, i, j: (f // 4, c // 8, i, j, c % 8 // 4, f % 4, c % 4),
    ),
    (
        "pack_transposed",
        (8, 5, 3, 4),
        {"block": 4, "width": 4, "strides": (2, 3)},
        lambda c, f, i, j: (f // 4, i % 2, j % 3, i // 2, j // 3, c // 4, c % 4, f % 4),
    ),
    ("block_channels", (2, 7, 3), {"block": 4}, lambda n, c, h: (n, c // 4, h, c % 4)),
    ("block_channels", (2, 1, 3, 2), {"block": 4}, lambda n, c, h, w: (n, c, h, w, 0)),
]


@pytest.mark.parametrize(("op", "shape", "attrs", "place"), PACKS, ids=[f"{op} {shape}" for op, shape, *_ in PACKS])
def test_packed_weights_stand_where_they_should(
    op: str, shape: tuple[int, ...], attrs: dict[str, Any], place: Place
) -> None:
    weights = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    (packed,) = check(f"lowered.{op}", weights, **attrs)
    want = np.zeros_like(packed)
    for index in np.ndindex(shape):
        want[place(*index)] = weights[index]
    np.testing.assert_array_equal(packed, want)


def test_channels_out_of_blocks() -> None:
    x = np.arange(2 * 7 * 3, dtype=np.float32).reshape(2, 7, 3)
    (blocked,) = reference("lowered.block_channels", [x], {"block": 4})
    (back,) = check("lowered.unblock_channels", blocked, channels=7)
    np.testing.assert_array_equal(back, x)


def test_products_of_patches_are_a_convolution() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 6, 7)).astype(np.float32)
    w = rng.standard_normal((4, 3, 3, 2)).astype(np.float32)
    geometry = {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 2, 1)}
    (want,) = reference("conv", [x, w], {**geometry, "groups": 1})
    (rows,) = check("lowered.patches", x, kernel=(3, 2), depth=20, **geometry)
    assert not rows[..., 18:].any()
    got = (rows[..., :18] @ w.reshape(4, -1).T).swapaxes(1, 2).reshape(want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_packs_of_nothing(shape: tuple[int, ...]) -> None:
    (packed,) = reference("lowered.pack_matmul", [np.ones(shape, np.float32)], {"width": 4, "transpose": False})
    assert not packed.size


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
