"""The rules by theme; importing this package registers those that most models need, `families` the others."""

from __future__ import annotations

from tilewright.frontend.onnx.rules import (
    constants,
    contraction,
    norm,
    pointwise,
    pool,
    reduce,
    shape,
)

__all__ = [
    "constants",
    "contraction",
    "norm",
    "pointwise",
    "pool",
    "reduce",
    "shape",
]
