"""Measurements in production, what is collected over HTTP, and the service's own round."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

import tilewright as tw
from tests.farm import scene
from tests.farm.test_queue import address, server
from tests.farm.test_service import ALL, READ, Running, collected, in_channel, key, measured, state, tuned
from tilewright.farm import rollout
from tilewright.farm.canary import WARM_UP, Canary, Measurement, canary, parse_measurement, submit
from tilewright.farm.overview import status
from tilewright.farm.selftest import Limits, SelfTest, self_test
from tilewright.farm.service import Service, Settings
from tilewright.farm.state import State
from tilewright.records import collecting
from tilewright.records.signed import SigningKey
from tilewright.records.subscription import Channel
from tilewright.runtime.schema import encode

__all__ = ["address", "collected", "key", "server", "state"]  # fixtures
X = np.ones((5, 48), np.float32)


def model(result: float = 1.0, records: tuple[str, ...] = ()) -> Any:
    """A model that gives a number, and says that its program follows these records."""
    uses = [SimpleNamespace(record=r, state="used") for r in records]
    manifest = SimpleNamespace(records=uses, structure_key="5" * 32)

    def call(*inputs: Any, **named: Any) -> Any:
        call.calls += 1  # type: ignore[attr-defined]
        return np.full(3, result, np.float32)

    call.calls, call.manifest, call.threads = 0, manifest, 1  # type: ignore[attr-defined]
    return call


def paired(tried: Any, seconds: list[float], **options: Any) -> tuple[Canary, list[Measurement]]:
    """A canary whose clock says how long each call takes: the stable program's, then the tried one's."""
    sent: list[Measurement] = []
    now = [0.0]
    stable = model()
    turns: list[Any] = []

    def clock() -> float:
        if len(turns) % 2:  # the end of a call: the one that was called last
            which = 0 if stable.calls > len([t for t in turns if t == "stable"]) else 1
            now[0] += seconds[which]
            turns.append("stable" if which == 0 else "tried")
        else:
            turns.append("begin")
        return now[0]

    return Canary(stable, tried, share=1.0, pairs=10, send=sent.append, clock=clock, **options), sent


def test_pairs_of_calls_say_how_much_faster() -> None:
    paired_calls, sent = paired(model(records=("a" * 32,)), [2e-3, 1e-3], label="policy")
    for _ in range(WARM_UP + 10):
        np.testing.assert_array_equal(paired_calls(X), np.ones(3, np.float32))
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(1.0)
    (m,) = sent
    assert m == paired_calls.sent and parse_measurement(json.dumps(encode(m)).encode()) == m
    np.testing.assert_allclose(m.ratios, 2.0)
    assert (len(m.ratios), m.records, m.label, m.difference, m.target) == (
        10,
        ("a" * 32,),
        "policy",
        0,
        scene.machines(),
    )
    assert m.tail == pytest.approx(0.5)
    calls = paired_calls.tried.calls  # type: ignore[attr-defined]
    paired_calls(X)
    assert paired_calls.tried.calls == calls  # type: ignore[attr-defined]  # it has said what it has seen


def test_a_wrong_result_is_said_at_once() -> None:
    wrong, _ = paired(model(result=3.0, records=("a" * 32,)), [1e-3, 1e-3])
    assert wrong(X)[0] == 1.0  # the stable program answers
    assert wrong.sent is not None and wrong.sent.difference == pytest.approx(2.0)
    assert rollout.verdict_of([wrong.sent], rollout.Rules())[0] == "bad"


def test_without_new_records_nothing_is_measured() -> None:
    same, _ = paired(model(), [1e-3, 1e-3])
    for _ in range(50):
        same(X)
    assert same.tried.calls == 0 and same.measurement() is None  # type: ignore[attr-defined]


def test_a_canary_of_a_service(state: State, collected: Path, key: SigningKey) -> None:
    tuned(state, collected, key)
    rollout.enter_canary(state)
    with Running(state, key) as http:
        place = f"{http.url}#key={key.public}"
        tried = canary(scene.layer(), service=place, share=1.0, pairs=20, label="layer", token=ALL)
        assert tried.records and tried.records <= set(in_channel(state, "canary"))
        outputs = [tried(X) for _ in range(WARM_UP + 20)]
        np.testing.assert_allclose(outputs[-1], tw.compile(scene.layer(), records=None)(X), rtol=1e-5)
        assert tried.sent is not None
        submit(http.url, tried.sent, ALL)
        with pytest.raises(OSError, match="403"):
            submit(http.url, tried.sent, READ)
    (m,) = status(state)["measurements"]
    assert m["label"] == "layer" and m["difference"] < 1e-5 and m["records"] == len(tried.records)


def test_collected_over_http(state: State, key: SigningKey) -> None:
    with Running(state, key) as http:
        collector = tw.collect(http.url, label="the layer", token=ALL)
        assert collector is not None
        try:
            model = tw.compile(scene.layer(), records=None)
            for _ in range(3):
                model(X)
            collector.flush()
            model(X)
            collector.flush()
            collector.flush()
        finally:
            collecting.collect(None)
    with state.database.transaction() as t:
        assert t.rows("SELECT label, compiles, calls FROM workload") == [("the layer", 1, 4)]
        assert t.rows("SELECT COUNT(*) FROM site") == [(len(scene.decisions()),)]


def test_a_service_that_is_down_stops_no_compile(tmp_path: Path) -> None:
    collector = tw.collect("http://127.0.0.1:9")
    assert collector is not None
    try:
        tw.compile(scene.layer(), records=None)
        collector.flush()
    finally:
        collecting.collect(None)
    assert list((collector.place / "counts").iterdir())  # it waits there


def test_one_round_of_the_service(collected: Path, tmp_path: Path) -> None:
    said: list[str] = []
    settings = Settings(
        str(tmp_path / "s.sqlite"), tmp_path / "key", (collected,), workers=0, port=None, limits=Limits(9, 9, 9)
    )
    service = Service(settings, said.append)
    service.tick()
    assert "1 new workloads, 7 calls; 0 damaged files" in said[0]
    (collected / "workloads" / "x.json").write_text("{}")
    service.tick()
    assert "1 damaged files" in said[1]
    assert service.worker_command()[-4:] == ["--noise", "9", "--neighbours", "9"]


def test_a_channel_in_the_database(address: str, collected: Path, key: SigningKey) -> None:
    state = State(address)
    tuned(state, collected, key)
    rollout.enter_canary(state)
    for number in range(3):
        m = measured(1.03, tuple(in_channel(state, "canary")), number)
        rollout.take_measurement(state, json.dumps(encode(m)).encode())
    rollout.weigh(state)
    records = list(Channel(f"{address}#key={key.public}").prepare(scene.machines()).records())
    assert {r.digest for r in records} == set(in_channel(state, "stable")) and len(records) == len(scene.decisions())
    assert status(state)["cost"]["saved_a_day"] > 0


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (SelfTest(0.01, 0.1, 3.0), ""),
        (SelfTest(0.05, 0.1, 3.0), "noise 5.0%"),
        (SelfTest(0.01, 0.5, 3.0), "others take 50%"),
        (SelfTest(0.01, 0.1, 2.0), "2.00 GHz"),
    ],
)
def test_a_noisy_machine_is_refused(shown: SelfTest, why: str) -> None:
    assert shown.refused(Limits(), 3.0).startswith(why) and bool(shown.refused(Limits(), 3.0)) == bool(why)


def test_the_self_test_measures() -> None:
    result = self_test(rounds=5)
    assert result.noise >= 0.0 and 0.0 <= result.neighbours < 1.0 and 0.2 < result.ghz < 10.0
