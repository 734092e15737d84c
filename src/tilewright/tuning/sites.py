"""Sites: the decisions of a model that are worth tuning, each with the steps of the program whose time it decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain, combinations, islice
from math import comb

from tilewright.plans.framework.decisions import Decision, Scheduled
from tilewright.support.classes import dataclass
from tilewright.transform.prefetch_across import STEPS
from tilewright.tuning.programs import Built, Listed, changed, changes, fed

MIN_SHARE = 0.01
"""The least share of a call's time that a decision's steps must take: smaller ones are not worth measuring."""
NEVER = ("precision",)
"""Kinds of decisions that are never tuned: they change the meaning of results, so that the caller decides them."""


@dataclass(frozen=True, slots=True)
class Site:
    """A decision to tune.

    Args:
        decision: the decision with its space, its estimates and the setting in force.
        steps: the steps of the incumbent program whose time it decides; None if only a compile with another setting can
            show them.
    """

    decision: Decision
    steps: frozenset[int] | None = None

    @property
    def name(self) -> str:
        return self.decision.key.name

    @property
    def incumbent(self) -> str:
        return self.decision.selected.label

    @property
    def is_kernel(self) -> bool:
        """Whether the decision is only about a kernel's schedule, and not about which kernels the program has."""
        return self.decision.key.kind == "plan"


def sites(listed: Listed, sizes: Mapping[str, int]) -> list[Site]:
    """The decisions with more than one setting about the program that runs at each call, each with its steps.

    Args:
        sizes: the values of the symbolic sizes in the timed call, which select one of a kernel's versions.
    """
    steps: dict[str, set[int]] = {}
    for place, kernel in enumerate(listed.built.kernels):
        running = runs(listed.kernels.get(kernel, ()), sizes)
        if running is not None:
            steps.setdefault(running.name, set()).add(place)
    results = []
    for d in listed.decisions:
        if len(d.space) < 2 or d.key.kind in NEVER:
            continue
        if d.key.kind != "plan":
            results.append(Site(d))
        elif d.key.name in steps:
            results.append(Site(d, frozenset(steps[d.key.name])))
    return results


def runs(decisions: Sequence[Scheduled], sizes: Mapping[str, int]) -> Scheduled | None:
    """The decision about the version of a kernel that runs for these sizes: the last version that fits them."""
    fitting = [d for d in decisions if all(sizes.get(name) == value for name, value in d.where)]
    return fitting[-1] if fitting else None


@dataclass(frozen=True, slots=True)
class Part:
    """The steps that one site's setting changes: steps of the incumbent program, and the steps of the candidate that
    replace them."""

    before: frozenset[int]
    after: frozenset[int]

    def times(self, rounds: Sequence[Sequence[float]], *, after: bool) -> list[float]:
        """The part's seconds in each round, in the candidate (`after`) or in the incumbent."""
        places = self.after if after else self.before
        return [sum(times[k] for k in places) for times in rounds]


@dataclass(frozen=True, slots=True)
class Split:
    """How the differences between two programs are divided among the sites whose settings differ.

    Args:
        parts: the part of each site; None if it cannot be told from those of other sites.
        tangled: pairs of sites, by index, to which the same difference may belong.
    """

    parts: tuple[Part | None, ...]
    tangled: frozenset[tuple[int, int]] = frozenset()


def split(result: Sequence[Site], before: Built, after: Built) -> Split:
    """The part of each site that a candidate changes.

    A layout alone has changed all that differs. Kernels have changed their own steps, as long as the candidate has as
    many steps and no other of the sites shares one. Of several algorithms and layouts each has changed what differs
    where its own steps are, as long as it does so at steps of no other. A difference at a step of no site is that of
    the site with whose changed steps it exchanges values: the layout of these has changed. Steps that are the same and
    find their weights elsewhere (`programs.fed`) differ, too.
    """
    readers = fed(before, after)
    if len(result) == 1 and not result[0].is_kernel:
        return Split((Part(*(steps | readers for steps in changed(before.kernels, after.kernels))),))
    own = [site.steps or frozenset() for site in result]
    if any(site.steps is None for site in result):
        return Split((None,) * len(result))
    if not all(site.is_kernel for site in result):
        differences = [*changes(before.kernels, after.kernels), *((range(k, k + 1), range(k, k + 1)) for k in readers)]
        return _distinguished(own, differences, before.exchanges)
    users = Counter(k for steps in own for k in steps)
    same = len(before.kernels) == len(after.kernels)
    alone = [same and all(users[k] == 1 for k in steps) for steps in own]
    return Split(tuple(Part(steps, steps) if free else None for steps, free in zip(own, alone, strict=True)))


def _distinguished(
    own: Sequence[frozenset[int]],
    differences: Sequence[tuple[range, range]],
    exchanges: frozenset[tuple[int, int]],
) -> Split:
    """How the `differences` between two programs are divided among sites, whose steps are `own`. A difference belongs
    to the one site whose steps it contains or, if there is none, with whose steps it exchanges values (`exchanges`,
    pairs of steps). Sites to which one difference belongs are tangled; if some difference belongs to none, no site gets
    a part."""
    if all(len(gone) == len(come) for gone, come in differences):
        pairs = [pair for gone, come in differences for pair in zip(gone, come, strict=True)]
        differences = [(range(a, a + 1), range(b, b + 1)) for a, b in pairs]
    else:
        exchanges = frozenset()  # what comes and goes moves the steps after
    steps = frozenset(k for gone, _ in differences for k in gone)
    mine: list[set[int]] = [set() for _ in own]
    theirs: list[set[int]] = [set() for _ in own]
    tangled: set[tuple[int, int]] = set()
    for gone, come in differences:
        place = gone or range(gone.start - 1, gone.start + 1)  # what is inserted is one of its neighbours'
        having = _owners(own, place) or _connected(own, place, steps, exchanges)
        if not having:
            return Split((None,) * len(own))
        tangled.update(combinations(having, 2))
        mine[having[0]].update(gone)
        theirs[having[0]].update(come)
    mixed = frozenset(chain.from_iterable(tangled))
    parts = [
        None if k in mixed else Part(frozenset(a), frozenset(b))
        for k, (a, b) in enumerate(zip(mine, theirs, strict=True))
    ]
    return Split(tuple(parts), frozenset(tangled))


def _owners(own: Sequence[frozenset[int]], place: Iterable[int]) -> list[int]:
    """The numbers of the sites whose steps include some of `place`."""
    return [k for k, steps in enumerate(own) if not steps.isdisjoint(place)]


def _connected(
    own: Sequence[frozenset[int]], place: range, changed: frozenset[int], exchanges: frozenset[tuple[int, int]]
) -> list[int]:
    """The numbers of the sites that own a changed step which is connected with `place` through other changed steps that
    exchange values."""
    members: set[int] = set()
    seen = set(place)
    waiting = list(place)
    while waiting:
        step = waiting.pop()
        beside = {b if a == step else a for a, b in exchanges if step in (a, b)}
        for other in sorted((beside & changed) - seen):
            seen.add(other)
            owners = _owners(own, (other,))
            members.update(owners)
            if not owners:
                waiting.append(other)
    return sorted(members)


def window(kind: str, steps: frozenset[int], readers: frozenset[int]) -> frozenset[int]:
    """The steps that a decision of this kind may change, if one of its settings changed `steps`, and `readers` found
    their weights elsewhere. A decision about prefetching ("ahead") may change any kernel that can prefetch for a
    reader."""
    if kind != "ahead":
        return steps | readers
    return frozenset(k for reader in readers for k in range(max(reader - STEPS, 0), reader + 1))


def clash(a: Site, b: Site) -> bool:
    """Whether one candidate must not change both sites, as their effects could not be separated: they share a step, or
    the steps of one are unknown."""
    return a.steps is None or b.steps is None or not a.steps.isdisjoint(b.steps)


def together(result: Sequence[tuple[Site, str]], separated: Set[frozenset[str]] = frozenset()) -> list[dict[str, str]]:
    """Distribute candidates (a site and a label each) over programs, as few as a greedy choice finds, so that no two in
    a program clash. Candidates that clash with most others come first.

    Args:
        separated: pairs of sites, by their names, that must not be in one program for other reasons.
    """

    def separate(a: Site, b: Site) -> bool:
        return a.name == b.name or clash(a, b) or frozenset((a.name, b.name)) in separated

    known = {site.name: site for site, _ in result}
    labels = Counter(site.name for site, _ in result)
    others = {n: sum(labels[o] for o in known if separate(known[n], known[o])) for n in known}
    programs: list[list[tuple[Site, str]]] = []
    for site, label in sorted(result, key=lambda candidate: -others[candidate[0].name]):
        for program in programs:
            if not any(separate(site, other) for other, _ in program):
                program.append((site, label))
                break
        else:
            programs.append([(site, label)])
    return [{site.name: label for site, label in program} for program in programs]


def codes(count: int) -> list[frozenset[int]]:
    """`count` distinct sets of equal size over as few numbers as possible; no set contains another.

    A number stands for a program, a set for a step of the model: a step is changed in the programs of its set, so that
    the programs in which times change identify it (`tuner._find_steps`). That takes far fewer programs than one a step.
    """
    width = next(w for w in range(1, count + 2) if comb(w, w // 2) >= count)
    return [frozenset(c) for c in islice(combinations(range(width), width // 2), count)]
