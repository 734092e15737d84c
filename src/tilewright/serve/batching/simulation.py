"""A discrete-event simulation of arrivals, queues and lanes, which runs the server's own policies with a simulated
clock.

It serves tests of the policies, `tilewright plan-serving`, and comparisons of policies.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.serve.batching.dispatcher import Dispatcher, Start
from tilewright.serve.batching.policy import Job, Queue


@dataclass(frozen=True, slots=True)
class Load:
    """Requests for one model.

    Args:
        rate: a second, on average.
        promise: seconds in which each must be answered.
        burst: how many arrive together, on average; the times of bursts are Poisson's.
    """

    model: Hashable
    rate: float
    promise: float
    burst: float = 1.0


@dataclass(slots=True)
class Outcome:
    """The results of one model's requests. `latencies`: of those that were answered."""

    met: int = 0
    missed: int = 0
    refused: int = 0
    latencies: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.met + self.missed + self.refused

    def quantile(self, share: float) -> float:
        """The latency that this share of the answers does not exceed, in seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


def arrivals(load: Load, seconds: float, source: random.Random) -> Iterator[float]:
    """Random times of requests, in seconds below `seconds`: a Poisson process of bursts of geometric size, at the rate
    of `load`."""
    now = 0.0
    while True:
        now += source.expovariate(load.rate / load.burst)
        if now >= seconds:
            return
        yield now
        while load.burst > 1 and source.random() < 1 - 1 / load.burst:
            yield now


def simulate(
    queues: Mapping[Hashable, Queue],
    loads: Iterable[Load],
    cost: Callable[[Hashable, int], float],
    *,
    lanes: int = 1,
    seconds: float = 10.0,
    seed: int = 0,
) -> dict[Hashable, Outcome]:
    """Simulate serving these loads for `seconds` seconds.

    Args:
        cost: the true seconds of a batch, which the queues do not know.
    """
    source = random.Random(seed)
    dispatcher = Dispatcher(lanes)
    dispatcher.queues.update(queues)
    outcomes: dict[Hashable, Outcome] = {}
    events: list[tuple[float, int, Job | Start, Hashable]] = []
    for load in loads:
        outcomes.setdefault(load.model, Outcome())
        for time in arrivals(load, seconds, source):
            heapq.heappush(events, (time, len(events), Job(1, time, time + load.promise), load.model))
    number = len(events)
    while events:
        now, _, event, model = heapq.heappop(events)
        if isinstance(event, Start):
            dispatcher.finished(event, now)
            _finish(outcomes[model], event, now)
        elif not dispatcher.arrive(model, event, now):
            outcomes[model].refused += 1
        while True:
            start, dropped = dispatcher.next(now)
            for name, _job in dropped:
                outcomes[name].refused += 1
            if start is None:
                break
            took = cost(start.model, start.batch.rows)
            queue = dispatcher.queues[start.model]
            estimates = getattr(queue, "estimates", None)
            dispatcher.expect(start, took if estimates is None else estimates.seconds(start.batch.rows))
            number += 1
            heapq.heappush(events, (now + took, number, start, start.model))
    return outcomes


def _finish(outcome: Outcome, start: Start, now: float) -> None:
    outcome.batches.append(start.batch.rows)
    for job in start.batch.jobs:
        outcome.latencies.append(now - job.arrival)
        if now <= job.deadline:
            outcome.met += 1
        else:
            outcome.missed += 1


__all__ = ["Load", "Outcome", "arrivals", "simulate"]
