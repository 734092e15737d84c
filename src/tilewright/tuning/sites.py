"""Sites: the decisions of a model that are worth tuning, each with the steps of the program whose time it decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

from tilewright.plans.framework.decisions import Decision, Scheduled
from tilewright.transform.ahead import STEPS
from tilewright.tuning.programs import Listed, changed, changes

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


def parts(
    found: Sequence[Site], before: Sequence[str], after: Sequence[str], guests: frozenset[int] = frozenset()
) -> list[Part | None]:
    """The part of each site that a candidate changes; None of those that cannot be told from others.

    A layout alone has changed all that differs. Kernels have changed their own steps, as long as the candidate has as
    many steps and no other of the sites shares one. Of several algorithms and layouts each has changed what differs
    where its own steps are, as long as it does so at steps of no other.

    Args:
        guests: steps that are the same and find their weights elsewhere (`programs.fed`).
    """
    if len(found) == 1 and not found[0].is_kernel:
        return [Part(*(steps | guests for steps in changed(before, after)))]
    own = [site.steps or frozenset() for site in found]
    if any(site.steps is None for site in found):
        return [None] * len(found)
    if not all(site.is_kernel for site in found):
        return _told_apart(own, [*changes(before, after), *((range(k, k + 1), range(k, k + 1)) for k in guests)])
    users = Counter(k for steps in own for k in steps)
    alone = [len(before) == len(after) and all(users[k] == 1 for k in steps) for steps in own]
    return [Part(steps, steps) if free else None for steps, free in zip(own, alone, strict=True)]


def _told_apart(own: Sequence[frozenset[int]], differences: Sequence[tuple[range, range]]) -> list[Part | None]:
    """Each difference as a part of the one site that has steps there; step by step where each has one in its stead, as
    then differences of neighbours are one. Sites with a difference in common are not told apart; none are if there is
    one at steps that no site has."""
    if all(len(gone) == len(come) for gone, come in differences):
        pairs = [pair for gone, come in differences for pair in zip(gone, come, strict=True)]
        differences = [(range(a, a + 1), range(b, b + 1)) for a, b in pairs]
    mine: list[set[int]] = [set() for _ in own]
    theirs: list[set[int]] = [set() for _ in own]
    tangled: set[int] = set()
    for gone, come in differences:
        place = gone or range(gone.start - 1, gone.start + 1)  # what is inserted is one of its neighbours'
        having = [k for k, steps in enumerate(own) if not steps.isdisjoint(place)]
        if not having:
            return [None] * len(own)
        if len(having) > 1:
            tangled.update(having)
        mine[having[0]].update(gone)
        theirs[having[0]].update(come)
    return [
        None if k in tangled else Part(frozenset(a), frozenset(b))
        for k, (a, b) in enumerate(zip(mine, theirs, strict=True))
    ]


def window(kind: str, steps: frozenset[int], guests: frozenset[int]) -> frozenset[int]:
    """The steps that decisions of a kind may change, of those that one other setting did: of which kernel prefetches
    a guest's weights all that may be its host."""
    if kind != "ahead":
        return steps | guests
    return frozenset(k for guest in guests for k in range(max(guest - STEPS, 0), guest + 1))


def clash(a: Site, b: Site) -> bool:
    """Whether one candidate cannot change both so that their parts are told apart: what they change is not known, or
    they share a step."""
    return a.steps is None or b.steps is None or not a.steps.isdisjoint(b.steps)


def together(found: Sequence[tuple[Site, str]]) -> list[dict[str, str]]:
    """Candidates, a site and a label each, in as few programs as a greedy choice finds: no two in a program clash."""
    programs: list[list[tuple[Site, str]]] = []
    for site, label in found:
        for program in programs:
            if not any(site.name == other.name or clash(site, other) for other, _ in program):
                program.append((site, label))
                break
        else:
            programs.append([(site, label)])
    return [{site.name: label for site, label in program} for program in programs]


def codes(count: int) -> list[frozenset[int]]:
    """So many sets of equal size, of as few numbers as possible: none is a part of another.

    What is tried in the programs of its own set can be told from the programs that show it (`tuner._find_steps`): each
    of `count` things would else need a program of its own.
    """
    width = next(w for w in range(1, count + 2) if comb(w, w // 2) >= count)
    return [frozenset(c) for c in islice(combinations(range(width), width // 2), count)]
