"""Stored ceilings: found again on the same machine, and nothing but None from any other file."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tilewright.measure import calibration
from tilewright.measure.calibration import Calibration
from tilewright.measure.peak import Ceilings
from tilewright.support import flags
from tilewright.support.machine import Machine, describe
from tilewright.targets.host import native
from tilewright.targets.target import Target

MEASURED = Ceilings(100.0, 200.0, 17.0, 2, 3.16, 1.97, 201.0, 100.0, 76.0, 21.0, 25.0)


@pytest.fixture
def machine() -> Machine:
    return describe()


def test_what_is_stored_is_located(machine: Machine, tmp_path: Path) -> None:
    stored = calibration.updated(MEASURED, 60e-9, None)
    assert stored == Calibration(3.2, 2.0, 64.0, 32.0, 23.0, 6.7, 180.0, 8.0)
    where = calibration.store(stored, machine, tmp_path / "new")
    assert where is not None
    assert calibration.load(machine, tmp_path / "new") == stored


def test_noise_changes_nothing_stored() -> None:
    before = calibration.updated(MEASURED, 60e-9, None)
    noisy = replace(MEASURED, l1_gbs=190.0, l3_gbs=80.0, memory_gbs=19.5, fma_per_cycle=2.04)
    assert calibration.updated(noisy, 65e-9, before) == before
    assert calibration.updated(replace(MEASURED, l1_gbs=400.0), 60e-9, before).l1_bandwidth > before.l1_bandwidth


def test_a_busy_machine_lowers_no_ceiling() -> None:
    before = calibration.updated(MEASURED, 60e-9, None)
    busy = replace(MEASURED, l1_gbs=90.0, l3_gbs=20.0, memory_gbs=6.0, fma_per_cycle=1.2)
    assert calibration.updated(busy, 5e-6, before) == before
    assert calibration.updated(MEASURED, 60e-9, calibration.updated(busy, 5e-6, None)) == before


def test_one_thread_has_the_default_barrier() -> None:
    assert calibration.updated(MEASURED, 0.0, None).barrier == Target("x", "y").barrier


def test_a_file_without_the_bandwidth_of_all_cores_is_read_and_filled_up(machine: Machine, tmp_path: Path) -> None:
    where = calibration.store(Calibration(**GOOD), machine, tmp_path)
    assert where is not None
    report = json.loads(where.read_text())
    del report["ceilings"]["memory_total"]
    where.write_text(json.dumps(report))
    earlier = calibration.load(machine, tmp_path)
    assert earlier == replace(Calibration(**GOOD), memory_total=0.0)
    assert calibration.updated(MEASURED, 60e-9, earlier) == Calibration(**GOOD)


GOOD = asdict(calibration.updated(MEASURED, 60e-9, None))


@pytest.mark.parametrize(
    "damage",
    [
        lambda report: b"",
        lambda report: json.dumps(report).encode()[:-9],
        lambda report: b"\xff\x00{}",
        lambda report: json.dumps([report]).encode(),
        lambda report: json.dumps(report | {"version": 99}).encode(),
        lambda report: json.dumps(report | {"machine": "another"}).encode(),
        lambda report: json.dumps(report | {"ceilings": None}).encode(),
        lambda report: json.dumps(report | {"ceilings": GOOD | {"frequency": "fast"}}).encode(),
        lambda report: json.dumps(report | {"ceilings": GOOD | {"l1_bandwidth": float("nan")}}).encode(),
        lambda report: json.dumps(report | {"ceilings": GOOD | {"fma_per_cycle": 0}}).encode(),
        lambda report: json.dumps(report | {"ceilings": {k: GOOD[k] for k in list(GOOD)[1:]}}).encode(),
    ],
)
def test_a_damaged_or_foreign_file_is_none(machine: Machine, tmp_path: Path, damage: object) -> None:
    where = calibration.store(Calibration(**GOOD), machine, tmp_path)
    assert where is not None and callable(damage)
    where.write_bytes(damage(json.loads(where.read_text())))
    assert calibration.load(machine, tmp_path) is None


def test_a_folder_that_cannot_be_used(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert calibration.store(Calibration(**GOOD), machine, tmp_path / "file") is None
    assert calibration.load(machine, tmp_path / "file") is None


def test_machines_have_files_of_their_own(machine: Machine, tmp_path: Path) -> None:
    assert calibration.path(machine, tmp_path) != calibration.path(replace(machine, cpu="another"), tmp_path)
    assert calibration.path(machine, tmp_path) == calibration.path(replace(machine, usable=1.0), tmp_path)


def test_the_host_takes_the_file_or_what_is_known(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flags.CACHE_DIR.name, str(tmp_path))
    unmeasured = native.__wrapped__()
    stored = replace(Calibration(**GOOD), l2_bandwidth=11.0)
    calibration.store(stored, machine)
    measured = native.__wrapped__()
    assert measured.l2_bandwidth == 11.0
    assert {name: getattr(measured.ceilings, name) for name in asdict(stored)} == asdict(stored)
    assert measured == replace(unmeasured, ceilings=replace(unmeasured.ceilings, **asdict(stored)))
    assert measured.fingerprint != unmeasured.fingerprint
