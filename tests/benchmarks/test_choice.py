"""The search for the best setting of a layer: what cannot be compiled is left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import bench_choice
from benchmarks.bench_choice import Forced
from tilewright.plans.decisions import Decision

SITE = "plan of a kernel"
LABELS = ("rows=1", "rows=2", "rows=3")


def save_or_abort(model: Path, forced: Forced, file: Path) -> None:
    if forced.get(SITE) == "rows=2":
        os.abort()
    file.write_text("compiled")


def test_a_setting_at_which_the_compiler_aborts_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Decision(SITE, LABELS, (1.0, 2.0, 3.0), LABELS[0])]
    settings = [({}, made), *(({SITE: label}, made) for label in LABELS[1:])]
    monkeypatch.setattr(bench_choice, "FOLDER", tmp_path)
    monkeypatch.setattr(bench_choice, "settings", lambda model: iter(settings))
    monkeypatch.setattr(bench_choice, "_save", save_or_abort)
    monkeypatch.setattr(bench_choice.models, "load", Path)
    assert bench_choice.compile_all("gemm-4x512x512", 10) == 3
    index = json.loads((tmp_path / "gemm-4x512x512" / "index.json").read_text())
    assert [entry["label"] for entry in index] == ["rows=1", "rows=3"]
    assert all((tmp_path / "gemm-4x512x512" / entry["file"]).read_text() == "compiled" for entry in index)
