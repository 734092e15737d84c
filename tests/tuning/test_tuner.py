"""The tuner on a small model, with times that the test makes up: what is found, kept, resumed and reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.identity import code_version
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.plans.framework.decisions import Scheduled, deciding, forcing
from tilewright.records.record import NONE, Record
from tilewright.records.store import Store
from tilewright.support.errors import Error
from tilewright.targets.target import Target
from tilewright.tuning import entry
from tilewright.tuning.journal import Journal
from tilewright.tuning.programs import Built, Maker, changed, fed
from tilewright.tuning.recording import Memory, Seeds
from tilewright.tuning.result import Progress, Tuned
from tilewright.tuning.search import Policy
from tilewright.tuning.significance import Gain
from tilewright.tuning.sites import MIN_SHARE, Part, Site, clash, codes, runs, sites, split, together, window
from tilewright.tuning.tuner import FINAL_RACES, LEVELS, MAX_RACES, Tuner
from tilewright.tuning.workers import Timed

V3 = Target.parse("x86-64-v3")
SHORT = Policy(most=4, first=2)

Slowness = Callable[[str], float]


def model(rows: int = 24) -> tuple[Graph, dict[str, np.ndarray]]:
    """Two products with a function between them."""
    b = GraphBuilder("two")
    x, w, u = b.input("x", tensor(rows, 48)), b.param("w", tensor(48, 64)), b.param("u", tensor(64, 40))
    y = ops.emit1(b, "matmul", ops.emit1(b, "relu", ops.emit1(b, "matmul", x, w)), u)
    values = {"w": np.ones((48, 64), np.float32), "u": np.ones((64, 40), np.float32)}
    return b.finish((y,)), values


@dataclass
class Invented:
    """Races whose times are made up: a candidate's steps that differ from the first one's take as long as the settings
    say, the others 1 µs."""

    slowness: Slowness = lambda _label: 1.0
    broken: Callable[[str], str | None] = lambda _label: None
    model_gain: float | None = None
    own_error: float = 0.0
    asked: list[dict[str, str]] = field(default_factory=list)
    verified: list[dict[str, str]] = field(default_factory=list)

    def steps(self, candidates: Sequence[Built], rounds: int) -> list[Timed]:
        first = candidates[0]
        results = []
        for built in candidates:
            new = {k: v for k, v in built.forced.items() if first.forced.get(k) != v}
            self.asked += [new] if new else []
            wrong = next((w for label in new.values() if (w := self.broken(label))), None)
            if wrong:
                results.append(Timed(wrong, why=f"made up: {wrong}"))  # type: ignore[arg-type]
                continue
            _, mine = changed(first.kernels, built.kernels)
            factor = min((self.slowness(label) for label in new.values()), default=1.0)
            times = tuple(1e-6 * (factor if k in mine else 1.0) for k in range(len(built.kernels)))
            results.append(Timed("timed", (times,) * rounds))
        return results

    def verify(self, incumbent: Built, challenger: Built) -> tuple[tuple[tuple[float, ...], ...], Timed]:
        new = {k: v for k, v in challenger.forced.items() if incumbent.forced.get(k) != v}
        self.verified.append(new)
        if self.model_gain is None:
            ratio = 1 / float(np.mean([self.slowness(label) for label in new.values()]))
        else:
            ratio = self.model_gain
        return ((ratio,) * 11,) * 5, Timed("timed")


def run(
    races: Invented, folder: Path, *, seconds: float = float("inf"), journal: Journal | None = None
) -> tuple[Tuned, list[Progress]]:
    folder.mkdir(exist_ok=True)
    maker = Maker(model(), folder, threads=1, target=V3)
    said: list[Progress] = []
    tuner = Tuner(maker, races, journal or Journal(None), policy=SHORT, seconds=seconds, announce=said.append)
    return tuner.run(maker.listed({})), said


def chain(widths: Sequence[int]) -> tuple[Graph, dict[str, np.ndarray]]:
    """Products with a function between each two, all of other sizes."""
    b = GraphBuilder("chain")
    y, values = b.input("x", tensor(24, widths[0])), {}
    for k, (old, new) in enumerate(pairwise(widths)):
        values[f"w{k}"] = np.ones((old, new), np.float32)
        y = ops.emit1(b, "relu", ops.emit1(b, "matmul", y, b.param(f"w{k}", tensor(old, new))))
    return b.finish((y,)), values


def preferred() -> set[str]:
    """The labels that the estimates take."""
    with deciding() as record:
        tw.compile_program(model(), target=V3)
    return {d.selected.label for d in record.decisions}


def test_what_is_faster_is_accepted_and_compiles(tmp_path: Path) -> None:
    untuned = preferred()
    tuned, said = run(Invented(lambda label: 1.0 if label in untuned else 0.8), tmp_path)
    assert tuned.settings and tuned.gain.verified and not tuned.interrupted
    accepted = [row for row in tuned.rows if row.accepted]
    assert {row.name: row.tuned for row in accepted} == tuned.settings
    assert all(row.gain.median == pytest.approx(1.25) and row.tuned != row.untuned for row in accepted)
    assert {p.level for p in said} == {"algorithms and layouts", "kernels", "the whole model"}
    with forcing(tuned.settings):
        forced = tw.compile_program(model(), target=V3)
    assert forced.manifest.run_steps != tw.compile_program(model(), target=V3).manifest.run_steps


@dataclass
class Wavering(Invented):
    """Races that differ from loading to loading, as where memory lies makes them: by 2 % up or down in turns."""

    def steps(self, candidates: Sequence[Built], rounds: int) -> list[Timed]:
        result = super().steps(candidates, rounds)
        factor = 0.98 if len(self.asked) % 2 else 1.02
        return [
            result[0],
            *(replace(t, rounds=tuple(tuple(x * factor for x in r) for r in t.rounds)) for t in result[1:]),
        ]


def test_only_what_is_undecided_is_raced_further(tmp_path: Path) -> None:
    """A clear gain takes the least number of final races, one that wavers about the least gain more of them."""
    untuned = preferred()
    clear, unclear = Invented(lambda x: 1.0 if x in untuned else 0.8), Wavering(lambda x: 1.0 if x in untuned else 0.99)
    folders = [tmp_path / "a", tmp_path / "b"]
    (_, fewer), (_, several) = (run(r, f) for r, f in zip((clear, unclear), folders, strict=True))

    def finals(said: list[Progress]) -> int:
        return max(int(p.next.split()[2]) for p in said if p.next.startswith("finals"))

    assert finals(fewer) == FINAL_RACES < finals(several) <= MAX_RACES


def test_of_winners_that_are_tied_the_estimates_choose(tmp_path: Path) -> None:
    """Runs take the same setting whichever of two was a little faster."""
    untuned = preferred()
    accepted = []
    for k, factor in enumerate((0.999, 1.001)):

        def slowness(label: str, factor: float = factor) -> float:
            return 1.0 if label in untuned else 0.8 * (factor if sum(map(ord, label)) % 2 else 1.0)

        tuned, _ = run(Wavering(slowness), tmp_path / str(k))
        accepted.append(tuned.settings)
    assert accepted[0] == accepted[1] and accepted[0]


def test_close_to_ties_go_to_the_incumbent(tmp_path: Path) -> None:
    untuned = preferred()
    races = Invented(lambda label: 1.0 if label in untuned else 0.995)
    tuned, _ = run(races, tmp_path)
    assert tuned.settings == {} and races.verified == [] and tuned.timed > 0
    assert all(row.tuned == row.untuned and not row.accepted for row in tuned.rows)


def test_winners_of_kernels_that_do_not_win_in_the_model_are_left(tmp_path: Path) -> None:
    untuned = preferred()
    races = Invented(lambda label: 1.0 if label in untuned else 0.8, model_gain=1.005)
    tuned, _ = run(races, tmp_path)
    assert tuned.settings == {} and races.verified and tuned.gain == Gain(1.0, 1.0, 1.0)
    assert any(row.tuned != row.untuned and row.gain.verified for row in tuned.rows)


@pytest.mark.daily(2)
@pytest.mark.parametrize("outcome", ["crashed", "timeout", "memory", "wrong"])
def test_candidates_that_fail_are_noted_and_the_others_located(tmp_path: Path, outcome: str) -> None:
    untuned = preferred()
    bad = lambda label: outcome if "rows=1," in label or "width=8" in label else None  # noqa: E731
    tuned, _ = run(Invented(lambda label: 1.0 if label in untuned else 0.9, bad), tmp_path)
    assert sum(row.outcomes.get(outcome, 0) for row in tuned.rows) > 0
    assert f"made up: {outcome}" in tuned.causes
    assert tuned.settings and not any(bad(label) for label in tuned.settings.values())


def test_a_stopped_run_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    untuned = preferred()
    slowness: Slowness = lambda label: 1.0 if label in untuned else 0.8  # noqa: E731
    whole = Invented(slowness)
    wanted, _ = run(whole, tmp_path / "whole")
    path = tmp_path / "j.jsonl"
    seen: set[str] = set()
    for stop_after in (0, 1, 2, 3, 100):
        races = Stopping(slowness, stop_after=stop_after)
        tuned, _ = run(races, tmp_path / "parts", journal=Journal(path))
        first = {json.dumps(a, sort_keys=True) for a in races.asked[:1]}
        assert not (first & seen) or not tuned.interrupted
        seen |= {json.dumps(a, sort_keys=True) for a in races.asked}
    assert not tuned.interrupted and dict(tuned.settings) == dict(wanted.settings)
    second = Invented(slowness)
    repeated, _ = run(second, tmp_path / "again", journal=Journal(path))
    assert second.asked == [] and repeated.timed == 0 and dict(repeated.settings) == dict(wanted.settings)
    assert [row.share for row in repeated.rows] == pytest.approx([row.share for row in wanted.rows]), "steps are known"


@dataclass
class Stopping(Invented):
    """Races that the user stops."""

    stop_after: int = 0
    races: int = 0

    def steps(self, candidates: Sequence[Built], rounds: int) -> list[Timed]:
        self.races += 1
        if self.races > self.stop_after:
            raise KeyboardInterrupt
        return super().steps(candidates, rounds)


@pytest.mark.parametrize(("second", "accepted"), [(1.0, False), (1.2, True)])
def test_a_disturbed_race_is_run_once_more(tmp_path: Path, second: float, accepted: bool) -> None:
    """A gain of loadings that differ widely is no gain unless it shows again."""
    untuned = preferred()

    @dataclass
    class Disturbed(Invented):
        def verify(self, incumbent: Built, challenger: Built) -> tuple[tuple[tuple[float, ...], ...], Timed]:
            super().verify(incumbent, challenger)
            first = len(self.verified) % 2 == 1
            ratios = (1.02, 1.05, 1.1, 1.5, 1.6) if first else (second,) * 5
            return tuple((r,) * 11 for r in ratios), Timed("timed")

    tuned, _ = run(Disturbed(lambda label: 1.0 if label in untuned else 0.8), tmp_path)
    assert bool(tuned.settings) == accepted


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("gains", "races", "accepted"),
    [
        ((1.02,), 1, True),
        ((1.008, 1.008), 2, True),
        ((1.008, 0.99), 2, False),
        ((0.99,), 1, False),
        ((1.0,), 1, False),
    ],
)
def test_a_small_gain_of_the_model_is_believed_when_it_is_there_twice(
    tmp_path: Path, gains: tuple[float, ...], races: int, accepted: bool
) -> None:
    """Each race of the first trial shows the next gain, the last one over and over; its loadings differ by 1.2 %."""
    untuned = preferred()

    @dataclass
    class Small(Invented):
        def verify(self, incumbent: Built, challenger: Built) -> tuple[tuple[tuple[float, ...], ...], Timed]:
            super().verify(incumbent, challenger)
            gain = gains[min(len([n for n in self.verified if n == self.verified[0]]), len(gains)) - 1]
            return tuple((gain + k * 0.003,) * 11 for k in (-2, -1, 0, 1, 2)), Timed("timed")

    created_up = Small(lambda label: 1.0 if label in untuned else 0.8)
    tuned, _ = run(created_up, tmp_path)
    assert created_up.verified.count(created_up.verified[0]) == races
    assert bool(tuned.settings) == accepted


def test_finals_are_left_out_where_they_cannot_matter(tmp_path: Path) -> None:
    """Searches that promise the model less than can be verified are not raced again, nor is it."""
    untuned = preferred()
    slow, several = (
        Invented(lambda x: 1.0 if x in untuned else 0.996),
        Invented(lambda x: 1.0 if x in untuned else 0.98),
    )
    (tuned, said), (_, more) = (run(r, tmp_path / str(k)) for k, r in enumerate((slow, several)))
    assert tuned.timed > 0 and not slow.verified
    assert not any(p.next.startswith("finals") for p in said) and any(p.next.startswith("finals") for p in more)


@dataclass
class Together(Invented):
    """Races in which programs of several new settings crash where one certain setting is among them."""

    culprit: str = ""

    def steps(self, candidates: Sequence[Built], rounds: int) -> list[Timed]:
        result = super().steps(candidates, rounds)
        return [
            Timed("crashed", why="made up") if self.culprit in built.forced.values() else timed
            for built, timed in zip(candidates, result, strict=True)
        ]


def test_who_makes_a_program_of_several_settings_crash_is_located(tmp_path: Path) -> None:
    untuned = preferred()
    _, said = run(Invented(), tmp_path / "all")
    culprit = next(p.next for p in said if p.level == LEVELS[0] and p.next not in untuned)
    tuned, _ = run(Together(lambda x: 1.0 if x in untuned else 0.8, culprit=culprit), tmp_path / "one")
    outcomes: dict[str, int] = {}
    for row in tuned.rows:
        for outcome, count in row.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    assert outcomes["crashed"] <= 2 < outcomes["timed"] and tuned.settings


def test_interrupted_keeps_what_is_verified(tmp_path: Path) -> None:
    """The first level is done, the second is stopped."""
    untuned = preferred()

    @dataclass
    class StopsLater(Invented):
        def steps(self, candidates: Sequence[Built], rounds: int) -> list[Timed]:
            if self.verified:
                raise KeyboardInterrupt
            return super().steps(candidates, rounds)

    tuned, _ = run(StopsLater(lambda label: 1.0 if label in untuned else 0.8), tmp_path)
    assert tuned.interrupted and tuned.settings and tuned.gain.verified


def test_no_candidate_is_timed_when_time_is_up(tmp_path: Path) -> None:
    races = Invented(lambda _label: 0.8)
    tuned, _ = run(races, tmp_path, seconds=-1.0)
    assert races.asked == [] and tuned.settings == {}


def test_an_untuned_program_that_fails_is_the_cause(tmp_path: Path) -> None:
    @dataclass
    class AllFail(Invented):
        def steps(self, candidates: Sequence[Built], rounds: int) -> list[Timed]:
            return [Timed("crashed", why="its process ended by SIGILL")] * len(candidates)

    with pytest.raises(Error, match=r"nothing was measured: the untuned program is crashed: .* SIGILL"):
        run(AllFail(), tmp_path)


def test_one_call_tunes_and_the_next_one_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    untuned = preferred()

    class Evaluated(Invented):
        def compared_with(self, _exact: Built, _untuned: Built) -> Evaluated:
            return self

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        entry, "Processes", lambda *_, **_team: Evaluated(lambda label: 1.0 if label in untuned else 0.8)
    )
    first = entry.tune(model(), target="x86-64-v3", store=tmp_path / "records", policy=SHORT)
    records = {r.decision: r for r in Store(tmp_path / "records").records()}
    assert {name: r.setting for name, r in records.items() if r.setting != r.untuned} == first.settings
    assert records.keys() == {row.name for row in first.rows if row.outcomes}
    for record in records.values():
        assert record.key().name == record.decision and len(record.candidates) > 1
        assert all(c.turns for c in record.candidates if c.outcome == "timed")
    second = entry.tune(model(), target="x86-64-v3", store=tmp_path / "records", policy=SHORT)
    assert first.settings and not first.known and second.known and second.timed == 0
    assert second.settings == first.settings and second.rows == first.rows and second.gain == first.gain
    elsewhere = entry.tune(model(), target="x86-64-v3", store=tmp_path / "team", policy=SHORT)
    assert elsewhere.timed == 0 and {r.decision for r in Store(tmp_path / "team").records()} == records.keys()
    assert Tuned.from_dict(json.loads(json.dumps(first.to_dict()))) == first

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(entry, "Processes", lambda *_, **_team: Evaluated(broken=lambda _label: "crashed"))
    with pytest.raises(Error, match="nothing was measured: made up: crashed"):
        entry.tune(model(), target="x86-64-v3", store=tmp_path / "other", policy=SHORT)


def test_what_records_decide_is_verified_and_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are read as another model with the same layers would find them: its journal is another."""
    untuned = preferred()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    result: list[Evaluated] = []

    class Evaluated(Invented):
        def compared_with(self, _exact: Built, _untuned: Built) -> Evaluated:
            result.append(self)
            return self

    def tune(**options: Any) -> Tuned:
        monkeypatch.setattr(
            entry, "Processes", lambda *_, **_team: Evaluated(lambda label: 1.0 if label in untuned else 0.8)
        )
        return entry.tune(model(), target="x86-64-v3", store=tmp_path / "records", **options)

    first = tune(policy=SHORT)
    second = tune(policy=Policy(most=5, first=2))
    assert 0 < len(result[1].asked) < len(result[0].asked) / 2
    assert second.settings == first.settings and second.timed == len(first.settings)
    third = tune(policy=Policy(most=5, first=2), fresh=True)
    assert len(result[2].asked) > len(result[1].asked) and third.timed > 0


def test_records_of_similar_sizes_guide_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records propose what won there, and where the estimates' choice stood the estimates' choice here; far ones
    are only where a search begins."""
    untuned = preferred()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    machine = Target.on_host("x86-64-v3", "target")

    class Evaluated(Invented):
        def compared_with(self, _exact: Built, _untuned: Built) -> Evaluated:
            return self

    def slowness(label: str) -> float:
        return 1.0 if label in untuned else 0.8 if label.startswith("panels") else 1.1

    monkeypatch.setattr(entry, "Processes", lambda *_, **_team: Evaluated(slowness))
    result = entry.tune(model(), target="x86-64-v3", store=tmp_path / "records", policy=Policy(most=12))
    won = {label for name, label in result.settings.items() if name.startswith("panels")}
    assert won and result.rows

    def seeds(rows: int, kind: str, fresh: bool = False) -> list[Seeds]:
        folder = tmp_path / f"{rows} {kind} {fresh}"
        folder.mkdir()
        listed = Maker(model(rows), folder, threads=1, target=machine).listed({})
        memory = Memory(Store(tmp_path / "records"), machine, fresh=fresh)
        return [memory.seeds(s) for s in sites(listed, {}) if s.decision.key.kind == kind]

    first = seeds(32, "panels")
    assert len(first) == 2 and all(s.close and set(s.labels) <= won for s in first)
    second = seeds(24 * 64, "panels")
    assert second and all(s.labels and not s.close for s in second)
    assert seeds(32, "panels", fresh=True) == [Seeds(), Seeds()]
    store = Store(tmp_path / "records")
    for record in list(store.records()):  # the same, but that the estimates' choice stood
        store.remove(record.digest, record.target)
        store.put(replace(record, setting=record.untuned, gain=NONE, difference=None))
    listed = Maker(model(32), tmp_path, threads=1, target=machine).listed({})
    for site in sites(listed, {}):
        if site.decision.key.kind == "panels":
            assert Memory(store, machine).seeds(site) == Seeds((site.incumbent,), True)


def test_verify_races_what_other_compilers_recommend_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recommendation that stands becomes a record of this compiler; of the rest one says that the estimates' setting
    is better."""
    untuned = preferred()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    races: list[Invented] = []

    class Evaluated(Invented):
        def compared_with(self, _exact: Built, _untuned: Built) -> Evaluated:
            races.append(self)
            return self

    def tune(slowness: Slowness, folder: str, **options: Any) -> Tuned:
        monkeypatch.setattr(entry, "Processes", lambda *_, **_team: Evaluated(slowness))
        return entry.tune(model(), target="x86-64-v3", store=tmp_path / folder, policy=SHORT, **options)

    def old(folder: str) -> dict[str, Record]:
        """The records of a search before, as if by another compiler."""
        store = Store(tmp_path / folder)
        results = [r for r in Store(tmp_path / "found").records() if r.setting != r.untuned]
        for record in results:
            store.put(replace(record, provenance=replace(record.provenance, compiler="0" * 32)))
        return {r.decision: r for r in store.records()}

    def now(folder: str) -> dict[str, Record]:
        return {r.decision: r for r in Store(tmp_path / folder).records() if r.provenance.compiler == code_version()}

    first = tune(lambda label: 1.0 if label in untuned else 0.8, "found")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "later"))  # another journal
    before = old("stands")
    stands = tune(lambda label: 1.0 if label in untuned else 0.8, "stands", verify=True)
    assert stands.settings == first.settings == {name: r.setting for name, r in before.items()}
    assert {name for asked in races[-1].asked for name in asked} == before.keys() == now("stands").keys()
    assert all(r.setting == before[name].setting and r.gain.low > 1.0 for name, r in now("stands").items())
    asked = len(races[-1].asked)
    reloaded = tune(lambda _label: 1.0, "stands", verify=True)
    assert reloaded.rows == () and races[-1].asked == [] and asked > 0, "this compiler's records need no race"

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "latest"))
    old("falls")
    falls = tune(lambda label: 1.0 if label in untuned else 1.2, "falls", verify=True)
    # Kernels of the layouts that fell do not come up any more.
    layouts = {name for name in before if name.startswith("panels")}
    assert falls.settings == {} and set() != layouts <= now("falls").keys() < before.keys()
    assert all(r.setting == r.untuned == before[name].untuned for name, r in now("falls").items())
    machine = Target.on_host("x86-64-v3", "target")
    program = tw.compile_program(model(), target=machine, records=tmp_path / "falls")
    selected = {u.decision: u.setting for u in program.manifest.records if u.decision in now("falls")}
    assert selected == {name: before[name].untuned for name in now("falls")}
    searched = tune(lambda label: 1.0 if label in untuned else 0.8, "falls", fresh=False)
    assert searched.timed > 0, "that a record fell does not say that nothing is better"


def test_parts_of_programs() -> None:
    assert changed("abcd", "abcd") == (frozenset(), frozenset())
    assert changed("abcd", "axyd") == ({1, 2}, {1, 2})
    assert changed("abcd", "abxcd") == (frozenset(), {2})
    part = Part(frozenset({1}), frozenset({1, 2}))
    assert part.times([(1.0, 2.0, 4.0)], after=True) == [6.0] and part.times([(1.0, 2.0)], after=False) == [2.0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 6, 7, 20, 57, 200])
def test_codes_are_told_from_their_unions(count: int) -> None:
    result = codes(count)
    assert len(result) == count and not any(a <= b for a in result for b in result if a is not b)
    assert count < 7 or len(frozenset().union(*result)) < count, "fewer programs than things"


def layout_sites(*steps: set[int] | None) -> list[Site]:
    """Sites of layouts that change these steps."""
    with deciding() as record:
        tw.compile_program(chain(range(16, 16 * (len(steps) + 2), 16)), target=V3)
    layouts = [d for d in record.decisions if d.key.kind != "plan" and len(d.space) > 1]
    return [Site(d, None if k is None else frozenset(k)) for d, k in zip(layouts, steps, strict=False)]


def divided(
    result: Sequence[Site], before: Sequence[str], after: Sequence[str], exchanges: Iterable[tuple[int, int]] = ()
) -> list[Part | None]:
    return list(split(result, built_of(before, exchanges), built_of(after)).parts)


def built_of(kernels: Sequence[str], exchanges: Iterable[tuple[int, int]] = ()) -> Built:
    return Built({}, "", tuple(kernels), exchanges=frozenset(exchanges))


def test_what_several_layouts_change_is_distinguished() -> None:
    a, b = layout_sites({1}, {3, 4})
    assert divided([a, b], "abcdef", "axycDf") == [
        Part(frozenset({1}), frozenset({1, 2})),
        Part(frozenset({3, 4}), frozenset({4})),
    ]
    assert divided([a, b], "abcdef", "abcxdef") == [Part(frozenset(), frozenset()), Part(frozenset(), frozenset({3}))]
    assert divided([a, b], "abcdef", "abcdex") == [None, None], "nobody's step"
    assert divided([a, b], "abcdef", "axef") == [None, None], "one difference at the steps of both"
    second = replace(b, steps=frozenset({5}))
    assert divided([a, b, second], "abcdef", "axeF") == [None, None, Part(frozenset({5}), frozenset({3}))]
    assert split([a, b, second], built_of("abcdef"), built_of("axeF")).tangled == {(0, 1)}
    first = replace(b, steps=frozenset({2}))
    assert divided([a, first], "abcdef", "axydef") == [
        Part(frozenset({1}), frozenset({1})),
        Part(frozenset({2}), frozenset({2})),
    ], "as many steps: neighbours are told apart"
    assert divided([a, replace(b, steps=frozenset({1}))], "abcdef", "axcdef") == [None, None], "a step of both"


def test_what_changes_with_a_layout_is_its_own() -> None:
    """A step of no site is the one's whose changed steps it exchanges values with, not that of the next one."""
    a, b = layout_sites({1}, {4})
    mine, others = Part(frozenset({1, 3, 5}), frozenset({1, 3, 5})), Part(frozenset({4}), frozenset({4}))
    through = [(1, 3), (3, 5), (2, 4)]
    assert divided([a, b], "abcdef", "aBcDEF", through) == [mine, others]
    assert divided([a, b], "abcdef", "aBcDEF", [(1, 2), (2, 3), (3, 5)]) == [None, None], "a step between is the same"
    assert divided([a, b], "abcdef", "aBcdEF", [(1, 5), (4, 5)]) == [None, None], "it may be either's"
    assert split([a, b], built_of("abcdef", [(1, 5), (4, 5)]), built_of("aBcdEF")).tangled == {(0, 1)}
    assert divided([a, b], "abcdef", "aBcdeF", [(1, 5), (4, 5)]) == [
        Part(frozenset({1, 5}), frozenset({1, 5})),
        Part(frozenset(), frozenset()),
    ], "the other one has changed nothing"


def test_steps_exchange_what_they_write_and_read(tmp_path: Path) -> None:
    built = Maker(model(), tmp_path, threads=1, target=V3).listed({}).built
    assert built.exchanges == {(0, 1)}


def test_layers_that_repeat_are_compared_with_themselves() -> None:
    """Where kernels repeat, a matcher of texts finds some layer's kernels in another one."""
    assert changed("axbxcxbxd", "axBxcxbxd") == ({2}, {2})
    assert changed("pqrpqrpqr", "qqrpqrppr") == ({0, 7}, {0, 7})


def test_who_is_prefetched_for_has_another_time() -> None:
    """The host alone is other code; the reader finds its weights elsewhere, and is what the decision is about."""
    one = frozenset({(1, 3)})
    before, after = Built({}, "", tuple("abcdef")), Built({}, "", tuple("aBcdef"), one)
    assert fed(before, after) == fed(after, before) == {3} and fed(after, after) == frozenset()
    assert fed(before, Built({}, "", tuple("aBcde"), one)) == frozenset(), "steps that come or go move the others"
    (a,) = layout_sites(None)
    assert split([a], before, after).parts == (Part(frozenset({1, 3}), frozenset({1, 3})),)
    a, b = (replace(s, steps=frozenset(k)) for s, k in zip(layout_sites(None, None), ({0, 1, 2, 3}, {5}), strict=True))
    assert split([a, b], before, Built({}, "", tuple("aBcdeF"), one)).parts == (
        Part(frozenset({1, 3}), frozenset({1, 3})),
        Part(frozenset({5}), frozenset({5})),
    )
    assert window("ahead", frozenset({1}), frozenset({3})) == {0, 1, 2, 3}
    assert window("ahead", frozenset({9}), frozenset({11})) == {7, 8, 9, 10, 11}
    assert window("panels", frozenset({1}), frozenset({3})) == {1, 3}


def test_what_clashes_is_in_programs_of_its_own() -> None:
    a, b, c, d = layout_sites({1}, {1, 2}, {4, 5}, None)
    assert clash(a, b) and not clash(a, c) and clash(a, d)
    wanted = [(c, "C"), (b, "B"), (a, "A"), (d, "D"), (a, "E")]
    assert together(wanted) == [{d.name: "D"}, {b.name: "B", c.name: "C"}, {a.name: "A"}, {a.name: "E"}], "most first"
    learnt = {frozenset((b.name, c.name))}
    result = together(wanted, learnt)
    assert {b.name: "B"} in result and {d.name: "D"} in result and len(result) == 4


def test_steps_of_several_layouts_are_located_in_a_small_number_of_compiles(tmp_path: Path) -> None:
    """The steps that a compile of each site's other setting alone shows, in fewer compiles than there are sites."""
    widths = [48, 64, 40, 96, 80, 56, 72, 112, 88, 104, 120]

    class Counting(Maker):
        count = 0

        def built(self, forced: Mapping[str, str]) -> Built:
            self.count += 1
            return super().built(forced)

    maker = Counting(chain(widths), tmp_path, threads=1, target=V3)
    untuned = maker.listed({})
    tuner = Tuner(maker, Invented(), Journal(None), policy=SHORT)
    searches = [tuner._searched(s, 1.0) for s in sites(untuned, {}) if not s.is_kernel]
    assert len(searches) >= 8
    shares = [1 / len(untuned.built.kernels)] * len(untuned.built.kernels)
    tuner._find_steps(searches, untuned.built, shares)
    assert maker.count < len(searches)
    for s in searches:
        alone, _ = changed(untuned.built.kernels, maker.built({s.site.name: s.other}).kernels)
        assert s.site.steps is not None and alone <= s.site.steps
        assert s.share == pytest.approx(sum(shares[k] for k in s.site.steps))
        assert s.closed == (s.share < MIN_SHARE)
    assert sum(len(s.site.steps or ()) for s in searches) <= 2 * len(searches), "and little else"


def test_steps_of_sites(tmp_path: Path) -> None:
    listed = Maker(model(), tmp_path, threads=1, target=V3).listed({})
    result = sites(listed, {})
    kernels = [site for site in result if site.is_kernel]
    assert len(kernels) == 2 and sorted(k for s in kernels for k in s.steps or ()) == [0, 1]
    assert {s.decision.key.kind for s in result} == {"panels", "plan"}
    mine = listed.built.kernels
    assert divided(kernels, mine, mine) == [Part(s.steps or frozenset(), s.steps or frozenset()) for s in kernels]
    assert divided(kernels, mine, (*mine, "other")) == [None, None]
    assert divided([kernels[0], kernels[0]], mine, mine) == [None, None], "they share their steps"
    open_site = Site(next(s.decision for s in result if not s.is_kernel))
    assert divided([open_site], mine, ("other", mine[1])) == [Part(frozenset({0}), frozenset({0}))]
    assert divided([open_site, kernels[0]], mine, mine) == [None, None], "what the layout changes is not known"


def test_of_versions_for_sizes_one_runs() -> None:
    general, one = Scheduled("general"), Scheduled("one", (("n", 1),))
    assert runs([general, one], {"n": 1}) == one
    assert runs([general, one], {"n": 2}) == runs([general, one], {}) == general
    assert runs([], {}) is None
