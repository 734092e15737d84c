"""How an array differs from what is expected, in words."""

from __future__ import annotations

from typing import Any

import numpy as np


def differs(got: Any, want: Any, tolerance: float | None) -> str:
    """How an array differs; empty if it does not. `tolerance` is that of floats, relative to each number and to the
    largest finite one; without one numbers are equal, NaN is nowhere."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} for {want.dtype}{want.shape}"
    if tolerance is None:
        same = np.array_equal(got, want)
    else:
        x, y = got.astype(np.float64), want.astype(np.float64)
        scale = np.abs(y[np.isfinite(y)]).max(initial=1e-30)
        same = np.allclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return "" if same else f"{got.ravel()[:12]} for {want.ravel()[:12]}"
