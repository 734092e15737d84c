"""Plans for GPUs: loops that blocks of the grid and threads of a block run through."""

from __future__ import annotations

from tilewright.plans.framework.base import Plan
from tilewright.plans.gpu import attention, nests, pointwise, products, rows

PLANS: tuple[Plan, ...] = (attention.PLAN, pointwise.PLAN, rows.PLAN, products.PLAN, nests.PLAN)
"""All that fit compete by their estimates, as on CPUs."""

__all__ = ["PLANS"]
