"""The models that share a core: Nexus's squishy bin packing (Shen et al., SOSP 2019, section 6.1).

A core works in cycles of d seconds, in each of which it computes one batch of each of its models, large enough for the
requests of one cycle. A request waits for at most a cycle and then for its batch, so that a promise L holds if

    d + time(batch) <= L,   batch >= rate * d,   and the times of all batches of the core are d together at most.

Models whose rate fills whole cores get those first, with the batch that has 2 * time(batch) <= L; the rest of each rate
is packed. Up to `EXACT` models are packed by a search that is exact, more of them by best fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.serve.errors import ServeError

EXACT = 8
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """A model with its rate of requests and its promise.

    Args:
        rate: requests a second.
        promise: seconds in which each must be answered.
        time: seconds of a batch of so many rows; grows with the rows.
        most: rows of a batch.
    """

    name: str
    rate: float
    promise: float
    time: Callable[[int], float]
    most: int = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """A model's part of a core's cycle: its batch, the batch's seconds, and the rate of requests that it serves."""

    name: str
    batch: int
    seconds: float
    rate: float


@dataclass(frozen=True, slots=True)
class Core:
    """The work of one core: its slots one after another, in a cycle that repeats every `cycle` seconds."""

    cycle: float
    slots: tuple[Slot, ...]

    @property
    def occupied(self) -> float:
        """The fraction of the cycle in which the core computes."""
        return sum(slot.seconds for slot in self.slots) / self.cycle


def plan(demands: Sequence[Demand]) -> list[Core]:
    """A small number of cores that serve all demands. Raises ServeError for a promise that no core can keep."""
    cores: list[Core] = []
    rest: list[Demand] = []
    for demand in demands:
        full, left = _saturated(demand)
        cores += full
        if left is not None:
            rest.append(left)
    packed = _exact(rest) if len(rest) <= EXACT else _best_fit(rest)
    return cores + packed


def violations(cores: Sequence[Core], demands: Sequence[Demand]) -> list[str]:
    """The promises that a plan breaks by its own model, as text; none if it keeps all."""
    by_name = {d.name: d for d in demands}
    wrong = []
    served = dict.fromkeys(by_name, 0.0)
    for k, core in enumerate(cores):
        if core.occupied > 1 + _TOLERANCE:
            wrong.append(f"core {k} has work for {core.occupied:.3f} of its time")
        for slot in core.slots:
            demand = by_name[slot.name]
            if core.cycle + demand.time(slot.batch) > demand.promise + _TOLERANCE:
                wrong.append(f"core {k} answers {slot.name} too late")
            if slot.batch + _TOLERANCE < slot.rate * core.cycle or slot.batch > demand.most:
                wrong.append(f"core {k} has batches of {slot.name} that are too small or too large")
            served[slot.name] += slot.rate
    wrong += [f"{d.name} is served {served[d.name]:g} of {d.rate:g}" for d in demands if served[d.name] < d.rate - 1e-6]
    return wrong


# --- whole cores ------------------------------------------------------------------------------------------------------


def _saturated(demand: Demand) -> tuple[list[Core], Demand | None]:
    """(the cores that a model saturates by itself, a demand for the remaining requests or None). Raises ServeError for
    a promise that no core can keep."""
    if not (demand.rate > 0 and demand.promise > 0):
        raise ServeError("wants a rate and a promise above 0", where=f"model {demand.name!r}")
    batch = _largest(demand.most, lambda b: 2 * demand.time(b) <= demand.promise)
    if not batch:
        least = f"{2000 * demand.time(1):.3g} ms at least, twice the time of one row"
        raise ServeError(
            "its promise cannot be kept by any core", where=f"model {demand.name!r}",
            expected=least, got=f"{1000 * demand.promise:g} ms",
        )  # fmt: skip
    batch = max(range(1, batch + 1), key=lambda b: (b / demand.time(b), -b))
    seconds = demand.time(batch)
    count = int(demand.rate * seconds / batch + _TOLERANCE)
    full = Core(seconds, (Slot(demand.name, batch, seconds, batch / seconds),))
    left = demand.rate - count * batch / seconds
    if left <= demand.rate * 1e-9:
        return [full] * count, None
    return [full] * count, Demand(demand.name, left, demand.promise, demand.time, demand.most)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    return max((b for b in range(1, most + 1) if fits(b)), default=0)


# --- shared cores -----------------------------------------------------------------------------------------------------


def share(demands: Sequence[Demand]) -> Core | None:
    """One core that serves all of these demands, with the cycle that leaves most time free; None if no cycle keeps all
    promises.

    The batch sizes are step functions of the cycle, so that only the longest cycle of each step, and the longest that a
    promise allows, are tried.
    """
    best: Core | None = None
    for cycle in _cycles(demands):
        slots = []
        for d in demands:
            batch = max(1, math.ceil(d.rate * cycle - _TOLERANCE))
            if batch > d.most or cycle + d.time(batch) > d.promise + _TOLERANCE:
                break
            slots.append(Slot(d.name, batch, d.time(batch), d.rate))
        if len(slots) == len(demands):
            core = Core(cycle, tuple(slots))
            if core.occupied <= 1 + _TOLERANCE and (best is None or core.occupied < best.occupied):
                best = core
    return best


def _cycles(demands: Sequence[Demand]) -> Iterator[float]:
    longest = min(d.promise - d.time(1) for d in demands)
    if longest <= 0:
        return
    known = {longest}
    for d in demands:
        known.update(b / d.rate for b in range(1, min(d.most, int(d.rate * longest) + 1) + 1))
        known.update(d.promise - d.time(b) for b in range(1, min(d.most, int(d.rate * longest) + 2) + 1))
    yield from (cycle for cycle in known if 0 < cycle <= longest)


def _best_fit(demands: Sequence[Demand]) -> list[Core]:
    """Cores that serve all demands, by Nexus's heuristic: models, the largest load first, go to the core that is then
    fullest."""
    alone = {d.name: _alone(d) for d in demands}
    groups: list[tuple[list[Demand], Core]] = []
    for d in sorted(demands, key=lambda d: -alone[d.name].occupied):
        fits = [(core.occupied, k, core) for k, (group, _) in enumerate(groups) if (core := share([*group, d]))]
        if fits:
            _, k, core = max(fits, key=lambda fit: fit[:2])
            groups[k] = ([*groups[k][0], d], core)
        else:
            groups.append(([d], alone[d.name]))
    return [core for _, core in groups]


def _alone(demand: Demand) -> Core:
    core = share([demand])
    assert core is not None, "a core can do what is left of a rate that it could fill"
    return core


def _exact(demands: Sequence[Demand]) -> list[Core]:
    """The fewest cores that serve all demands, by branch and bound over all partitions, starting from the
    heuristic's."""
    if not demands:
        return []
    best = _best_fit(demands)
    known: dict[frozenset[int], Core | None] = {}

    def core_of(group: frozenset[int]) -> Core | None:
        if group not in known:
            known[group] = share([demands[k] for k in sorted(group)])
        return known[group]

    def search(k: int, groups: list[frozenset[int]]) -> None:
        nonlocal best
        if len(groups) >= len(best):
            return
        if k == len(demands):
            created = [core_of(group) for group in groups]
            best = [core for core in created if core is not None]
            return
        for j, group in enumerate(groups):
            larger = group | {k}
            if core_of(larger) is not None:
                search(k + 1, [*groups[:j], larger, *groups[j + 1 :]])
        search(k + 1, [*groups, frozenset({k})])

    search(0, [])
    return best


# --- pictures ---------------------------------------------------------------------------------------------------------


def drawn(core: Core, width: int = 60) -> str:
    """A core's cycle as text of `width` characters: each model's name and a bar for its batch, then dots where the core
    is free."""
    parts = []
    for slot in core.slots:
        size = max(1, round(width * slot.seconds / core.cycle))
        parts.append(f"{slot.name} x{slot.batch}"[:size].ljust(size, "="))
    free = max(0, width - sum(map(len, parts)))
    return "|" + "|".join([*parts, "." * free]) + "|"


__all__ = ["Core", "Demand", "Slot", "drawn", "plan", "share", "violations"]
