"""The outer levels of memory are measured in the background, once, where a machine's name tells nothing; and not
stored where others disturb."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.measure import calibration, outer
from tilewright.measure.outer import Outer
from tilewright.support import flags
from tilewright.support.machine import Machine, describe
from tilewright.targets import host
from tilewright.targets.x86 import V4_DOTS, processor

AMX = (*V4_DOTS, "avxvnni", "avx512fp16", "amx-tile", "amx-bf16", "amx-int8", "amx-fp16")
MASKED = replace(
    describe(), cpu="rocketlake", triple="x86_64-unknown-linux-gnu", features=tuple(sorted(AMX)), usable=2.0
)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer, "_begun", [])


def passes(*results: tuple[float, float]) -> Iterator[Outer]:
    return iter([Outer(*result) for result in results])


@pytest.mark.parametrize(
    ("results", "waited", "stored"),
    [
        ([(8.0, 4.1), (7.6, 4.0), (8.2, 3.9)], 0.0, (8.0, 4.0)),
        ([(8.0, 4.1), (3.0, 4.0), (8.2, 3.9)], 0.0, None),  # a pass beside others
        ([(8.0, 4.1), (8.0, 1.4), (8.2, 3.9)], 0.0, None),
        ([(8.0, 4.1), (7.6, 4.0), (8.2, 3.9)], 0.3, None),  # a core that others use
        ([(2.0, 4.1), (2.1, 4.0), (2.0, 3.9)], 0.0, None),  # a last level that others fill
    ],
)
def test_what_is_no_measure_is_none(
    results: list[tuple[float, float]], waited: float, stored: tuple[float, float] | None
) -> None:
    measurements = passes(*results)
    got = outer.measured(MASKED, lambda _: next(measurements), lambda _: waited)
    assert got == (None if stored is None else Outer(*stored))


def test_it_is_measured_once_and_later_processes_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flags.CACHE_DIR.name, str(tmp_path))
    monkeypatch.setattr(host, "describe", lambda: MASKED)
    before = host.native.__wrapped__()
    assert before.cpu == "graniterapids" and before.ceilings == processor("graniterapids", AMX).ceilings
    thread = outer.begin(MASKED, measure=lambda _: Outer(8.0, 4.0))
    assert thread is not None and outer.begin(MASKED) is None
    thread.join(10)
    assert outer.load(MASKED) == Outer(8.0, 4.0)
    monkeypatch.setattr(outer, "_begun", [])
    assert outer.begin(MASKED) is None  # another process, later
    after = host.native.__wrapped__()
    assert after.ceilings == replace(before.ceilings, l3_bandwidth=8.0, memory_bandwidth=4.0)
    doctor = calibration.Calibration(3.2, 2.0, 64.0, 32.0, 23.0, 6.7, 180.0, 8.0)
    calibration.store(doctor, MASKED)
    assert host.native.__wrapped__().ceilings.l3_bandwidth == 23.0  # what doctor measured comes first


def test_nothing_is_stored_of_a_busy_machine(tmp_path: Path) -> None:
    thread = outer.begin(MASKED, tmp_path, measure=lambda _: None)
    assert thread is not None
    thread.join(10)
    assert outer.load(MASKED, tmp_path) is None and not list(tmp_path.iterdir())


def test_one_core_is_the_compiler_s(tmp_path: Path) -> None:
    assert outer.begin(replace(MASKED, usable=1.0), tmp_path) is None


@pytest.mark.parametrize("damage", ["", "{}", '{"version": 1, "machine": "x"}', "[1]", '{"version": 2}'])
def test_damaged_files_are_none(damage: str, tmp_path: Path) -> None:
    outer.store(Outer(8.0, 4.0), MASKED, tmp_path)
    outer.path(MASKED, tmp_path).write_text(damage)
    assert outer.load(MASKED, tmp_path) is None
    outer.store(Outer(1.0, 4.0), MASKED, tmp_path)
    assert outer.load(MASKED, tmp_path) is None  # memory is no faster than the last level


@pytest.mark.parametrize(
    ("cpu", "features", "masked"),
    [
        ("rocketlake", AMX, True),
        ("x86-64", AMX, True),
        ("generic", V4_DOTS, True),
        ("graniterapids", AMX, False),
        ("znver4", V4_DOTS, False),
    ],
)
def test_which_machines_are_masked(cpu: str, features: tuple[str, ...], masked: bool) -> None:
    assert host.is_masked(replace(MASKED, cpu=cpu, features=features)) == masked


def test_compiles_begin_it_on_masked_machines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Machine] = []
    monkeypatch.setattr(outer, "begin", begun.append)
    monkeypatch.setattr(host, "describe", lambda: MASKED)
    host.measure_outer_levels()
    monkeypatch.setattr(host, "describe", lambda: replace(MASKED, cpu="graniterapids"))
    host.measure_outer_levels()
    assert begun == [MASKED]


@pytest.mark.slow
def test_this_machine_in_two_seconds() -> None:
    """Whatever it says, it says so in time."""
    import time

    start = time.monotonic()
    got = outer.measured(describe())
    assert time.monotonic() - start < 20 * outer.SECONDS  # others may use the core
    assert got is None or 0.1 < got.memory_bandwidth <= got.l3_bandwidth
