"""Candidates that crash, hang, grow or are wrong are outcomes; the others of the race are timed all the same."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.measure.paired import Team
from tilewright.support.errors import CallError
from tilewright.tuning.programs import Built
from tilewright.tuning.workers import FLOOR, Processes, cpus_for, difference

HERE = "tests.tuning.candidate:candidate"


def processes(timeout: float = 30.0) -> Processes:
    return Processes(Path("w"), Path("i"), 1, 1 << 30, timeout, setup=(HERE, HERE))


def built(code: str) -> Built:
    return Built({}, code, ())


def test_what_goes_wrong_in_a_candidate_is_its_outcome() -> None:
    codes = ["good", "segfault", "abort", "greedy", "refuses", "wrong", "rounded"]
    races = replace(processes(), reference={"y": np.arange(1.0, 5.0, dtype=np.float32)}, allowed=FLOOR)
    shown = races.steps([built(c) for c in codes], rounds=2)
    assert [t.outcome for t in shown] == [
        "timed",
        "crashed",
        "crashed",
        "memory",
        "refused",
        "wrong",
        "timed",
    ]
    good, segfault, abort, _, refuses, wrong, rounded = shown
    assert good.rounds == rounded.rounds == ((1e-6, 2e-6), (1e-6, 2e-6))
    assert good.error == 0 < rounded.error < FLOOR < wrong.error
    assert "SIGSEGV" in segfault.why and "SIGABRT" in abort.why
    assert refuses.why == "ValueError: no such kernel"
    assert "off by 1.0e-03 of the outputs' scale" in wrong.why


def test_a_candidate_that_never_answers_is_ended() -> None:
    good, endless = processes(timeout=3.0).steps([built("good"), built("endless")], rounds=1)
    assert (good.outcome, endless.outcome) == ("timed", "timeout") and "no answer within 3 s" in endless.why


def test_races_of_a_team_share_processes_until_something_fails() -> None:
    """Each candidate meets another process than in the race before; what failed leaves nothing after."""
    with Team() as team:
        races = replace(processes(), team=team)
        three = [built("good")] * 3

        def pids(team: Team | None) -> list[int]:
            return [result.info["pid"] for result in races._race(three, HERE, 1, team)[0]]

        first, second, other = pids(team), pids(team), pids(None)
        assert set(first) == set(second) and all(a != b for a, b in zip(first, second, strict=True))
        assert not set(first) & set(other)
        assert [t.outcome for t in races.steps([built("good"), built("refuses")], 1)] == ["timed", "refused"]
        assert not set(pids(team)) & set(first)


def test_who_verifies_a_candidate_that_crashes_is_told() -> None:
    loadings, state = processes().verify(built("good"), built("segfault"))
    assert (loadings, state.outcome) == ((), "crashed")


def test_an_untuned_program_that_cannot_run_is_an_error() -> None:
    with pytest.raises(CallError, match="the untuned program cannot be timed: its process ended by SIGSEGV"):
        processes().compared_with(built("good"), built("segfault"))


def test_candidates_may_be_as_distant_off_as_the_untuned_program_and_a_little_more() -> None:
    evaluated = processes().compared_with(built("good"), built("wrong"))
    assert evaluated.allowed == pytest.approx(2e-3, rel=1e-3)
    (shown,) = evaluated.steps([built("wrong")], 1)
    assert shown.outcome == "timed"


def test_candidates_run_on_the_number_of_cpus_as_they_have_threads() -> None:
    usable = sorted(os.sched_getaffinity(0))
    assert cpus_for(1) == (usable[-1],)
    (result,), _ = processes()._race([built("good")], HERE, 1)
    assert result.info["cpus"] == usable[-1:]
    assert cpus_for(len(usable) + 1) is None


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([1.0, 2.0, np.nan, np.inf], 0.0),
        ([1.0, 2.5, np.nan, np.inf], 0.25),
        ([1.0, 2.0, 0.0, np.inf], np.inf),
        ([np.nan, 2.0, np.nan, np.inf], np.inf),
        ([1.0, 2.0, np.nan, -np.inf], np.inf),
        ([1.0, 2.0, np.nan], np.inf),
    ],
)
def test_differences_are_relative_to_the_scale(results: list[float], expected: float) -> None:
    wanted = {"y": np.array([1.0, 2.0, np.nan, np.inf])}
    assert difference(wanted, {"y": np.array(results)}) == expected
    assert difference(wanted, {"z": np.array(results)}) == difference(wanted, None) == np.inf
    assert difference(None, None) == difference({}, {}) == 0.0


def test_whole_numbers_are_equal_or_not() -> None:
    assert difference({"i": np.arange(3)}, {"i": np.arange(3)}) == 0.0
    assert difference({"i": np.arange(3)}, {"i": np.arange(3) + 1}) == 1.0
    assert difference({"i": np.zeros(0)}, {"i": np.zeros(0)}) == 0.0
    assert difference({"c": np.array([3 + 4j])}, {"c": np.array([3 + 3j])}) == 0.2
