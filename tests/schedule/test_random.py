"""Random schedules of random programs: refused or the same meaning, interpreted and native; traces replay.

`TILEWRIGHT_SCHEDULE_CASES` sets how many (1,000). A failing case names its seed. `make fuzz` tries 20,000.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.schedule.native import run_native
from tests.schedule.programs import assert_same, random_program
from tests.schedule.random_steps import random_schedule
from tilewright.ir.verify import verify_func
from tilewright.schedule import parse_trace

CASES = int(os.environ.get("TILEWRIGHT_SCHEDULE_CASES", "1000"))
CHUNK = 100
FAILED_ONCE = (
    1013169,  # rfactor of one of two reduction loops, the other guarded: its iterator was left too short
)


@pytest.mark.daily(4)
@pytest.mark.costly(3)
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_random_schedules(first: int) -> None:
    check_chunk(range(first, min(first + CHUNK, CASES)))


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_schedules_that_failed_once(seed: int) -> None:
    check_case(seed)


def check_chunk(seeds: range) -> None:
    for seed in seeds:
        try:
            check_case(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def check_case(seed: int) -> None:
    """One program, one schedule. Any error but a refusal inside `random_schedule` is a failure."""
    rng = random.Random(seed)
    func = random_program(rng)
    schedule = random_schedule(func, rng, rng.randint(3, 8))
    verify_func(schedule.func)
    assert_same(func, schedule.func, rng)
    # Most cases are about meaning, which the optimiser does not change; it takes most of the time.
    opt, threads = 3 if seed % 10 == 0 else 0, rng.choice([1, 1, 2, 3])
    assert_same(func, schedule.func, rng, lambda f, arrays: run_native(f, arrays, opt, threads))
    trace = parse_trace(str(schedule.trace))
    assert trace == schedule.trace
    replayed = trace.replay(func)
    assert replayed.func == schedule.func
    assert replayed.trace == trace
    assert trace.simplified().replay(func).func == schedule.func
