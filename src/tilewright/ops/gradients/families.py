"""Imports every file of gradients, which registers its rules."""

from __future__ import annotations

from tilewright.ops.gradients import (
    attention,
    contraction,
    control,
    index,
    linalg,
    norm,
    pointwise,
    pool,
    recurrent,
    reduce,
    running,
    scatter,
    shape,
    special,
)

__all__ = ["attention", "contraction", "control", "index", "linalg", "norm", "pointwise", "pool", "recurrent", "reduce"]
__all__ += ["running", "scatter", "shape", "special"]
