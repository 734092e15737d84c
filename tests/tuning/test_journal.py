"""The journal keeps turns through kills and damage."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.targets.target import Target
from tilewright.tuning.journal import MAX_BYTES, Journal, Turns


def filled(path: Path) -> Journal:
    journal = Journal(path)
    journal.timed("plan a", "old", "new", Turns((2.0, 2.0), (1.0, 1.6)))
    journal.timed("plan a", "old", "new", Turns((3.0,), (2.0,)))
    journal.failed("plan a", "old", "bad", "crashed", "SIGSEGV")
    journal.keep("result", {"a": 1})
    return journal


def test_what_was_measured_is_there_once_more(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "j.jsonl"
    for journal in (filled(path), Journal(path)):
        first, second = journal.turns("plan a", "old", "new")
        assert first.gains == (2.0, 1.25) and second.gains == (1.5,)
        assert journal.failure("plan a", "old", "bad") == ("crashed", "SIGSEGV")
        assert journal.result("result") == {"a": 1}
        assert journal.turns("plan a", "other", "new") == [] and journal.failure("plan a", "old", "new") is None
        assert journal.result("none") is None
    assert path.stat().st_mode & 0o077 == 0


def test_steps_too_short_for_the_clock_are_a_tie() -> None:
    assert Turns((0.0, 0.0), (0.0, 1e-9)).gains == (1.0,)
    assert Turns((), ()).gains == (1.0,)


@settings(max_examples=60)
@given(st.data())
def test_damage_costs_the_damaged_lines_alone(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j.jsonl"
        filled(path)
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        flipped = bytearray(whole[:cut])
        if flipped and data.draw(st.booleans()):
            flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(flipped)
        journal = Journal(path)
        good = filled(Path(folder) / "other.jsonl")
        assert all(t in good.turns("plan a", "old", "new") for t in journal.turns("plan a", "old", "new"))
        assert journal.failure("plan a", "old", "bad") in (None, ("crashed", "SIGSEGV"))
        journal.timed("plan b", "old", "new", Turns((1.0,), (1.0,)))  # goes on after the damage
        assert Journal(path).turns("plan b", "old", "new") == [Turns((1.0,), (1.0,))]


def test_lines_that_say_something_else_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    negative = {"site": "a", "incumbent": "b", "label": "c", "before": [-1.0], "after": [1.0]}
    for line in ({"site": 1}, {"result": "x", "value": 3}, negative):
        journal._write(line)  # type: ignore[arg-type]
    reloaded = Journal(path)
    assert reloaded.turns("a", "b", "c") == [] and reloaded.result("x") is None


def test_too_large_or_unwritable_is_begun_once_more(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    filled(path)
    with path.open("r+b") as file:
        file.truncate(MAX_BYTES + 1)
    assert Journal(path).turns("plan a", "old", "new") == [] and not path.exists()
    blocked = Journal(tmp_path / "j2" / "x.jsonl")
    (tmp_path / "j2").write_text("a file")
    blocked.keep("a", {})
    assert blocked.result("a") == {}
    assert Journal(None).result("a") is None


def test_a_journal_is_of_one_question_on_one_machine(tmp_path: Path) -> None:
    zen4, haswell = Target.parse("znver4"), Target.parse("haswell")
    names = {
        Journal.of(key, target, question, tmp_path).path
        for key in ("a", "b")
        for target in (zen4, haswell)
        for question in ("", "x")
    }
    assert len(names) == 8
