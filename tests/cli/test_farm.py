"""`tilewright farm`: what it prints of a state, and how records come in and go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from typer.testing import CliRunner

import tilewright as tw
from tests.farm import scene
from tests.farm.test_service import collected, in_channel, key, measured, send, state, tuned
from tilewright.cli.main import app
from tilewright.farm import rollout
from tilewright.farm.state import State
from tilewright.records.archive import export
from tilewright.records.signed import SigningKey

__all__ = ["collected", "key", "state"]  # fixtures


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["farm", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def data(*words: str) -> Any:
    return json.loads(run(*words, "--json"))


def test_status_jobs_workers_and_rollout(state: State, collected: Path, key: SigningKey) -> None:
    tuned(state, collected, key)
    rollout.enter_canary(state)
    place = ("--state", state.database.address)
    digests = in_channel(state, "canary")
    number = len(digests)
    assert f"{2 * number} done" in run("status", *place) and f"{number} confirmed" in run("status", *place)
    assert {j["state"] for j in data("jobs", *place)} == {"done"} and "5 candidates" in run("jobs", *place)
    assert {w["host"] for w in data("workers", *place)} == {"first", "second"} and "ready" in run("workers", *place)
    for k in range(3):
        send(state, measured(1.03, (digests[0],), k))
    rollout.weigh(state)
    assert "1.030" in run("rollout", *place) and "released" in run("rollout", *place)
    run("rollout", digests[0][:10], "--back", "--why", "slower in the arena", *place)
    first = data("rollout", *place)["history"][0]
    assert (first["action"], first["why"], first["record"]) == ("taken back", "slower in the arena", digests[0])
    if number > 1:
        run("rollout", digests[1], "--release", *place)
        assert in_channel(state, "stable") == [digests[1]]


def test_take_and_import(state: State, collected: Path, tmp_path: Path) -> None:
    place = ("--state", state.database.address)
    (row,) = data("take", str(collected), *place)
    assert (row["workloads"], row["calls"], row["damaged"]) == (1, 7, [])
    records = [scene.record_about(d) for d in scene.decisions()]
    export(((r.digest, r) for r in records), tmp_path / "team.twr")
    (row,) = data("import", str(tmp_path / "team.twr"), *place)
    assert (row["new"], row["known"], row["damaged"]) == (len(records), 0, 0)
    assert f"0 new, {len(records)} known" in run("import", str(tmp_path / "team.twr"), *place)
    with pytest.raises(tw.Error, match="cannot be read"):
        CliRunner().invoke(app, ["farm", "import", str(tmp_path / "none"), *place], catch_exceptions=False)


def test_resources() -> None:
    (name,) = json.loads(run("resources", "--units", "2"))
    assert name.startswith("tilewright-") and json.loads(run("resources", "--units", "2")) == {name: 2}


def test_start_refuses_an_open_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tw.Error, match="refuses to listen beyond this machine without a token"):
        CliRunner().invoke(app, ["farm", "start", "--host", "0.0.0.0", "--workers", "0"], catch_exceptions=False)
