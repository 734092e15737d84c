"""Plans of convolutions by transforms, and their estimates."""

from __future__ import annotations

from tilewright.algorithms.winograd.plan import convolution, weight_gradient

PLANS = (convolution.PLAN, convolution.FILTERS, weight_gradient.PLAN)

__all__ = ["PLANS"]
