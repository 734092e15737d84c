"""The zoo's race: who is the best peer, what its table says, and that each runtime computes what eager does."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the zoo's models are PyTorch's; `make torch` installs it")

from benchmarks import bench_zoo_peers as bench  # noqa: E402 (needs torch)
from benchmarks.zoo import peers  # noqa: E402


def test_the_best_peer_is_never_eager() -> None:
    row = bench.PeerRow("a", ratios={"onnxruntime": 1.5, "inductor": 1.25, "eager": 0.5})
    assert row.worst == 1.25
    assert bench.PeerRow("a", ratios={"eager": 0.5}).worst is None


def test_the_table_counts_who_is_below_one() -> None:
    rows = {
        "a": bench.PeerRow("a", {"ours": 10.0, "openvino": 9.0, "eager": 40.0}, {"openvino": 0.9, "eager": 4.0}),
        "b": bench.PeerRow("b", {"ours": 10.0, "eager": 5.0}, {"eager": 0.5}, {"openvino": "killed | by signal 11"}),
    }
    text = bench.report(rows)
    assert "2 models of the zoo, 1 with a peer" in text
    assert "openvino's time by ours: 0.90 in the geometric mean of 1, least 0.90, 1 below 1." in text
    assert "eager's time by ours: 1.41 in the geometric mean of 2, least 0.50, 1 below 1." in text
    assert "**0.90**, least 0.90, 1 below 1, 1 below 0.95" in text
    assert "| a | 10 |  | 9 |  |  | 40 | 0.90 | 4.00 |" in text
    assert "openvino: killed / by signal 11" in text


def test_of_two_rows_of_a_name_the_later_counts(tmp_path: Path) -> None:
    rows = [bench.PeerRow("a", commit="old"), bench.PeerRow("b"), bench.PeerRow("a", commit="new")]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    assert bench.read(file) == {"a": rows[2], "b": rows[1]}


def test_who_has_no_file_says_why(tmp_path: Path) -> None:
    (tmp_path / peers.KILLED).write_text(json.dumps({"openvino": "killed by signal 11"}))
    assert peers.absent(tmp_path) == {"openvino": "killed by signal 11"}
    (tmp_path / peers.UNEXPORTED).write_text("not exported: no rule")
    assert peers.absent(tmp_path) == dict.fromkeys(("onnxruntime", "openvino"), "not exported: no rule")


def test_what_litert_cannot_convert_is_noted(tmp_path: Path) -> None:
    assert not peers.litert.ready(tmp_path)
    (tmp_path / peers.litert.UNCONVERTED).write_text("not converted: ValueError: no rule")
    assert peers.litert.ready(tmp_path)
    assert peers.absent(tmp_path) == {"litert": "not converted: ValueError: no rule"}


def test_a_peer_that_is_not_prepared_keeps_what_it_had() -> None:
    """A peer that is wrong, or cannot run the model any more, does not."""
    former = bench.PeerRow("a", {"inductor": 20.0, "litert": 9.0}, {"inductor": 2.0, "litert": 0.9}, commit="old")
    now = bench.PeerRow("a", {"ours": 10.0, "openvino": 15.0}, {"openvino": 1.5}, {"litert": "differs"}, commit="new")
    row = bench.merged(now, former)
    assert row.ratios == {"openvino": 1.5, "inductor": 2.0} and row.times["inductor"] == 20.0
    assert row.notes == {"litert": "differs", "inductor": "raced at old"} and row.commit == "new"
    assert bench.merged(bench.PeerRow("b", commit="new"), None).ratios == {}
    repeated = bench.merged(bench.PeerRow("a", commit="newer"), row)
    assert repeated.notes["inductor"] == "raced at old"


def test_litert_is_prepared_by_its_own_environment() -> None:
    order = bench._order("control-PPO", "litert")
    assert order[0] == str(peers.litert.PYTHON) and order[1:4] == ["-m", "benchmarks.zoo.litert", "control-PPO"]
    assert bench._order("control-PPO", "inductor")[1:] == ["-m", "benchmarks.zoo.peers", "control-PPO", "--inductor"]


def test_a_policy_raced_against_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setattr(bench, "TURN_SECONDS", 1e-4)
    monkeypatch.setattr(peers, "export", refuse)
    peers.prepare("control-PPO", tmp_path / "control-PPO")
    row = bench.race("control-PPO", rounds=1)
    assert set(row.times) == {"ours", "eager"} and row.ratios["eager"] > 0
    assert row.notes == dict.fromkeys(("onnxruntime", "openvino"), "not exported: ValueError: no rule")


def test_results_that_differ_have_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setattr(peers, "export", refuse)
    folder = tmp_path / "control-PPO"
    peers.prepare("control-PPO", folder)
    expected = peers.arrays(folder / "outputs.npz")
    np.savez(folder / "outputs.npz", **{name: x + 1 for name, x in expected.items()})
    row = bench.race("control-PPO", rounds=1)
    assert not row.times and "differs by" in row.notes["ours"] and "differs by" in row.notes["eager"]


def refuse(*_: object) -> None:
    raise ValueError("no rule")
