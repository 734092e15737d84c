"""`tilewright db`, and records in the other commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tilewright as tw
from tests.cli.conftest import Cli
from tests.records.samples import HASWELL, LABELS, POLICY, PROVENANCE, product, record
from tilewright.identity import code_version
from tilewright.plans.framework.decisions import deciding
from tilewright.records.record import NONE, Record
from tilewright.records.store import Store
from tilewright.targets.target import Target


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """This user's store, with three records."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEWRIGHT_RECORDS", raising=False)
    monkeypatch.setattr("tilewright.records.places.SHIPPED", tmp_path / "shipped")
    store = Store(tmp_path / "cache" / "records")
    for r in (record(8), record(9), record(8, target=HASWELL)):
        store.put(r)
    return store


def test_list_and_show(cli: Cli, user: Store) -> None:
    code, text, _ = cli("db", "list")
    assert code == 0 and "matmul(f32[8, 32], f32[32, 64])" in text and "+4.0 %" in text and "3 records" in text
    result = json.loads(cli("db", "list", "--json", "--all", "--kind", "algorithm")[1])
    assert {r["record"] for r in result} == {n for t in user.classes() for n in user.digests(t)}
    assert cli("db", "list", "--kind", "plan")[1].startswith("no records")
    code, text, _ = cli("db", "show", record(9).digest[:10], "--workload")
    assert code == 0 and "1.040 times, 1.020 to 1.060 with 90%" in text and "graph @" in text and LABELS[1] in text
    assert len(json.loads(cli("db", "show", product(8).name, "--json")[1])) == 1
    assert cli("db", "show", "nothing")[0] == 1


def test_share(cli: Cli, user: Store, tmp_path: Path) -> None:
    archive, team = tmp_path / "team.twr", tmp_path / "team"
    assert "3 records" in cli("db", "export", archive)[1]
    assert json.loads(cli("db", "export", tmp_path / "h.twr", "--machines", "haswell", "--json")[1])["records"] == 1
    assert "3 new" in cli("db", "import", archive, "--store", team)[1]
    assert json.loads(cli("db", "merge", archive, user.folder, "--store", team, "--json")[1])["known"] == 6
    assert cli("db", "diff", user.folder, team)[0] == 0
    Store(team).put(record(9, setting=LABELS[1], provenance=replace(PROVENANCE, time=PROVENANCE.time + 1)))
    code, text, _ = cli("db", "diff", user.folder, team)
    assert code == 3 and "0 records only in" in text and "they disagree about" in text
    assert len(json.loads(cli("db", "diff", user.folder, team, "--json")[1])["changed"]) == 1
    assert cli("db", "diff", user.folder, tmp_path / "none")[0] == 1
    assert cli("db", "import", "http://example.org/a")[0] == 1


def test_stats_verify_prune(cli: Cli, user: Store) -> None:
    assert "1.040 times in the geometric mean" in cli("db", "stats")[1]
    assert json.loads(cli("db", "stats", "--json")[1])["records"] == 3
    code, text, _ = cli("db", "verify")
    assert code == 0 and "3 unknown" in text
    assert cli("db", "verify", "nothing")[0] == 1
    user.put(replace(record(8), workload="graph"))
    assert cli("db", "verify", "--json")[0] == 3
    assert cli("db", "prune", "--dry-run")[1].count("replaces") == 1
    assert json.loads(cli("db", "prune", "--other-compilers", "--json")[1])["removed"] == 1  # without asking no more
    assert "nothing to prune" in cli("db", "prune")[1]
    assert json.loads(cli("db", "prune", "--other-compilers", "--yes", "--json")[1])["removed"] == 3


def test_verify_races(cli: Cli, user: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is decided as soon as it is raced: who presses Ctrl-C keeps the others' verdicts."""
    from tilewright.tuning import rerace

    said = iter([rerace.Reraced("dropped", "not verified"), rerace.Reraced("skipped", "about other machines")])
    monkeypatch.setattr(rerace, "rerace", lambda _record: next(said))
    assert "2 unknown" not in (text := cli("db", "verify", record(8).digest, record(9).digest, "--race")[1])
    assert "1 dropped" in text and "1 skipped" in text and sum(1 for _ in user.records()) == 2

    def stopped(_record: Record) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rerace, "rerace", stopped)
    code, text, _ = cli("db", "verify", "--race", "--json")
    assert code == 130 and json.loads(text) == [] and sum(1 for _ in user.records()) == 2


def test_a_compile_says_what_records_did(cli: Cli, user: Store, layer: Path, tmp_path: Path) -> None:
    # any machine: the record is of whatever the machine decides first
    with deciding() as listed:
        tw.compile(layer)
    d = next(d for d in listed.decisions if len(d.space) > 1)
    created = replace(PROVENANCE, compiler=code_version())
    common = {"untuned": d.space.labels[0], "policy": POLICY, "candidates": (), "provenance": created, "gain": NONE}
    team = Store(tmp_path / "team")
    team.put(Record.of(d.key, Target.host(), d.space, setting=d.space.labels[0], **common))
    code, text, _ = cli("compile", layer, "--records", team.folder, "-o", tmp_path / "a.tw")
    assert code == 0 and "1 used" in text
    assert f"{d.key.name}: {d.space.labels[0]}, used" in cli("show", tmp_path / "a.tw", "--records")[1]
    assert (
        json.loads(cli("compile", layer, "--json", "--records", "none", "-o", tmp_path / "b.tw")[1])["records"]
        == "none"
    )
    code, _, text = cli("compile", layer, "--require-records", "-o", tmp_path / "c.tw")
    assert code == 1 and "tilewright tune" in text
