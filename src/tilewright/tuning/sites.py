"""Sites: the decisions of a model that are worth tuning, each with the steps of the program whose time it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.plans.framework.decisions import Decision, Scheduled
from tilewright.tuning.programs import Listed, changed

LEAST_SHARE = 0.01
"""Of a call's time: less is not worth a measurement."""
NEVER = ("precision",)
"""Kinds of decisions that change what results mean, which the caller decides."""


@dataclass(frozen=True, slots=True)
class Site:
    """A decision to tune.

    Args:
        decision: with its space, its estimates and what is in force.
        steps: of the incumbent program, those whose time it decides; None where only a compile with another setting
            shows which these are.
    """

    decision: Decision
    steps: frozenset[int] | None = None

    @property
    def name(self) -> str:
        return self.decision.key.name

    @property
    def incumbent(self) -> str:
        return self.decision.taken.label

    @property
    def is_kernel(self) -> bool:
        """Whether it decides a kernel's schedule alone, and not what kernels there are."""
        return self.decision.key.kind == "plan"


def sites(listed: Listed, sizes: Mapping[str, int]) -> list[Site]:
    """The decisions about the program that runs at each call, where there is a choice.

    Args:
        sizes: of symbols in the call that is timed: of a kernel's versions for different sizes one runs.
    """
    steps: dict[str, set[int]] = {}
    for place, kernel in enumerate(listed.built.kernels):
        running = runs(listed.kernels.get(kernel, ()), sizes)
        if running is not None:
            steps.setdefault(running.name, set()).add(place)
    found = []
    for d in listed.decisions:
        if len(d.space) < 2 or d.key.kind in NEVER:
            continue
        if d.key.kind != "plan":
            found.append(Site(d))
        elif d.key.name in steps:
            found.append(Site(d, frozenset(steps[d.key.name])))
    return found


def runs(decisions: Sequence[Scheduled], sizes: Mapping[str, int]) -> Scheduled | None:
    """Of the decisions about a kernel the one whose version runs for these sizes: the last of those that fit."""
    fitting = [d for d in decisions if all(sizes.get(name) == value for name, value in d.where)]
    return fitting[-1] if fitting else None


@dataclass(frozen=True, slots=True)
class Part:
    """What a site's time is in two programs: the steps of the incumbent and those of the candidate in their place."""

    before: frozenset[int]
    after: frozenset[int]

    def times(self, rounds: Sequence[Sequence[float]], *, after: bool) -> list[float]:
        """Its seconds in each round."""
        places = self.after if after else self.before
        return [sum(times[k] for k in places) for times in rounds]


def parts(found: Sequence[Site], before: Sequence[str], after: Sequence[str]) -> list[Part] | None:
    """The part of each site that a candidate changes; None where they cannot be told apart.

    A layout alone has changed all that differs. Several sites have changed their own steps, as long as the candidate
    has as many steps and no two of the sites share one.
    """
    if len(found) == 1 and not found[0].is_kernel:
        return [Part(*changed(before, after))]
    if any(site.steps is None for site in found):
        return None
    own = [site.steps or frozenset() for site in found]
    if len(before) != len(after) or sum(map(len, own)) != len(frozenset().union(*own)):
        return None
    return [Part(steps, steps) for steps in own]
