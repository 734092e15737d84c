"""A million numbers for each rule of rounding: ties and their neighbours, both ends of the codes, zero points of all
kinds, scales whose reciprocal is rounded, subnormals, and numbers outside of every range."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

CHANNELS = 64
ROWS = 1 << 14
"""ROWS * CHANNELS is 1,048,576."""


def scales(seed: int = 0) -> Array:
    """f32[CHANNELS]: powers of two, 1/255 and others that no f32 is the reciprocal of, from 1e-6 to 1e3."""
    rng = np.random.default_rng(seed)
    some = [1.0, 0.5, 0.25, 2.0, 1 / 255, 1 / 127, 0.1, 0.3, 1 / 3, 1e-6, 1e3, 0.02, 0.0313, 0.007, 7.0, 49.0]
    return np.float32([*some, *10.0 ** rng.uniform(-6, 3, CHANNELS - len(some))])


def zeros(low: int, high: int, seed: int = 0) -> Array:
    """i64[CHANNELS]: both ends, odd and even ones between."""
    rng = np.random.default_rng(seed)
    between = rng.integers(low, high + 1, CHANNELS - 6)
    between[::2] |= 1  # half of them are odd for certain
    return np.clip(np.int64([low, high, low + 1, high - 1, 0, 1, *between]), low, high)


def numbers(low: int, high: int, seed: int = 0) -> Array:
    """f32[ROWS, CHANNELS], the column of each scale."""
    rng = np.random.default_rng(seed)
    scale, quarter = scales(seed), ROWS // 4
    span = float(high - low)
    levels = np.rint(rng.uniform(-1.2 * span, 1.2 * span, (quarter, CHANNELS))) + 0.5
    ties = (levels * scale.astype(np.float64)).astype(np.float32)
    beside = np.nextafter(ties, np.float32(np.inf) * rng.choice([-1, 1], ties.shape).astype(np.float32))
    usual = (rng.standard_normal((quarter, CHANNELS)) * span / 4 * scale).astype(np.float32)
    special = np.float32([0.0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39, 1e30, -1e30, 3e38, -3e38, np.inf, -np.inf])
    outside = (rng.standard_normal((ROWS - 3 * quarter, CHANNELS)) * 10.0 ** rng.uniform(-44, 38, CHANNELS)).astype(
        "f4"
    )
    outside[: len(special)] = special[:, None]
    return np.concatenate([ties, beside, usual, outside])
