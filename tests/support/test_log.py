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


def test_silent_at_level_0_but_times_are_retained() -> None:
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


def test_what_runs_inside_may_be_announced_later() -> None:
    for level, announced in ((1, ["outer"]), (3, ["inner", "outer"])):
        out = io.StringIO()
        log = PassLog(level=level, stream=out)
        with log.timed("outer"), log.announcing(3):
            log.run("inner", lambda x: x, 1)
        assert [line.split()[0] for line in out.getvalue().splitlines()] == announced
        assert [r.name for r in log.records] == ["inner", "outer"]


def test_remarks_are_retained_and_printed_with_the_passes() -> None:
    out = io.StringIO()
    for level in (0, 1):
        log = PassLog(level=level, stream=out)
        log.remark("threads do not share the rows")
        assert log.remarks == ["threads do not share the rows"]
    assert out.getvalue() == "remark: threads do not share the rows\n"


def test_dumps_are_by_name() -> None:
    assert PassLog(dumps=("fold",)).dumps_after("fold") and PassLog(dumps=("all",)).dumps_after("fold")
    assert not PassLog(dumps=("fold",)).dumps_after("merge") and not PassLog(dumps=()).dumps_after("fold")
