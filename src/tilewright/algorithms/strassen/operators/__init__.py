"""Operators of Strassen's method."""

from __future__ import annotations

from tilewright.algorithms.strassen.operators import convolution, product

__all__ = ["convolution", "product"]
