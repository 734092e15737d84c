"""`tilewright doctor`: what is measured on a busy machine is not what compiles estimate with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.cli.doctor import age_text
from tilewright.measure import calibration, peak
from tilewright.measure.peak import Ceilings, Measured, best_of, spread_of
from tilewright.support import bytecode
from tilewright.support.machine import describe
from tilewright.targets.host import native

from .conftest import Cli


def like_this() -> Ceilings:
    """The ceilings that a machine of this kind reaches."""
    known, hz = native().ceilings, 3.0
    rates = (known.l1_bandwidth, known.l2_bandwidth, known.l3_bandwidth, known.memory_bandwidth)
    l1, l2, l3, memory = (hz * rate for rate in rates)
    return Ceilings(100.0, 200.0, 10.0, 1, hz, known.fma_per_cycle, l1, l2, l3, memory, memory)


def stolen(c: Ceilings) -> Ceilings:
    """Others use the third level: a tenth is left of it."""
    return replace(c, l3_gbs=c.l3_gbs / 10)


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Measured], None]:
    """Let a machine without stored ceilings measure this."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))

    def give(measured: Measured) -> None:
        monkeypatch.setattr(peak, "measure_often", lambda _host: measured)

    return give


QUIET = Measured(like_this(), 0.05, 0.01)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (Measured(stolen(like_this()), 0.05, 0.01), "l3: "),
        (Measured(like_this(), 0.6, 0.01), "passes differ by 60%"),
        (Measured(like_this(), 0.05, 0.5), "did not run 50% of the time"),
    ],
)
def test_a_disturbed_measurement_is_not_stored(
    cli: Cli, measures: Callable[[Measured], None], measured: Measured, said: str
) -> None:
    measures(measured)
    code, text, error = cli("doctor")
    assert code == 0 and said in error and "disturbed" in error and "nothing is stored" in text
    assert calibration.load(describe()) is None
    report = json.loads(cli("doctor", "--json")[1])
    assert report["disturbed"] and report["calibration"] is None and report["calibration_age_seconds"] is None
    measures(QUIET)
    code, text, error = cli("doctor")
    assert "disturbed" not in error and "less than a minute ago" in text
    before = calibration.load(describe())
    assert before is not None
    measures(measured)  # and what is stored does not become worse
    cli("doctor")
    assert calibration.load(describe()) == before


def test_the_age_of_what_is_stored(cli: Cli, measures: Callable[[Measured], None]) -> None:
    measures(QUIET)
    cli("doctor")
    old = calibration.path(describe())
    os.utime(old, (old.stat().st_atime, old.stat().st_mtime - 3 * 86400))
    assert "3 days ago" in cli("doctor", "--no-measure")[1]
    assert json.loads(cli("doctor", "--no-measure", "--json")[1])["calibration_age_seconds"] >= 3 * 86400
    assert [age_text(t) for t in (3, 61, 7300, 90000)] == ["less than a minute", "1 minute", "2 hours", "1 day"]


def test_the_best_of_passes_and_by_what_distance_they_are_from_each_other() -> None:
    good, other = like_this(), stolen(like_this())
    other = replace(other, l1_gbs=2 * good.l1_gbs)
    best = best_of([good, other])
    assert (best.l1_gbs, best.l3_gbs) == (other.l1_gbs, good.l3_gbs)
    assert spread_of([good, other]) == pytest.approx(0.9)
    assert spread_of([good, good]) == 0.0
    assert not Measured(good, 0.1, 0.05).disturbed and Measured(good, 0.3, 0.0).disturbed


def test_levels_that_are_slower_than_the_next_are_doubted() -> None:
    good = like_this()
    assert calibration.doubts(good, {}) == []
    assert calibration.doubts(replace(good, l2_gbs=good.l3_gbs / 2), {}) == ["l2 is read more slowly than l3"]


def test_links_have_models_that_choose(cli: Cli) -> None:
    code, text, _ = cli("doctor", "--net", "--json")
    report = json.loads(text)
    assert code == 0
    assert set(report) == {"shared memory", "loopback TCP"}
    for link in report.values():
        assert 0 <= link["model"]["alpha"] < 1
        assert 0 < link["model"]["beta"] + link["model"]["gamma"] < 1e-6
        assert set(link["choices"]) == {"8", "64", "1024"}
        assert all(c["seconds"] > 0 and c["algorithm"] for row in link["choices"].values() for c in row.values())
    assert "us a message" in cli("doctor", "--net")[1]


@pytest.mark.parametrize("names", [(), ("tilewright", "tilewright.ir")])
def test_modules_without_bytecode(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(bytecode, "missing", lambda package: names if package == "tilewright" else None)
    code, text, _ = cli("doctor", "--no-measure")
    assert code == 0 and ("2 modules are compiled again" in text) == bool(names)
    folder = Path(bytecode.__file__).parents[1]
    assert (f"-m compileall -q {folder}" in " ".join(text.split())) == bool(names)
    assert json.loads(cli("doctor", "--no-measure", "--json")[1])["bytecode"]["missing"] == list(names)
