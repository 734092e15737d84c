"""Further plans: those of algorithms' folders, those that a program registers, and those of plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.plans.framework.base import Plan
from tilewright.support import plugins
from tilewright.support.discover import modules, modules_beside

_extra: list[Plan] = []


def register(plan: Plan) -> Plan:
    """Register a plan for all functions that it fits. Raises PluginError if a registered plan has the same name."""
    plugins.check_new("plan", [plan.name], [p.name for p in _extra])
    plugins.count(*_code(plan))
    _extra.append(plan)
    return plan


def unregister(name: str) -> None:
    """Remove a registered plan."""
    (plan,) = (p for p in _extra if p.name == name)
    _extra.remove(plan)
    plugins.discount(*_code(plan))


def _code(plan: Plan) -> tuple[Callable[..., Any], ...]:
    return plan.fits, plan.candidates, plan.apply, plan.cases, plan.added


def extended(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Registered plans and those of plug-ins, then `plans`, then those of algorithms' folders: if estimates are equal
    the first is chosen, so that registered plans are preferred.

    A folder's plans fit functions of its own operators alone, so that they are imported when these are.
    """
    folders = tuple(p for m in modules_beside("tilewright.algorithms", "plan", "operators") for p in m.PLANS)

    def accept(plugin: plugins.Plugin, loaded: object) -> tuple[str, ...]:
        items = plugins.several(loaded, Plan)
        later = [p for m in modules("tilewright.algorithms", "plan") for p in m.PLANS]
        plugins.check_new("plan", [p.name for p in items], [p.name for p in (*plans, *later, *_extra)])
        for plan in items:
            register(plan)
        return tuple(f"plan {p.name}" for p in items)

    plugins.load_group("plans", accept)
    return (*_extra, *plans, *folders)


__all__ = ["extended", "register", "unregister"]
