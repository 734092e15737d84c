"""Plans of Strassen's method."""

from __future__ import annotations

from tilewright.algorithms.strassen.plan import convolution, product

PLANS = (convolution.PLAN, product.PLAN, product.WEIGHTS)

__all__ = ["PLANS"]
