"""The tail of a canary: heavy noise alone takes back at most one sound record in twenty, a longer tail is noticed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.farm.scene import machines
from tilewright.farm.canary import Measurement, parse_measurement
from tilewright.farm.rollout import RULES, verdict_of
from tilewright.farm.tails import LEVEL, chance, longer, tail
from tilewright.runtime.schema import encode

PAIRS, PROCESSES = 200, 6
Draw = np.random.Generator


def steady(draw: Draw) -> np.ndarray:
    """Times of one process, two rows, of a machine without others."""
    return 1.0 + 0.01 * draw.standard_normal((2, PAIRS))


def neighbours(draw: Draw) -> np.ndarray:
    """One call in twenty meets another process, for a time without mean."""
    met = draw.random((2, PAIRS)) < 0.05
    return steady(draw) + met * draw.pareto(1.0, (2, PAIRS))


def bursts(draw: Draw) -> np.ndarray:
    """Others take the machine for many calls in a row, in each process more or less of them; a call's place in its
    pair changes, and where memory lies makes one program up to 3 % slower in a process, now one, now the other."""
    length = draw.integers(5, 40)
    busy = np.repeat(draw.random((PAIRS // length + 1, 2)) < 0.1, length, axis=0)[:PAIRS].T
    place = 1.0 + 0.03 * draw.random((2, 1))
    return (steady(draw) + busy * draw.lognormal(1.0, 1.5, (2, PAIRS))) * place


def slow_calls(draw: Draw, noise: np.ndarray, share: float, times: float) -> np.ndarray:
    """The canary's calls take longer now and then."""
    return noise * np.array([np.ones(PAIRS), np.where(draw.random(PAIRS) < share, times, 1.0)])


def measured(processes: list[np.ndarray]) -> list[Measurement]:
    """The measurements that the processes send."""
    sent = []
    for number, (stable, tried) in enumerate(processes):
        middle = float(np.median(stable))
        sent.append(
            Measurement(
                f"{number:032x}", "5" * 32, machines(), ("a" * 32,), tuple((stable / tried).tolist()),
                float(np.quantile(tried, 0.99) / np.quantile(stable, 0.99)), 0.0,
                times=tuple((stable / middle).tolist()),
            )
        )  # fmt: skip
    return sent


@pytest.mark.parametrize("noise", [steady, neighbours, bursts])
def test_noise_takes_back_at_most_one_in_twenty(noise: Callable[[Draw], np.ndarray]) -> None:
    draw, trials = np.random.default_rng(5), 400
    backed = sum(longer([noise(draw) for _ in range(PROCESSES)], 1.0) for _ in range(trials))
    limit = LEVEL * trials + 3 * (trials * LEVEL * (1 - LEVEL)) ** 0.5
    assert backed <= limit
    assert noise is steady or backed > 0  # the level is used, not missed by far


@pytest.mark.parametrize("noise", [neighbours, bursts])
def test_a_rule_without_an_interval_follows_noise(noise: Callable[[Draw], np.ndarray]) -> None:
    draw, trials, backed, before = np.random.default_rng(7), 100, 0, 0
    for _ in range(trials):
        several = [noise(draw) for _ in range(PROCESSES)]
        backed += longer(several, RULES.tail)
        before += sorted(np.quantile(t, 0.99) / np.quantile(s, 0.99) for s, t in several)[PROCESSES // 2] > RULES.tail
    assert backed <= 10 < 25 <= before


@pytest.mark.parametrize(
    ("noise", "share", "times"),
    [(steady, 0.03, 1.5), (neighbours, 0.1, 20.0), (bursts, 0.05, 100.0), (steady, 1.0, 1.3)],
)
def test_a_longer_tail_is_noticed(noise: Callable[[Draw], np.ndarray], share: float, times: float) -> None:
    draw, trials = np.random.default_rng(9), 100
    processes = ([slow_calls(draw, noise(draw), share, times) for _ in range(PROCESSES)] for _ in range(trials))
    assert sum(longer(each, RULES.tail) for each in processes) >= 0.85 * trials


def test_the_verdict_in_noise() -> None:
    draw = np.random.default_rng(11)
    processes = [neighbours(draw) for _ in range(PROCESSES)]
    several = measured(processes)
    assert sorted(m.tail for m in several)[PROCESSES // 2] > RULES.tail and not longer(processes, RULES.tail)
    assert verdict_of(several, RULES)[0] == "good"


def test_a_longer_tail_is_the_reason() -> None:
    draw = np.random.default_rng(1)
    processes = [slow_calls(draw, steady(draw), 0.03, 1.5) for _ in range(PROCESSES)]
    verdict, why = verdict_of(measured(processes), RULES)
    assert verdict == "bad" and "slowest hundredth of calls takes 1.4" in why and "at least 1.4" in why
    assert verdict_of(measured(processes[:5]), RULES)[0] == ""  # five may still be chance
    # an older client says nothing of single calls
    assert verdict_of([replace(m, times=()) for m in measured(processes)], RULES)[0] == "good"


def test_the_bound_is_the_factor() -> None:
    draw = np.random.default_rng(2)
    shown = tail([slow_calls(draw, steady(draw), 1.0, 2.0) for _ in range(8)])
    assert 1.8 < shown.low < 2.0 < 1.02 * shown.median and str(shown).startswith(f"{shown.median:.2f} (at least")
    assert tail([]).low == 0.0 and tail([((), ())]).median == 1.0
    assert tail([(np.ones(50), np.ones(50))] * 9).low < 1.0


def test_all_choices_of_signs() -> None:
    draw = np.random.default_rng(3)
    for _ in range(50):
        numbers = draw.integers(-4, 5, draw.integers(1, 8)).tolist()
        sums = [sum(s * n for s, n in zip(signs, numbers, strict=True)) for signs in
                itertools.product((1, -1), repeat=len(numbers))]  # fmt: skip
        assert chance(numbers) == pytest.approx(np.mean([s >= sum(numbers) for s in sums]))


def test_times_travel_with_ratios() -> None:
    (m,) = measured([neighbours(np.random.default_rng(4))])
    assert parse_measurement(json.dumps(encode(m)).encode()) == m
    for wrong in (m.times[:-1], (0.0,) * PAIRS, (1e9,) * PAIRS):
        with pytest.raises(Exception, match="not possible"):
            parse_measurement(json.dumps(encode(replace(m, times=wrong))).encode())
