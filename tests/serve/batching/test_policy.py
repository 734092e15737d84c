"""Policies on a simulated clock: laws of every decision, and what they reach, against theory and a policy of others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.serve.batching.dispatcher import Dispatcher
from tilewright.serve.batching.estimates import Estimates
from tilewright.serve.batching.policy import AimdQueue, DeadlineQueue, Job
from tilewright.serve.batching.simulation import Load, Outcome, simulate

ALPHA, BETA = 136e-6, 40e-6
"""Seconds of a row and of a batch: a convolutional policy on one core."""
MAX_BATCH = 64
CAPACITY = MAX_BATCH / (BETA + MAX_BATCH * ALPHA)


def known(alpha: float = ALPHA, beta: float = BETA, most: int = MAX_BATCH) -> Estimates:
    return Estimates(most, lambda rows: beta + alpha * rows)


def noisy(seed: int, noise: float = 0.03, spikes: float = 0.0) -> Callable[[object, int], float]:
    source = random.Random(seed)

    def cost(_: object, rows: int) -> float:
        factor = 3.0 if source.random() < spikes else 1 + abs(source.gauss(0, noise))
        return (BETA + ALPHA * rows) * factor

    return cost


SECONDS, PROMISE = 1.0, 0.02


def run(load: float, *, aimd: bool = False, burst: float = 1.0, lanes: int = 1, spikes: float = 0.0) -> Outcome:
    queue = AimdQueue(PROMISE, MAX_BATCH) if aimd else DeadlineQueue(known(), PROMISE, MAX_BATCH)
    loads = [Load("m", CAPACITY * load * lanes, PROMISE, burst)]
    return simulate({"m": queue}, loads, noisy(5, spikes=spikes), lanes=lanes, seconds=SECONDS, seed=3)["m"]


@pytest.mark.parametrize(("burst", "lanes"), [(1.0, 1), (8.0, 1), (1.0, 2)])
def test_overload_keeps_the_goodput(burst: float, lanes: int) -> None:
    outcome = run(2.0, burst=burst, lanes=lanes)
    assert outcome.met / SECONDS >= 0.9 * CAPACITY * lanes
    assert outcome.missed <= 0.003 * outcome.total


def test_a_small_number_of_promises_are_broken_below_capacity() -> None:
    outcome = run(0.8, spikes=0.002)
    assert outcome.missed <= 0.003 * outcome.total
    assert outcome.refused <= 0.003 * outcome.total
    assert outcome.quantile(0.5) < 0.002  # nothing waits for a batch to fill


def test_without_estimates_overload_breaks_all_promises() -> None:
    assert run(2.0, aimd=True).met < 0.1 * run(2.0).met
    assert run(0.5, aimd=True).met > 0.99 * run(0.5, aimd=True).total


def test_the_simulation_agrees_with_theory() -> None:
    """One request at a time, each as long as the other: the mean wait is that of M/D/1 (Pollaczek and Khinchine)."""
    service, load = 1e-3, 0.7
    queue = AimdQueue(math.inf, 1)
    outcome = simulate(
        {"m": queue}, [Load("m", load / service, math.inf)], lambda _m, _b: service, seconds=40.0, seed=1
    )
    wait = sum(outcome["m"].latencies) / outcome["m"].total - service
    assert wait == pytest.approx(load / (2 * (1 - load)) * service, rel=0.08)


jobs = st.lists(
    st.tuples(st.integers(1, 9), st.floats(0, 0.05), st.integers(-1, 1)), min_size=1, max_size=30
)  # fmt: skip


@given(jobs, st.floats(0, 0.03))
def test_a_batch_keeps_the_deadlines_of_all_its_jobs(rows: list[tuple[int, float, int]], wait: float) -> None:
    estimates = known()
    estimates.observe(1, estimates.seconds(1))
    queue = DeadlineQueue(estimates, 0.02, 16)
    waiting = [Job(n, 0.0, slack, priority) for n, slack, priority in rows]
    selected = [job for job in waiting if queue.accept(job, 0.0, 0.0, 1)]
    for job in waiting:  # a job is only refused if its deadline could not be kept by itself, or after others
        assert job in selected or job.deadline < sum(j.rows for j in waiting) * (ALPHA + BETA) * 2
    batch, dropped = queue.take(wait)
    got = [] if batch is None else list(batch.jobs)
    assert batch is None or batch.rows == sum(j.rows for j in got)
    assert len(got) == len(set(map(id, got))) and not set(map(id, got)) & set(map(id, dropped))
    assert len(got) + len(dropped) + len(queue) == len(selected)
    if batch is not None:
        assert batch.rows <= 16 or len(got) == 1
        finish = wait + queue.estimates.bound(batch.rows)
        assert all(finish <= job.deadline for job in got)
        left = [job for job in selected if job not in got and job not in dropped]
        assert all(g.order <= job.order for g in got for job in left)
    else:
        assert not len(queue)  # nothing waits while a lane is free


def test_priority_comes_first() -> None:
    queue = DeadlineQueue(known(), 1.0, 4)
    low, high = Job(4, 0.0, 0.5, 0), Job(4, 0.0, 0.9, 1)
    assert queue.accept(low, 0.0, 0.0, 1) and queue.accept(high, 0.0, 0.0, 1)
    assert queue.take(0.0)[0].jobs == [high]  # type: ignore[union-attr]
    assert queue.remove(low) and not queue.remove(low) and queue.backlog() == 0


def test_the_most_urgent_model_has_the_lane() -> None:
    dispatcher = Dispatcher(1)
    dispatcher.queues.update(a=DeadlineQueue(known(), 1.0, 4), b=DeadlineQueue(known(), 1.0, 4))
    assert dispatcher.arrive("a", Job(1, 0.0, 0.9), 0.0) and dispatcher.arrive("b", Job(1, 0.0, 0.5), 0.0)
    start, _ = dispatcher.next(0.0)
    assert start is not None and start.model == "b" and dispatcher.idle == 0
    assert dispatcher.next(0.0) == (None, [])
    # The other model's work counts: what cannot be done after it is refused.
    dispatcher.expect(start, 0.4)
    assert not dispatcher.arrive("b", Job(1, 0.0, 0.39), 0.0)
    dispatcher.finished(start, 0.01)
    assert dispatcher.next(0.01)[0].model == "a"  # type: ignore[union-attr]


def test_estimates_learn() -> None:
    estimates = known(alpha=1e-3, beta=0.0)  # ten times too slow
    assert estimates.seconds(3) == pytest.approx(3e-3)
    for _ in range(40):
        estimates.observe(8, 8e-4)
    assert estimates.seconds(8) == pytest.approx(8e-4, rel=0.01)
    assert estimates.seconds(16) == pytest.approx(16e-4, rel=0.3)  # from the common factor
    before = estimates.seconds(8)
    estimates.observe(8, 1.0)  # something else had the core
    assert estimates.seconds(8) < 1.5 * before
    assert 0.05 <= estimates.margin <= 0.5


def test_estimates_that_are_too_large_come_right_once_more() -> None:
    """Something else had the machine: every job would be refused, and nothing would run that corrects the estimate."""
    estimates = known()
    for size in estimates.sizes:
        estimates.observe(size, estimates.seconds(size))
        for _ in range(30):
            estimates.observe(size, 1.0)
    assert estimates.bound(1) > 0.02
    queue = DeadlineQueue(estimates, 0.02, MAX_BATCH)
    outcome = simulate({"m": queue}, [Load("m", CAPACITY / 2, 0.02)], noisy(1), seconds=4.0)["m"]
    assert outcome.met > 0.4 * outcome.total and estimates.bound(1) < 0.002
    assert not queue.accept(Job(1, 5.0, 5.0 + 1e-6), 5.0, 5.0, 1)  # what no batch has ever done is not tried


@pytest.mark.parametrize(("limit", "least"), [(10.0, 64), (0.003, 12), (1e-9, 1)])
def test_the_best_batch_fits(limit: float, least: int) -> None:
    estimates = Estimates(64, lambda rows: 1e-3 + 1e-4 * rows)
    best = estimates.best(limit)
    assert best >= least and (best == 1 or estimates.bound(best) <= limit)
