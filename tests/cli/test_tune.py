"""`tilewright tune`: what it prints, and how it exits; what it finds is tested in `tests/tuning`."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import tilewright.cli.tune as module
from tilewright.cli.tune import _note, differences, left_text
from tilewright.support.errors import Error
from tilewright.tuning import entry
from tilewright.tuning.result import Progress, Row, Tuned
from tilewright.tuning.significance import Gain

from .conftest import Cli

GAIN = Gain(1.05, 1.02, 1.08)
TILES = ("tiles rows=4,width=8", "tiles rows=6,width=8")
ROWS = (
    Row("plan a", "matmul", "kernels", 0.7, 9, {"timed": 4, "crashed": 1}, *TILES, GAIN, True),
    Row("plan b", "softmax", "kernels", 0.3, 3, {"timed": 2}, "rows", "rows", Gain(1.0, 1.0, 1.0), False),
)
TUNED = Tuned({"plan a": "tiles rows=6,width=8"}, ROWS, GAIN, timed=6, seconds=3.0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that the command passes on; `result` is its answer: an error or a result."""
    seen: dict[str, Any] = {"result": TUNED}

    def tune(model: Path, **options: Any) -> Tuned:
        seen.update(options, model=model)
        options["announce"](Progress("kernels", 3, 9, float("inf"), 1.02, "tiles rows=6"))
        if isinstance(seen["result"], Error):
            raise seen["result"]
        result: Tuned = seen["result"]
        return result

    monkeypatch.setattr(entry, "tune", tune)
    return seen


def test_a_table_of_decisions_and_the_gain(cli: Cli, layer: Path, asked: dict[str, Any], tmp_path: Path) -> None:
    code, text, _ = cli("tune", layer, "--dim", "n=8", "--threads", 2, "--seconds", 9, "--records", tmp_path, "--fresh")
    assert code == 0
    for part in ("rows=4 -> rows=6", "70%", "5 of 8, 1 failed", "1.050 [1.020, 1.080]", "the same", "2 threads"):
        assert part in text
    assert "1.050 [1.020, 1.080] times faster, verified (6 candidates, 3 s)" in text
    assert (asked["dims"], asked["threads"], asked["seconds"]) == ({"n": 8}, 2, 9.0)
    assert asked["store"] == tmp_path and asked["fresh"] and asked["target"] is None


def test_json_has_a_line_for_each_step(cli: Cli, layer: Path, asked: dict[str, Any]) -> None:
    code, text, _ = cli("tune", layer, "--json")
    progress, result = map(json.loads, text.splitlines())
    assert code == 0 and progress["done"] == 3 and progress["seconds_left"] is None
    assert Tuned.from_dict(result) == TUNED


def test_exit_codes(cli: Cli, layer: Path, asked: dict[str, Any]) -> None:
    asked["result"] = replace(TUNED, interrupted=True, settings={})
    code, text, _ = cli("tune", layer)
    assert code == 130 and "nothing better was verified" in text and "the next run goes on" in text
    asked["result"] = Error("nothing was measured: its process ended by SIGILL")
    code, _, said = cli("tune", layer)
    assert code == 1 and "nothing was measured: its process ended by SIGILL" in said
    code, _, said = cli("tune", "none.onnx")
    assert code == 1 and "none.onnx: no such file" in said


def test_a_known_result_says_so(cli: Cli, layer: Path, asked: dict[str, Any]) -> None:
    asked["result"] = replace(TUNED, known=True)
    assert "known from an earlier run" in cli("tune", layer)[1]


@pytest.mark.parametrize(
    ("untuned", "tuned", "expected"),
    [
        ("a x=1,y=2", "a x=1,y=2", ()),
        ("a x=1,y=2", "a x=1,y=3", ("y=2", "y=3")),
        ("a x=1", "b x=1", ("a x=1", "b x=1")),
        ("direct", "winograd tile=4", ("direct", "winograd tile=4")),
        ("inside", "separate", ("inside", "separate")),
    ],
)
def test_settings_are_shown_by_what_differs(untuned: str, tuned: str, expected: tuple[str, ...]) -> None:
    assert differences(untuned, tuned) == expected


def test_verify_is_asked_for_and_says_when_there_is_nothing(cli: Cli, layer: Path, asked: dict[str, Any]) -> None:
    asked["result"] = replace(TUNED, rows=(), settings={})
    code, text, _ = cli("tune", layer, "--verify")
    assert code == 0 and asked["verify"] and "no record of another compiler is about a decision of this model" in text


def test_a_gain_that_is_not_verified_is_not_printed(cli: Cli, layer: Path, asked: dict[str, Any]) -> None:
    rejected = replace(ROWS[0], accepted=False, gain=Gain(1.321, 1.2, 1.4))
    asked["result"] = replace(TUNED, rows=(rejected,), settings={}, gain=Gain(1.0, 1.0, 1.0))
    code, text, _ = cli("tune", layer)
    assert code == 0 and "not verified" in text and "1.321" not in text


def test_the_bar_says_what_is_known() -> None:
    searching = Progress("kernels", 3, 9, 12.0, 1.0, "tiles rows=6")
    assert _note(searching) == "nothing verified yet  kernels: tiles rows=6"
    finals = replace(searching, done=9, left=0.0, gain=1.02)
    assert _note(finals) == "verified 1.020 times faster  kernels: tiles rows=6"
    texts = [left_text(seconds) for seconds in (12.3, 0.4, 0.0, -3.0, float("inf"))]
    assert texts == ["12 s left", "0 s left", *["time is up"] * 2, ""]


def test_the_bar_counts_down_between_two_steps_of_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A race may take longer than the time that is left: the bar must not stand at what it was before."""
    now, screen = [100.0], StringIO()
    console = Console(file=screen, force_terminal=True, width=150)
    monkeypatch.setattr(module, "err", console)
    monkeypatch.setattr(module, "is_quiet", lambda _json: False)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def until(text: str) -> None:
        deadline = time.monotonic() + 20
        while text not in screen.getvalue():
            assert time.monotonic() < deadline, screen.getvalue()
            time.sleep(0.02)

    with module._shown("policy", json=False) as announce:
        announce(Progress("kernels", 3, 9, 12.0, 1.0, "tiles rows=6"))
        until("12 s left")
        now[0] += 5
        until("7 s left")
        now[0] += 8
        until("time is up")
        announce(Progress("kernels", 9, 9, 0.0, 1.0, "finals"))
        screen.truncate(0)
        until("finals")
    assert "time is up" not in screen.getvalue()[screen.getvalue().rindex("policy") :]
