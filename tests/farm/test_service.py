"""The whole way: collected, planned, tuned, confirmed, signed, in the canary, released, used by a compile."""

from __future__ import annotations

import gzip
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.farm import scene
from tilewright.farm import rollout
from tilewright.farm.canary import Measurement
from tilewright.farm.http import Http, Site, tokens_of
from tilewright.farm.importing import Imported, import_records
from tilewright.farm.intake import take_folder
from tilewright.farm.overview import history, status
from tilewright.farm.planner import Budget, plan
from tilewright.farm.queue import Queue
from tilewright.farm.results import mark_single, sign
from tilewright.farm.state import State
from tilewright.farm.worker import Worker
from tilewright.records import collecting
from tilewright.records.archive import HEADER
from tilewright.records.record import content_digest
from tilewright.records.signed import SigningKey
from tilewright.records.subscription import Channel
from tilewright.runtime.schema import encode
from tilewright.serve.protocol.routes import Asked, Reply

pytest.importorskip("cryptography")

READ, ALL = "a-token-that-reads", "a-token-that-may-all"


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(str(tmp_path / "farm.sqlite"))


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey(tmp_path / "farm.key")


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    """A folder into which a process has collected that compiled the layer twice and called it seven times."""
    collector = tw.collect(tmp_path / "collected", label="the layer")
    assert collector is not None
    try:
        for _ in range(2):
            model = tw.compile(scene.layer(), records=None)
        for _ in range(7):
            model(np.ones((5, 48), np.float32))
        collector.flush()
    finally:
        collecting.collect(None)
    return tmp_path / "collected"


def tuned(state: State, collected: Path, key: SigningKey, verdict: str = "confirmed") -> Queue:
    """A state whose jobs are done: searched on one host, confirmed on another."""
    queue = Queue(state)
    take_folder(state, collected)
    plan(state, queue, Budget(horizon_days=0))
    for host in ("first", "second", "first"):
        Worker(state, queue, host=host, limits=None, run=scene.tuner(verdict)).run(until_empty=True)
    sign(state, key)
    return queue


def measured(ratio: float, records: tuple[str, ...], number: int, **changes: Any) -> Measurement:
    """A measurement of a process in which the canary is `ratio` times as fast."""
    ratios = tuple(ratio * (1 + 0.001 * (k % 3 - 1)) for k in range(50))
    values = {"tail": 1.0, "difference": 0.0, "label": "the layer", "calls": 100}
    return Measurement(f"{number:032x}", "5" * 32, scene.machines(), records, ratios, **{**values, **changes})


def send(state: State, m: Measurement) -> bool:
    return rollout.take_measurement(state, json.dumps(encode(m)).encode())


def in_channel(state: State, channel: str) -> list[str]:
    with state.database.transaction() as t:
        return [str(d) for (d,) in t.rows("SELECT digest FROM channel WHERE channel = ? ORDER BY digest", (channel,))]


def test_the_whole_way(state: State, collected: Path, key: SigningKey, tmp_path: Path) -> None:
    queue = tuned(state, collected, key)
    assert queue.counts() == {"done": 2 * len(scene.decisions())}
    now = status(state)
    (model,) = now["models"]
    assert (model["label"], model["compiles"], model["calls"]) == ("the layer", 2, 7)
    assert now["records"] == {"confirmed": len(scene.decisions())} and now["cost"]["spent"] == 9.0 * len(
        scene.decisions()
    )

    assert rollout.enter_canary(state) == len(scene.decisions()) and rollout.enter_canary(state) == 0
    canary = in_channel(state, "canary")
    assert in_channel(state, "stable") == [] and rollout.weigh(state) == []
    for number in range(3):
        m = measured(1.03, tuple(canary), number)
        assert send(state, m) and not send(state, m)
    assert len(rollout.weigh(state)) == len(canary)
    assert in_channel(state, "stable") == canary and in_channel(state, "canary") == []
    assert [h["action"] for h in history(state)][:2] == ["released", "released"]

    with Running(state, key) as http:
        address = f"{http.url}#key={key.public}&channel=stable"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TILEWRIGHT_FARM_TOKEN", READ)
            program = tw.compile(scene.layer(), records=address).manifest
        used = {use.decision: use.state for use in program.records}
        assert used and set(used.values()) == {"used"}
        assert {use.record for use in program.records} <= set(canary)
    # The service is down now: the same records, from what was fetched.
    assert tw.compile(scene.layer(), records=address).manifest.records == program.records
    # The database itself is an address, too.
    direct = tw.compile(scene.layer(), records=f"{state.database.address}#key={key.public}")
    assert direct.manifest.records == program.records


def test_one_request_brings_the_records_of_all_decisions(state: State, collected: Path, key: SigningKey) -> None:
    tuned(state, collected, key)
    rollout.enter_canary(state)
    statuses: list[tuple[str, int]] = []

    class Counting(Site):
        def reply(self, asked: Asked) -> Reply:
            answer = super().reply(asked)
            statuses.append((asked.path.partition("?")[0], answer.status))
            return answer

    http = Http(Counting(state, tokens_of(), key.public)).start()
    channel = Channel(f"{http.url}#key={key.public}&channel=canary")
    try:
        program = tw.compile(scene.layer(), records=channel).manifest
        assert len(scene.decisions()) > 1 <= len(program.records) and statuses == [("/v1/channels/canary", 200)]
        tw.compile(scene.layer(), records=channel)
        tw.compile(scene.layer(), records=None)
        assert len(statuses) == 1  # it is not asked again within a minute
        channel.refresh()
        assert tw.compile(scene.layer(), records=channel).manifest.records == program.records
        assert statuses[1:] == [("/v1/channels/canary", 304)]  # what did not change is not sent again
    finally:
        http.close()


class Running(Http):
    def __init__(self, state: State, key: SigningKey) -> None:
        tokens = tokens_of({READ: ["read"], ALL: ["read", "submit", "release"]})
        super().__init__(Site(state, tokens, key.public))

    def __enter__(self) -> Running:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_a_service_that_is_down_from_the_start_is_one_warning(key: SigningKey) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            program = tw.compile(scene.layer(), records=f"http://127.0.0.1:9#key={key.public}").manifest
    assert program.records == () and sum("cannot fetch tuning records" in str(w.message) for w in said) == 1


def test_records_of_another_key_are_refused(state: State, collected: Path, key: SigningKey, tmp_path: Path) -> None:
    tuned(state, collected, key)
    rollout.enter_canary(state)
    other = SigningKey(tmp_path / "other.key")
    channel = Channel(f"{state.database.address}#key={other.public}&channel=canary")
    with pytest.warns(match="signature of a record is not that of the key"):
        assert list(channel.prepare(scene.machines()).records()) == []
    right = Channel(f"{state.database.address}#key={key.public}&channel=canary")
    assert len(list(right.prepare(scene.machines()).records())) == len(scene.decisions())


def test_a_withdrawn_record_is_no_longer_used(state: State, collected: Path, key: SigningKey) -> None:
    tuned(state, collected, key)
    rollout.enter_canary(state)
    address = f"{state.database.address}#key={key.public}&channel=canary"
    channel = Channel(address)
    digests = {r.digest for r in channel.prepare(scene.machines()).records()}
    gone = min(digests)
    assert rollout.roll_back(state, gone, "an operator", "slower in the arena") == 1
    channel.refresh()
    assert {r.digest for r in channel.prepare(scene.machines()).records()} == digests - {gone}
    assert history(state)[0] | {"time": 0} == {
        "time": 0, "who": "an operator", "channel": "canary", "action": "taken back", "record": gone,
        "why": "slower in the arena", "target": scene.machines(),
        "decision": next(r.decision for r in [scene.record_about(d) for d in scene.decisions()] if r.digest == gone),
    }  # fmt: skip
    rollout.enter_canary(state)
    assert gone not in in_channel(state, "canary")  # what was taken back does not come again


def test_a_bad_record_among_good_ones(state: State, collected: Path, key: SigningKey) -> None:
    tuned(state, collected, key)
    rollout.enter_canary(state)
    digests = in_channel(state, "canary")
    bad = digests[0]
    number = 0
    for _ in range(12):
        using = tuple(in_channel(state, "canary"))
        for _ in range(3):
            number += 1
            if using:
                send(state, measured(0.9 if bad in using else 1.02, using, number))
        rollout.weigh(state)
        rollout.enter_canary(state)
    assert in_channel(state, "stable") == digests[1:]
    with state.database.transaction() as t:
        assert t.rows("SELECT digest FROM record WHERE state = 'withdrawn'") == [(bad,)]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"difference": 0.5}, "bad"),
        ({"times": (1.0,) * 49 + (1.7,)}, "good"),
        ({}, "good"),
    ],
)
def test_verdicts(changes: dict[str, Any], verdict: str) -> None:
    several = [measured(1.02, ("a" * 32,), n, **changes) for n in range(6)]
    assert rollout.verdict_of(several, rollout.Rules())[0] == verdict
    assert rollout.verdict_of(several[:2], rollout.Rules())[0] == ("bad" if "difference" in changes else "")
    noise = [measured(0.999 + 0.002 * (n % 2), ("a" * 32,), n) for n in range(6)]
    assert rollout.verdict_of(noise, rollout.Rules())[0] == "good"
    assert rollout.verdict_of(noise[:4], rollout.Rules())[0] == ""


def test_what_a_second_host_refuses_is_not_signed(state: State, collected: Path, key: SigningKey) -> None:
    tuned(state, collected, key, verdict="refused")
    assert status(state)["records"] == {"refused": len(scene.decisions())}
    assert rollout.enter_canary(state) == 0


def test_without_a_second_host_it_is_marked(state: State, collected: Path, key: SigningKey) -> None:
    queue = Queue(state)
    take_folder(state, collected)
    plan(state, queue, Budget(horizon_days=0))
    Worker(state, queue, host="only", limits=None, run=scene.tuner()).run(until_empty=True)
    assert queue.counts() == {"done": len(scene.decisions()), "queued": len(scene.decisions())}
    assert mark_single(state, grace=600.0) == 0 and mark_single(state, grace=-1.0) == len(scene.decisions())
    sign(state, key)
    assert rollout.enter_canary(state) == len(scene.decisions())
    # A host that comes later confirms what is released already.
    Worker(state, queue, host="second", limits=None, run=scene.tuner()).run(until_empty=True)
    assert status(state)["records"] == {"confirmed": len(scene.decisions())}


def test_planning_twice_plans_nothing(state: State, collected: Path) -> None:
    queue = Queue(state)
    take_folder(state, collected)
    take_folder(state, collected)
    assert plan(state, queue, Budget(horizon_days=0)).jobs == len(scene.decisions())
    assert plan(state, queue, Budget(horizon_days=0)).jobs == 0
    with state.database.transaction() as t:
        assert t.rows("SELECT compiles, calls FROM workload") == [(2, 7)]


def test_little_that_is_saved_is_not_planned(state: State, collected: Path) -> None:
    take_folder(state, collected)
    done = plan(state, Queue(state), Budget(horizon_days=30))
    assert (done.jobs, done.why) == (0, "the others save less than they cost")
    assert plan(state, Queue(state), Budget(core_hours=0.0, horizon_days=0)).why == "the budget is used up"


def test_beyond_this_machine_only_with_a_token(state: State, key: SigningKey) -> None:
    with pytest.raises(tw.Error, match="refuses to listen beyond this machine without a token"):
        Http(Site(state, tokens_of(), key.public), "0.0.0.0")
    http = Http(Site(state, tokens_of({READ: ["read"]}), key.public), "0.0.0.0").start()
    http.close()


def test_roles(state: State, key: SigningKey) -> None:
    site = Site(state, tokens_of({READ: ["read"], ALL: ["read", "submit", "release"]}), key.public)

    def status_of(method: str, path: str, token: str = "", body: bytes = b"{}") -> int:
        from tilewright.serve.protocol.routes import Asked

        headers = {"authorization": f"Bearer {token}"} if token else {}
        return site.reply(Asked(method, path, headers, body, 0.0)).status

    assert status_of("GET", "/dashboard") == 200
    for path in ("/v1/status", "/v1/history", "/v1/key", "/v1/channels/stable?target=x"):
        assert [status_of("GET", path), status_of("GET", path, "no-such-token-here"), status_of("GET", path, READ)] == [
            401, 401, 200,
        ]  # fmt: skip
    for path in ("/v1/collected", "/v1/measurements", "/v1/rollout"):
        assert [status_of("POST", path), status_of("POST", path, READ), status_of("POST", path, ALL)] == [401, 403, 400]
    assert status_of("POST", "/v1/status", ALL) == 405 and status_of("GET", "/v1/nothing", ALL) == 404
    site.close()


def test_a_lookup_of_several_decisions(state: State, collected: Path, key: SigningKey) -> None:
    from tilewright.farm.overview import lookup

    tuned(state, collected, key)
    rollout.enter_canary(state)
    names = [d.key.name for d in scene.decisions()]
    assert len(lookup(state, "canary", scene.machines(), names)) == len(names)
    assert len(lookup(state, "canary", scene.machines(), [names[0], "plan " + "0" * 32])) == 1
    assert lookup(state, "stable", scene.machines(), names) == []


def test_an_import_signs_only_what_its_columns_say(state: State, key: SigningKey, tmp_path: Path) -> None:
    d = scene.decisions()[0]
    first, second, third = (scene.record_about(d, median=1.05 + k / 100).to_bytes() for k in range(3))
    hidden = first.replace(b'"extensions":[]', b'"extensions":[{"a":0,"decision":"plan 0"}]')
    assert hidden != first
    body = b"".join([first, second, third, hidden, first[:-9], b"[" * 5000 + b"\n", b'{"about":"x"}\n'])
    (tmp_path / "many.twr").write_bytes(gzip.compress(HEADER + body))
    assert import_records(state, tmp_path / "many.twr") == Imported(3, 0, 3)
    with state.database.transaction() as t:
        t.run("UPDATE record SET decision = 'plan 0' WHERE digest = ?", (content_digest(second),))
        t.run("UPDATE record SET content = ? WHERE digest = ?", (b'{"about":1' + third[9:], content_digest(third)))
        t.run("UPDATE record SET state = 'single-host'")
    assert sign(state, key) == 1
    with state.database.reading() as t:
        assert t.rows("SELECT digest FROM record WHERE signature <> ''") == [(content_digest(first),)]
        assert t.row("SELECT COUNT(*) FROM record WHERE state = 'refused'") == (2,)


def test_what_is_collected_holds_no_weights_and_no_names(collected: Path) -> None:
    (workload,) = (collected / "workloads").iterdir()
    said = json.loads(workload.read_bytes())
    assert set(said) == {"structure", "target", "compiler", "seconds", "sites", "version"}
    assert {s["decision"] for s in said["sites"]} == {d.key.name for d in scene.decisions()}
    assert "layer" not in workload.read_text() and workload.stat().st_size < 100_000
    assert all(0.0 <= s["share"] <= 1.0 and 0.0 <= s["headroom"] <= 0.25 for s in said["sites"])
    (counts,) = (collected / "counts").iterdir()
    (count,) = json.loads(counts.read_bytes())["counts"].values()
    assert count == {"compiles": 2, "calls": 7, "label": "the layer"}


def test_a_tuner_collects_nothing(tmp_path: Path) -> None:
    collector = tw.collect(tmp_path / "c")
    assert collector is not None
    try:
        from tilewright.plans.framework.decisions import forcing

        with forcing({scene.decisions()[0].key.name: scene.decisions()[0].space.labels[1]}):
            tw.compile(scene.layer(), records=None)
        collector.flush()
    finally:
        collecting.collect(None)
    assert not (tmp_path / "c").exists()


def test_collecting_changes_no_program(tmp_path: Path) -> None:
    before = tw.compile(scene.layer(), records=None)
    try:
        tw.collect(tmp_path / "c")
        after = tw.compile(scene.layer(), records=None)
    finally:
        collecting.collect(None)
    assert before.manifest == after.manifest
    assert replace(before.manifest) == after.manifest
