"""Records about algorithms and packings, raced as models of their operators alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

import tilewright as tw
from tests.plans.framework.test_decisions import model
from tests.records.samples import POLICY, PROVENANCE
from tests.tuning.test_tuner import model as products
from tilewright.identity import code_version
from tilewright.ir.graph import Graph
from tilewright.plans.framework.decision_key import Key
from tilewright.plans.framework.decisions import Decision, deciding
from tilewright.records.record import Gain, Record
from tilewright.records.store import Store
from tilewright.support.errors import Error
from tilewright.targets.target import Target
from tilewright.tuning import layer_race, significance
from tilewright.tuning.layer_race import Raced, algorithms, copies_of, model_of, race_layer
from tilewright.tuning.rerace import IN_THE_MODEL, LAYER, apply_result, rerace
from tilewright.tuning.sites import Part
from tilewright.tuning.workers import Timed

HOST = Target.host()


def decisions(kind: str) -> list[Decision]:
    """The decisions of a convolution, or of two products, with a choice."""
    graph = model((1, 16, 32, 14, 3, 1, 1)) if kind == "algorithm" else products()[0]
    weights = {p.name: np.ones([int(str(n)) for n in p.shape], np.float32) for p in graph.params}
    with deciding() as listed:
        tw.compile_program((graph, weights), records=None)
    return [d for d in listed.decisions if d.key.kind == kind and len(d.space) > 1]


def old(kind: str, number: int = 1) -> tuple[Record, Decision]:
    """A record of another compiler that recommends another setting than the estimates."""
    d = decisions(kind)[0]
    values: dict[str, Any] = {
        "untuned": d.space.labels[0],
        "policy": POLICY,
        "candidates": (),
        "provenance": PROVENANCE,
    }
    gain = Gain(1.04, 1.02, 1.06, 55)
    return Record.of(d.key, HOST, d.space, setting=d.space.labels[number], gain=gain, **values), d


def told(*gains: significance.Gain) -> Any:
    """Races whose gains are made up, by regime."""

    def race(key: Key, setting: str, machine: Target, regimes: tuple[Literal["warm", "cold"], ...]) -> Raced:
        labels = tuple(old("algorithm")[1].space.labels)
        turns = {labels[0]: [1e-6] * 9, setting: [0.9e-6] * 9}
        return Raced(labels, dict(zip(regimes, gains, strict=True)), turns, (1e-7, 1e-7))

    return race


def test_what_wins_is_verified_what_loses_goes_and_the_rest_is_left_to_its_model(tmp_path: Any) -> None:
    record = replace(old("algorithm")[0], policy=replace(POLICY, regime="warm"))
    won = rerace(record, layer=told(significance.Gain(1.08, 1.05, 1.1)))
    assert won.state == "verified" and won.record is not None
    assert won.record.policy.name == LAYER and won.record.provenance.compiler == code_version()
    assert (won.record.setting, won.record.untuned) == (record.setting, record.untuned)
    assert rerace(won.record).state == "stands"
    lost = rerace(record, layer=told(significance.Gain(0.9, 0.88, 0.93)))
    assert lost.state == "dropped" and "not verified to be faster than" in lost.why
    tied = rerace(record, layer=told(significance.Gain(1.0, 0.98, 1.02)))
    assert tied.state == "skipped" and tied.why.endswith(IN_THE_MODEL)
    assert rerace(record, layer=lambda *_: "made up").why == f"made up; {IN_THE_MODEL}"
    store = Store(tmp_path)
    for candidate, retained in ((tied, [record]), (won, [won.record]), (lost, [won.record])):
        apply_result(store, store.put(record), record, candidate)
        assert list(store.records()) == retained


def test_one_regime_may_win_but_none_may_lose() -> None:
    record = replace(old("algorithm")[0], policy=replace(POLICY, regime="model"))
    both = significance.Gain(1.0, 0.97, 1.03), significance.Gain(1.06, 1.04, 1.08)
    assert rerace(record, layer=told(*both)).state == "verified"
    assert rerace(record, layer=told(both[1], significance.Gain(0.9, 0.88, 0.92))).state == "dropped"

    def fails(*_: Any) -> Raced:
        raise Error("made up")

    assert rerace(record, layer=fails).state == "skipped"


def test_other_machines_and_what_depends_on_lowering_are_left() -> None:
    record, d = old("algorithm")
    other = replace(record, target=record.target.replace(f"threads={record.threads}", "threads=63"))
    assert rerace(other, layer=told()).state in ("skipped", "dropped")
    assert (
        race_layer(replace(d.key, kind="ahead"), "none", HOST, ("warm",)) == "its operators come up in the model alone"
    )


@pytest.mark.parametrize("kind", ["algorithm", "panels"])
def test_a_model_of_the_operators_meets_the_decision_once_more(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the times made up: both programs are compiled, and the steps in which they differ are those that count."""
    # any machine: every decision of the model is tried, whichever they are

    class Invented:
        own_error = 0.0

        def steps(self, candidates: Any, rounds: int) -> list[Timed]:
            # The second takes less, however many steps there are.
            both = zip((1e-3, 1e-4), candidates, strict=True)
            times = [[s / len(built.kernels) for _ in built.kernels] for s, built in both]
            return [Timed("timed", (tuple(t),) * rounds) for t in times]

    monkeypatch.setattr(layer_race._Layer, "_races", lambda *_: Invented())
    selected: list[Part] = []
    real = layer_race._Layer._timed

    def timed(self: Any, labels: Any, both: Any, part: Part) -> Any:
        selected.append(part)
        return real(self, labels, both, part)

    monkeypatch.setattr(layer_race._Layer, "_timed", timed)
    for d in decisions(kind):
        result = race_layer(d.key, d.space.labels[-1], HOST, ("warm", "cold"))
        assert isinstance(result, Raced), result
        # Where a program has them several times, its weights are further away, and another setting may be preferred.
        assert sorted(result.labels) == sorted(d.space.labels) and set(result.gains) == {"warm", "cold"}
        assert all(g.median > 1.0 for g in result.gains.values())
        assert race_layer(d.key, d.space.labels[0], HOST, ("warm",)) == "it is what the estimates prefer now"
        assert race_layer(d.key, "direct rows=999", HOST, ("warm",)) == "not among the settings here"
    assert selected and all(part.before and part.after for part in selected)
    warm, uncached = selected[:2]
    assert len(uncached.after) >= len(warm.after), "the operators stand there several times"


def test_models_of_operators() -> None:
    (d,) = decisions("algorithm")
    assert isinstance(d.key.program, Graph)
    graph, weights = model_of(d.key.program, 3)
    assert len(graph.inputs) == len(graph.params) == len(graph.outputs) == 3
    assert weights.keys() == {p.name for p in graph.params}
    assert 1 <= copies_of(d.key.program, HOST) <= layer_race.MAX_COPIES
    assert algorithms(d.key.program, HOST) == {}
    values = tw.compile((graph, weights), records=None)(
        *[np.ones([int(str(n)) for n in v.shape], np.float32) for v in graph.inputs]
    )
    assert len(values) == 3 and all(np.isfinite(v).all() for v in values)


def test_real_processes_race_a_layer() -> None:
    record, _ = old("algorithm", -1)
    result = rerace(replace(record, policy=replace(POLICY, regime="warm")))
    assert result.gain is not None and result.state in ("verified", "dropped", "skipped"), result.why
