"""The pass log announces, times, says "(unchanged)", shows text by level; progress bars are silent off a terminal."""

from __future__ import annotations

import io

from tilewright.support.log import PassLog
from tilewright.support.progress import progress


def test_passes_are_announced_and_timed() -> None:
    out = io.StringIO()
    log = PassLog("compile m", level=1, stream=out)
    assert log.run("double", lambda x: x * 2, 21) == 42
    assert log.run("same", lambda x: x, (1, 2)) == (1, 2)
    assert log.run("equal", lambda x: list(x), [1]) == [1]
    assert log.run("other type", str, 1) == "1"
    text = out.getvalue().splitlines()
    assert text[0] == "== compile m"
    assert "double" in text[1]
    assert "unchanged" not in text[1]
    assert text[2].endswith("(unchanged)")
    assert text[3].endswith("(unchanged)")
    assert "unchanged" not in text[4]
    assert [r.changed for r in log.records] == [True, False, False, None]
    assert "double" in log.summary()


def test_silent_at_level_0_but_times_are_kept() -> None:
    out = io.StringIO()
    log = PassLog("m", level=0, stream=out)
    with log.timed("outer"):
        log.run("a", lambda x: x, 1)
        log.run("a", lambda x: x, 1)
    log.dump(1, "graph", lambda: "never")
    assert out.getvalue() == ""
    assert [r.name for r in log.records] == ["a", "a", "outer"]
    assert set(log.seconds()) == {"a", "outer"}


def test_dump_by_level() -> None:
    out = io.StringIO()
    log = PassLog(level=3, stream=out)
    log.dump(3, "loops", lambda: "for i in range(4):\n")
    log.dump(4, "LLVM IR", lambda: "define")
    assert out.getvalue() == "-- loops\nfor i in range(4):\n"


def test_progress_is_silent_off_a_terminal(capsys: object) -> None:
    with progress("work", total=2) as step:
        step("one")
        step("two")
    with progress("work", enabled=False) as step:
        step("one")
    captured = capsys.readouterr()  # type: ignore[attr-defined]
    assert captured.err == ""
    assert captured.out == ""
