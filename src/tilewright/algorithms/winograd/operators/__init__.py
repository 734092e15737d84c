"""Operators of convolutions by transforms, and the constant matrices of these."""

from __future__ import annotations

from tilewright.algorithms.winograd.operators import by_size, convolution, weight_gradient

__all__ = ["by_size", "convolution", "weight_gradient"]
