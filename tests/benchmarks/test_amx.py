"""The parts of `benchmarks/bench_amx.py`: their commands are those of modules, and a part that fails is said."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import bench_amx
from benchmarks.bench_amx import PARTS, main, run


def test_parts_are_commands() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    for part in PARTS:
        for command in (part.command, part.dry):
            assert importlib.util.find_spec(command[0]) is not None


def test_failures_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = replace(PARTS[0], name="one", dry=("json.tool", "/nowhere/at/all"))
    text, fine = run(part, dry=True)
    assert not fine and "nowhere" in text
    text, fine = run(replace(part, dry=("timeit", "-n", "1", "import time; time.sleep(9)"), seconds=0.5), dry=True)
    assert not fine and "more than 0 s" in text
    monkeypatch.setattr(bench_amx, "PARTS", (part, replace(part, name="two", dry=("this",))))
    assert main(["--dry-run", "--out", str(tmp_path)]) == 1
    assert "failed: one" in capsys.readouterr().out and "Zen of Python" in (tmp_path / "amx.txt").read_text()
    with pytest.raises(SystemExit, match="no such part: three"):
        main(["--only", "three"])
