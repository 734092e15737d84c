"""Contenders run separately and in turns; one that fails says why and does not stop the others."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from statistics import median

import numpy as np

from tilewright.measure.contender import Prepared, load_arrays
from tilewright.measure.paired import Contender, Team, race, ratio
from tilewright.support.errors import Error

HERE = "tests.measure.test_paired"


def sleeper(milliseconds: float) -> Prepared:
    print("libraries may print")
    return Prepared(
        lambda: time.sleep(milliseconds / 1e3),
        lambda: {"file": np.full(3, milliseconds)},
        {"pid": os.getpid(), "flag": os.environ.get("CONTENDER_FLAG")},
    )


def refuses() -> Prepared:
    raise Error("cannot do that", where="model m")


def dies() -> Prepared:
    os._exit(7)


def hangs() -> Prepared:
    time.sleep(60)
    return Prepared(lambda: None)


def test_ratio_of_paired_rounds(tmp_path: Path) -> None:
    slow, fast = race(
        [
            Contender("slow", f"{HERE}:sleeper", {"milliseconds": 20}, {"CONTENDER_FLAG": "x"}),
            Contender("fast", f"{HERE}:sleeper", {"milliseconds": 1}),
        ],
        rounds=5,
        warmup_seconds=0.01,
        outputs=tmp_path,
    )
    assert len(slow.times) == len(fast.times) == 5
    assert slow.info["pid"] != fast.info["pid"] != os.getpid()
    assert slow.info["flag"] == "x"
    assert ratio(slow, fast) == median(s / f for s, f in zip(slow.times, fast.times, strict=True)) > 1
    assert slow.median >= 0.02
    assert slow.peak_memory > 1 << 20
    assert slow.outputs is not None
    assert load_arrays(str(slow.outputs))["file"].tolist() == [20, 20, 20]


def test_failures_are_told_and_others_go_on() -> None:
    names = ["refuses", "dies", "hangs", "no_such_function"]
    results = race(
        [*(Contender(n, f"{HERE}:{n}") for n in names), Contender("good", f"{HERE}:sleeper", {"milliseconds": 1})],
        rounds=2,
        warmup_seconds=0.0,
        timeout_seconds=8.0,
    )
    errors = [r.error or "" for r in results]
    assert "model m: cannot do that" in errors[0]
    assert "status 7" in errors[1]
    assert "no answer within 8 s" in errors[2]
    assert "no_such_function" in errors[3]
    assert errors[4] == ""
    assert len(results[4].times) == 2
    assert math.isnan(ratio(results[0], results[4]))


def test_a_team_stays_for_several_races_and_replaces_who_ended() -> None:
    contender = Contender("a", f"{HERE}:sleeper", {"milliseconds": 1})
    options: dict[str, float] = {"warmup_seconds": 0.01, "turn_seconds": 0.001}
    with Team() as team:
        first, second = (race([contender], rounds=2, team=team, **options)[0] for _ in range(2))
        assert first.info["pid"] == second.info["pid"]
        (dead,) = race([Contender("a", f"{HERE}:dies")], rounds=1, team=team)
        assert dead.error is not None
        (third,) = race([contender], rounds=5, enough_seconds=0, team=team, **options)
        assert third.error is None
        assert third.info["pid"] != first.info["pid"]
        assert len(third.times) == 3
