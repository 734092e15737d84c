"""Searches played back on recorded spaces: what they find, and that luck does not count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.tuning.replay import Recorded, mean, play
from tilewright.tuning.search import Descent, EstimateOnly, Policy, RandomSearch

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "tune.json"

LABELS = tuple(f"tiles rows={k}" for k in (3, 1, 2, 4, 5))
LUCKY = Recorded("luck", LABELS, (1.0,) * 5, (1.0, 1.1, 1.05, 0.97, 0.9), (1.0, 1.1, 1.05, 0.95, 1.02))
"""The last setting was lucky in the first races."""


def test_luck_does_not_count() -> None:
    played = play(LUCKY, lambda r: Descent(r.space, r.estimates, Policy()))
    assert played.choice == LABELS[4] and played.timed == 4
    assert LUCKY.best == 0.95 and played.regret == pytest.approx(1.02 / 0.95 - 1)
    alone = play(LUCKY, lambda r: EstimateOnly(r.space))
    assert (alone.choice, alone.timed) == (LABELS[0], 0) and alone.regret == pytest.approx(1 / 0.95 - 1)
    average, worst, timed = mean([LUCKY, LUCKY], lambda r: EstimateOnly(r.space))
    assert average == worst == alone.regret and timed == 0


def test_finals_decide_among_the_best() -> None:
    """Finals decide as the tuner's: luck in the search is no win, and what is not worth a change stays out."""

    def chosen(*finals: float) -> str:
        return play(replace(LUCKY, finals=finals), lambda r: Descent(r.space, r.estimates, Policy())).choice

    assert chosen(1.0, 1.1, 1.05, 0.95, 1.02) == LABELS[0], "of finalists only the lucky one, which does not win"
    assert chosen(1.0, 1.1, 1.05, 0.95, 0.9) == LABELS[4]
    inner = replace(LUCKY, seen=(1.0, 1.1, 1.05, 0.91, 0.9))
    make = lambda r: Descent(r.space, r.estimates, Policy())  # noqa: E731
    assert play(replace(inner, finals=(1.0, 1.1, 1.05, 0.95, 1.02)), make).choice == LABELS[3]
    assert play(replace(inner, finals=(1.0, 1.1, 1.05, 0.995, 1.02)), make).choice == LABELS[0]


def test_spaces_are_retained_as_ordinary_data() -> None:
    assert Recorded.from_dict(json.loads(json.dumps(LUCKY.to_dict()))) == LUCKY


@pytest.mark.skipif(not RESULTS.exists(), reason="no spaces were recorded on this machine yet")
def test_the_tuners_search_is_close_to_the_best_of_recorded_spaces() -> None:
    """With fewer measurements than random search, which it must not lose to."""
    rows = json.loads(RESULTS.read_text())["rows"]
    spaces = [Recorded.from_dict(s) for row in rows for s in row.get("spaces", ())]
    regret, _, timed = mean(spaces, lambda r: Descent(r.space, r.estimates, Policy()))
    drawn = [mean(spaces, lambda r, seed=seed: RandomSearch(r.space, 20, seed))[0] for seed in range(5)]
    assert timed <= 20 and regret <= max(0.01, sum(drawn) / len(drawn))
