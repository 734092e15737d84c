"""The course's programs run, and each of their steps computes what it should."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import examples.course

LESSONS = sorted(
    path.stem for path in Path(examples.course.__path__[0]).glob("*.py") if path.stem not in ("__init__", "lesson")
)


@pytest.mark.parametrize("name", LESSONS)
def test_steps_on_a_small_size(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Whether it beats its peers is not asked here: sizes are small and the machine busy. What a step computes is.
    lesson = importlib.import_module(f"examples.course.{name}")
    assert lesson.main([*lesson.SMALL, "--rounds", "3"]) in (0, 1)
    shown = capsys.readouterr().out
    assert "=== naive: " in shown
    assert "times naive" in shown
