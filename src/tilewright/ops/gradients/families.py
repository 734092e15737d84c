"""Imports every file of gradients, which registers its rules."""

from __future__ import annotations

from tilewright.ops.gradients import contraction, control, index, norm, pointwise, pool, recurrent, reduce, shape

__all__ = ["contraction", "control", "index", "norm", "pointwise", "pool", "recurrent", "reduce", "shape"]
