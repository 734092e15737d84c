"""Plans for GPUs: loops over blocks of the grid and threads of a block."""

from __future__ import annotations

from tilewright.plans.framework.base import Plan
from tilewright.plans.gpu import attention, nests, pointwise, products, rows

PLANS: tuple[Plan, ...] = (attention.PLAN, pointwise.PLAN, rows.PLAN, products.PLAN, nests.PLAN)
"""All plans for GPUs. Those that fit a function compete by estimates, as on CPUs."""

__all__ = ["PLANS"]
