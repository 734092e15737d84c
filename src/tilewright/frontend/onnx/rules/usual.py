"""Imports the rules that most models need, which registers them; `families` imports the others."""

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
