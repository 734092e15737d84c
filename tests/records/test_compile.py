"""Compiling with records: what they say is done, or it is said why not; and what was compiled is found again."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.plans.framework.test_decisions import model
from tests.records.samples import POLICY, PROVENANCE
from tilewright import compiler
from tilewright.identity import code_version
from tilewright.plans.framework.decisions import Decision, deciding, forcing
from tilewright.records.record import NONE, Candidate, Gain, Record
from tilewright.records.store import Store
from tilewright.runtime.program import Program
from tilewright.support.errors import RecordError, RecordWarning
from tilewright.targets.target import Target

HOST = Target.host()
GRAPH = model((1, 16, 32, 16, 3, 1, 1))
"""A layer for which one other transform is estimated to be near the best, and others to be far."""
WEIGHTS = {"w": np.random.default_rng(0).standard_normal((32, 16, 3, 3), np.float32)}
NOW = replace(PROVENANCE, compiler=code_version())


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the kernels that tests have compiled: they are about decisions and programs."""
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(autouse=True)
def cache(objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEWRIGHT_RECORDS", raising=False)
    monkeypatch.setattr("tilewright.records.places.SHIPPED", tmp_path / "shipped")  # what there is on any machine
    link_kernels(objects, tmp_path / "cache")
    yield tmp_path / "cache"
    link_kernels(tmp_path / "cache", objects)


def link_kernels(source: Path, target: Path) -> None:
    """The kernels of one cache in another one, as links to the same files."""
    for file in source.glob("objects/*/kernel-*"):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            os.link(file, place)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each compile that is not found in the cache."""
    builds: list[str] = []
    choose = compiler.choose_algorithms
    monkeypatch.setattr(compiler, "choose_algorithms", lambda g, *rest: (builds.append(g.name), choose(g, *rest))[1])
    return builds


def compiled(**options: object) -> Program:
    return tw.compile_program((GRAPH, WEIGHTS), **options)  # type: ignore[arg-type]


def decisions(**options: object) -> dict[str, Decision]:
    """By kind, those with a choice."""
    with deciding() as listed:
        compiled(**options)
    return {d.key.kind: d for d in listed.decisions if len(d.space) > 1}


def about(d: Decision, setting: str, **changes: object) -> Record:
    """A record that says so, measured against the estimate's choice by this compiler."""
    untuned = d.space.labels[0]
    gain = NONE if setting == untuned else Gain(1.05, 1.03, 1.07, 55)
    candidates = tuple(Candidate(label, "timed", 0.0, (1e-5,)) for label in {setting: 0, untuned: 0})
    values = {
        "setting": setting,
        "untuned": untuned,
        "policy": POLICY,
        "candidates": candidates,
        "gain": gain,
        "provenance": NOW,
    }
    return Record.of(d.key, HOST, d.space, **{**values, **changes})


def other(d: Decision) -> str:
    """A setting that the estimates do not prefer, of another kind if there is one."""
    return next((s for s in d.space if s.kind != d.selected.kind), d.space.settings[-1]).label


def test_a_record_decides(cache: Path, passes: list[str]) -> None:
    algorithm = decisions()["algorithm"]
    untuned = compiled()
    Store(cache / "records").put(about(algorithm, other(algorithm)))
    tuned = compiled()
    (use,) = tuned.manifest.records
    assert (use.decision, use.setting, use.state, use.why) == (algorithm.key.name, other(algorithm), "used", "")
    assert tuned.objects != untuned.objects
    with forcing({use.decision: use.setting}):
        assert compiled(records=None).objects == tuned.objects
    assert compiled(records=None).objects == untuned.objects
    x = np.random.default_rng(1).standard_normal((1, 16, 16, 16), np.float32)
    want, got = tw.Model(untuned)(x), tw.Model(tuned)(x)
    assert np.abs(got - want).max() <= 2.5e-5 * np.abs(want).max()  # the bound of a layer (docs/accuracy.md)
    created = decisions()["algorithm"]
    assert (created.why, created.selected.label) == ("record", other(algorithm))


def test_a_record_about_a_kernel_decides(cache: Path) -> None:
    plan = decisions()["plan"]
    Store(cache / "records").put(about(plan, plan.space.labels[-1]))
    for _ in range(2):  # with its kernels in the cache, and all in it
        (use,) = compiled().manifest.records
        assert (use.decision, use.setting, use.state) == (plan.key.name, plan.space.labels[-1], "used")
    tuned, untuned = compiled().objects, compiled(records=None).objects
    with forcing({use.decision: use.setting}):
        assert compiled(records=None).objects == tuned != untuned


def test_a_tuned_compile_is_warm(cache: Path, passes: list[str]) -> None:
    """Found again with the same records, not with others; what does not concern the model changes nothing."""
    algorithm = decisions()["algorithm"]
    store = Store(cache / "records")
    first = about(algorithm, other(algorithm))
    store.put(first)
    folder = store.class_folder(first.target)

    def builds(**options: object) -> int:
        before = len(passes)
        compiled(**options)
        return len(passes) - before

    assert (builds(), builds()) == (1, 0)
    os.utime(folder, (time.time() - 10,) * 2)  # old enough: nothing is asked any more
    assert (builds(), builds()) == (0, 0)
    store.put(replace(first, decision="plan " + "0" * 32))
    assert builds() == 0
    assert builds(records=None) == 0  # it was compiled to look for decisions
    newer = about(algorithm, algorithm.selected.label, provenance=replace(NOW, time=NOW.time + 1))
    store.put(newer)
    assert (builds(), builds()) == (1, 0)
    store.remove(newer.digest, newer.target)
    assert builds() == 0  # as it was before


def test_texts_are_those_of_the_records(cache: Path) -> None:
    algorithm = decisions()["algorithm"]
    Store(cache / "records").put(about(algorithm, other(algorithm)))
    fresh, warm = compiled(), compiled()
    schedules = [text() if callable(text) else text for text in (p.texts["schedule"] for p in (fresh, warm))]
    assert schedules[0] == schedules[1]
    text = compiled(records=None).texts["schedule"]
    assert schedules[0] != (text() if callable(text) else text)


def _set_by(change: Callable[[Record], Record], cache: Path) -> Program:
    algorithm = decisions()["algorithm"]
    Store(cache / "records").put(change(about(algorithm, other(algorithm))))
    return compiled()


def test_a_label_that_is_gone_is_unusable(cache: Path) -> None:
    (use,) = _set_by(lambda r: replace(r, setting="winograd tile=99"), cache).manifest.records
    assert (use.state, use.why) == ("unusable", "not among the settings here")


def test_another_compilers_record_must_stand_by_the_estimates(cache: Path) -> None:
    algorithm = decisions()["algorithm"]
    best = min(algorithm.estimates)
    estimates = dict(zip(algorithm.space.labels, algorithm.estimates, strict=True))
    inner = next(label for label, e in estimates.items() if label != algorithm.selected.label and e <= 1.15 * best)
    outer = next(label for label, e in estimates.items() if e > 1.15 * best)
    store = Store(cache / "records")
    old = about(algorithm, outer, provenance=PROVENANCE)
    store.put(old)
    (use,) = compiled().manifest.records
    assert (use.state, use.why) == ("unusable", "estimated to take over 1.15 times the best")
    store.put(about(algorithm, inner, provenance=replace(PROVENANCE, time=PROVENANCE.time + 1)))
    (use,) = compiled().manifest.records
    assert (use.setting, use.state, use.why) == (inner, "unverified", "measured with another compiler")
    store.put(about(algorithm, outer, provenance=replace(NOW, time=0)))  # this compiler's goes first, however old
    (use,) = compiled().manifest.records
    assert (use.setting, use.state) == (outer, "used")


def test_a_record_must_have_met_the_estimate_of_here(cache: Path) -> None:
    """On a machine of the class with other ceilings the estimates may prefer what was never measured."""
    algorithm = decisions()["algorithm"]
    outer = algorithm.space.labels[-1]
    lone = (Candidate(outer, "timed", 0.0, (1e-5,)),)
    Store(cache / "records").put(about(algorithm, outer, untuned=algorithm.space.labels[1], candidates=lone))
    (use,) = compiled().manifest.records
    assert use.state in ("unverified", "unusable") and use.why != "measured with another compiler"


def test_records_for_the_same_settings_go_first(cache: Path) -> None:
    """A caller that allows less has a smaller space under the same key; its record is not for others, nor theirs for
    it."""
    free, exact = decisions()["algorithm"], decisions(fast="f2")["algorithm"]
    assert free.key == exact.key and len(exact.space) < len(free.space)
    store = Store(cache / "records")
    store.put(about(free, free.selected.label))
    store.put(about(exact, exact.space.labels[-1], provenance=replace(NOW, time=NOW.time + 1)))
    assert [u.setting for u in compiled().manifest.records] == [free.selected.label]
    assert [u.setting for u in compiled(fast="f2").manifest.records] == [exact.space.labels[-1]]


def test_nearer_stores_go_first(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = decisions()["algorithm"]
    labels = algorithm.space.labels
    user, team, own = Store(cache / "records"), Store(tmp_path / "team"), Store(tmp_path / "own")
    team.put(about(algorithm, labels[2], provenance=replace(NOW, time=NOW.time + 9)))
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(team.folder))
    assert [u.setting for u in compiled().manifest.records] == [labels[2]]
    user.put(about(algorithm, labels[1]))
    assert [u.setting for u in compiled().manifest.records] == [labels[1]]
    own.put(about(algorithm, labels[3]))
    for records in (own.folder, str(own.folder), own, [own, user]):
        assert [u.setting for u in compiled(records=records).manifest.records] == [labels[3]]
    monkeypatch.setenv("TILEWRIGHT_RECORDS", "none")
    assert compiled().manifest.records == ()
    with pytest.raises(RecordError, match="no such folder of tuning records"):
        compiled(records=tmp_path / "nowhere")


def test_same_records_same_bytes(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = decisions()
    records = [about(d, d.space.labels[-1]) for d in result.values()]
    files = []
    for name, order in (("a", records), ("b", records[::-1])):
        monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / name))
        for record in order:
            Store(tmp_path / name / "records").put(record)
        compiled().save(tmp_path / f"{name}.tw")
        files.append((tmp_path / f"{name}.tw").read_bytes())
    assert files[0] == files[1]
    program = tw.load(tmp_path / "a.tw")
    assert {u.decision for u in program.manifest.records} <= {r.decision for r in records}


def test_what_is_forced_is_not_asked(cache: Path) -> None:
    algorithm = decisions()["algorithm"]
    Store(cache / "records").put(about(algorithm, other(algorithm)))
    with forcing({algorithm.key.name: algorithm.selected.label}):
        assert compiled().manifest.records == ()


def test_records_can_be_required(cache: Path) -> None:
    result = decisions()
    with pytest.raises(RecordError, match=r"decisions without records about .*tilewright tune") as error:
        compiled(require_records=True)
    assert any(result["algorithm"].key.name in str(p.where) for p in error.value.problems)
    while True:  # what is decided otherwise leads to other decisions
        with deciding() as listed:
            compiled()
        missing = [d for d in listed.decisions if len(d.space) > 1 and d.why == "estimate"]
        if not missing:
            break
        for d in missing:
            Store(cache / "records").put(about(d, d.selected.label))
    assert compiled(require_records=True).objects == compiled(records=None).objects


def test_without_records_of_the_class_no_key_is_created(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile that finds no records costs nothing more."""
    Store(cache / "records").put(
        replace(about(decisions()["plan"], decisions()["plan"].selected.label), target="x y 1x1 threads=1")
    )
    monkeypatch.setattr("tilewright.plans.framework.decision_key.digest", lambda *_: pytest.fail("a key was made"))
    assert compiled(name="new").manifest.records == ()


def test_damage_is_a_miss(cache: Path) -> None:
    algorithm = decisions()["algorithm"]
    store = Store(cache / "records")
    record = about(algorithm, other(algorithm))
    path = store.path(store.put(record), record.target)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(RecordWarning, match="left out"):
        assert compiled().manifest.records == ()
    store.put(record)  # mended by who has it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(compiled().manifest.records) == 1
