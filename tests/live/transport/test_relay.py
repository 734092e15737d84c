"""From a learner to the actors of a node: versions, new programs, going back, restarts, one relay of many."""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.live.store.lab import DEPTH, INITIAL, ONES, WIDTHS, is_whole, telling_weights, value
from tests.live.transport.lab import SECRET, Proxy, source, until
from tilewright.live.transport.relay import Relay, backoff
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program
from tilewright.runtime.specs import TargetSpec
from tilewright.support.errors import StoreError, TransportError, WeightError

LOG = "tilewright.transport"


def of(version: int) -> float:
    """The value of each output under a version."""
    return DEPTH * value(version)


def test_versions_reach_the_actors(store: Path, models: tuple[Model, Model]) -> None:
    with tw.serve_weights("policy", models[0], secret=SECRET) as server:
        with tw.relay(server.address, secret=SECRET) as relay, tw.attach("policy", timeout=60) as actor:
            outputs, version = actor.versioned(ONES)
            assert (outputs[0, 0], version) == (DEPTH * INITIAL, 0), "the model's own weights come first"
            for version in (3, 4, 10):
                assert server.publish(telling_weights(version), version) == version
                assert actor.wait(version, 60) and relay.wait(version, 60)
                outputs, result = actor.versioned(ONES)
                assert (outputs[0, 0], result) == (of(version), version)
            stats = relay.stats()
            assert (stats["version"], stats["published"], stats["updates"], stats["error"]) == (10, 4, 4, None)
            assert (stats["programs"], stats["structures"], stats["connections"]) == (1, 1, 1)
            sent = server.stats()["bytes_sent"]
            assert 4 * DEPTH * WIDTHS[0] * 4 < sent < 4.5 * DEPTH * WIDTHS[0] * 4, "weights travel once a version"


def test_weights_that_do_not_fit_go_nowhere(store: Path, models: tuple[Model, Model]) -> None:
    with tw.serve_weights("policy", models[0]) as server, tw.relay(server.address) as relay:
        assert relay.wait(0, 60)
        bad = telling_weights(1)
        bad["w"][0, 0] = np.inf
        for weights, version in ((bad, 1), (telling_weights(1, 7), 1), ({}, 1), (telling_weights(1), 0)):
            with pytest.raises(WeightError):
                server.publish(weights, version)
        assert server.publish(bad, 1, finite=False) == 1
        assert relay.wait(1, 60)
        assert relay.version == 1


def test_a_new_program_travels(store: Path, models: tuple[Model, Model]) -> None:
    """Actors move to it between calls; the code comes once to the node."""
    with tw.serve_weights("policy", models[0]) as server, tw.relay(server.address) as relay:
        with tw.attach("policy", timeout=60) as actor:
            assert actor(ONES).shape == (1, WIDTHS[0])
            assert server.replace(models[1], 7) == 7
            assert relay.wait(7, 60)
            outputs, version = actor.versioned(ONES)
            assert outputs.shape == (1, WIDTHS[1]) and version == 7 and (outputs == DEPTH * INITIAL).all()
            server.publish(telling_weights(8, WIDTHS[1]), 8)
            assert actor.wait(8, 60)
            assert (actor(ONES) == of(8)).all()
            assert relay.stats()["programs"] == relay.stats()["structures"] == 2


def test_going_back(store: Path, models: tuple[Model, Model], caplog: pytest.LogCaptureFixture) -> None:
    with tw.serve_weights("policy", models[0]) as server, tw.relay(server.address) as relay:
        server.publish(telling_weights(9), 9)
        assert relay.wait(9, 60)
        with caplog.at_level(logging.WARNING, LOG):
            server.publish(telling_weights(4), 4, force=True)
            until(lambda: relay.version == 4)
        assert "'policy' goes back from version 9 to 4" in caplog.text
        with tw.attach("policy") as actor:
            assert actor.version == 4 and (actor(ONES) == of(4)).all()


def test_learner_restarts_and_relay_restarts(store: Path, models: tuple[Model, Model]) -> None:
    with tw.serve_weights("policy", models[0]) as server:
        address, port = server.address, server.port
        relay = tw.relay(address)
        server.publish(telling_weights(5), 5)
        assert relay.wait(5, 60)
    with tw.attach("policy") as actor:
        assert (actor(ONES) == of(5)).all(), "actors go on without the learner"
        until(lambda: relay.error is not None)
        assert "cannot connect" in str(relay.error) or "closed" in str(relay.error)
        with tw.serve_weights("policy", models[0], port=port) as server:
            server.publish(telling_weights(6), 6)
            assert actor.wait(6, 60)
            until(lambda: relay.error is None)
            relay.close()
            assert (actor(ONES) == of(6)).all(), "and without the relay"
            with tw.relay(address) as repeated:
                server.publish(telling_weights(7), 7)
                assert actor.wait(7, 60)
                assert repeated.stats()["programs"] == 0, "the program was in the store"


def test_one_relay_works_and_the_others_stand_by(store: Path, models: tuple[Model, Model]) -> None:
    with tw.serve_weights("policy", models[0]) as server:
        first = tw.relay(server.address)
        assert first.wait(0, 60)
        others = [tw.relay(server.address) for _ in range(3)]
        server.publish(telling_weights(1), 1)
        assert first.wait(1, 60)
        assert [r.stats()["standby"] for r in others] == [True] * 3
        until(lambda: server.stats()["transfers"] >= 3)  # the server counts a transfer after its last byte
        assert server.stats()["transfers"] == 3, "the program and two versions, once for the node"
        first.close()
        server.publish(telling_weights(2), 2)
        until(lambda: any(r.version == 2 for r in others))
        assert sum(r.stats()["standby"] for r in others) == 2
        for relay in others:
            relay.close()


def test_a_store_with_another_publisher(store: Path, models: tuple[Model, Model]) -> None:
    """The other publisher is an error that is told, and tried again; nothing is fetched twice for it."""
    with tw.serve_weights("policy", models[0]) as server, tw.Publisher("policy", models[0]) as publisher:
        with tw.relay(server.address) as relay:
            until(lambda: isinstance(relay.error, StoreError))
            assert "another publisher has it" in str(relay.error)
            until(lambda: relay.stats()["errors"] > 2)
            assert relay.stats()["updates"] == 1
            publisher.close()
            assert relay.wait(0, 60)


def test_several_names_at_one_port(store: Path, models: tuple[Model, Model]) -> None:
    with tw.serve_weights("main", models[0], secret=SECRET) as main:
        with tw.serve_weights("exploiter", models[1], server=main.server) as exploiter:
            assert exploiter.port == main.port
            with pytest.raises(TransportError, match="is served already"):
                tw.serve_weights("main", models[0], server=main.server)
            with tw.relay(main.address, secret=SECRET) as a, tw.relay(exploiter.address, secret=SECRET) as b:
                main.publish(telling_weights(3), 3)
                exploiter.publish(telling_weights(4, WIDTHS[1]), 4)
                assert a.wait(3, 60) and b.wait(4, 60)
                with tw.attach("main") as one, tw.attach("exploiter") as two:
                    assert (one(ONES) == of(3)).all() and (two(ONES) == of(4)).all()
        assert main.stats()["version"] == 3


def test_a_learner_whose_node_has_actors(store: Path, models: tuple[Model, Model], tmp_path: Path) -> None:
    """A publisher in the model's place: `publish` serves the node and the network, under the store's versions."""
    with tw.Publisher("policy", models[0]) as publisher:
        publisher.publish(telling_weights(11), 11)
        with tw.serve_weights("policy", publisher) as server:
            with tw.relay(server.address, directory=tmp_path) as relay:
                assert server.publish(telling_weights(12)) == 12
                assert relay.wait(12, 60)
                for directory in (store, tmp_path):
                    with tw.attach("policy", directory=directory) as actor:
                        assert actor.version == 12 and (actor(ONES) == of(12)).all()


def test_actors_while_connections_break(store: Path, models: tuple[Model, Model]) -> None:
    """A relay after a connection that breaks again and again: every call of an actor uses one whole version."""
    rng = random.Random(4)
    nbytes = DEPTH * WIDTHS[0] * 4
    with tw.serve_weights("policy", models[0]) as server:
        proxy = Proxy(server.port, cut=lambda: rng.choice([rng.randrange(900), *[rng.randrange(4 * nbytes)] * 3]))
        torn: list[int] = []
        versions: list[int] = []
        stop = threading.Event()

        def act() -> None:
            with tw.attach("policy", timeout=60) as actor:
                while not stop.is_set():
                    outputs, version = actor.versioned(ONES)
                    versions.append(version)
                    if not is_whole(outputs, version):
                        torn.append(version)
                    time.sleep(0.002)

        with tw.relay(f"tcp://127.0.0.1:{proxy.port}/policy") as relay:
            thread = threading.Thread(target=act)
            thread.start()
            for version in range(1, 16):
                server.publish(telling_weights(version), version)
                relay.wait(version, 1.0)
            assert relay.wait(15, 120)
            stop.set()
            thread.join(60)
            assert not torn
            assert versions == sorted(versions)
            assert len(set(versions)) > 2
            assert proxy.cuts > 2
            stats = relay.stats()
            assert stats["connections"] > 2 and stats["programs"] >= 1
        proxy.close()


def test_relays_that_are_killed(store: Path, models: tuple[Model, Model]) -> None:
    """At any point of their work, again and again: an actor never sees a torn version, the next relay goes on."""
    rng = random.Random(11)
    code = "import sys, time, tilewright as tw; relay = tw.relay(sys.argv[1]); time.sleep(600)"
    published, torn, seen = 0, [], set()
    with tw.serve_weights("policy", models[0]) as server:
        for _ in range(3):
            with subprocess.Popen([sys.executable, "-c", code, server.address]) as process:
                with tw.attach("policy", timeout=60) as actor:
                    before = actor.version
                    until(lambda before=before, actor=actor: actor.version > before or before <= 0)
                    begun, start, seconds = len(seen), time.monotonic(), rng.uniform(0.05, 0.3)
                    # On a machine that stands still now and then, at least until something has arrived.
                    while (spent := time.monotonic() - start) < seconds or (len(seen) == begun and spent < 60):
                        published = server.publish(telling_weights(published + 1), published + 1)
                        outputs, version = actor.versioned(ONES)
                        seen.add(version)
                        if not is_whole(outputs, version):
                            torn.append(version)
                        time.sleep(0.001)
                    process.kill()
                    process.wait()
                    outputs, version = actor.versioned(ONES)
                    assert is_whole(outputs, version)
                    published = server.publish(telling_weights(published + 1), published + 1)
        with tw.relay(server.address) as relay:
            assert relay.wait(published, 60)
    assert not torn and len(seen) > 2


def test_a_program_for_another_machine(
    store: Path, models: tuple[Model, Model], caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the program and what is missing; the store stays; the next program that fits is taken."""
    program = models[0].program
    alien = TargetSpec(program.manifest.target.triple, "knl", ("avx512er", "avx512pf"))
    manifest = dataclasses.replace(program.manifest, target=alien)
    with tw.serve_weights("policy", models[1]) as server, caplog.at_level(logging.ERROR, LOG):
        with tw.relay(server.address) as relay:
            assert relay.wait(0, 60)
            server._feed.replace(Program(manifest, program.objects, telling_weights(1)), 1)
            until(lambda: relay.error is not None)
            text = str(relay.error)
            assert "program 'telling' from tcp://127.0.0.1" in text
            assert "this CPU lacks features: avx512er, avx512pf" in text and "code for knl" in text
            until(lambda: text.splitlines()[0] in caplog.text)
            until(lambda: relay.stats()["errors"] > 2)
            assert relay.stats()["bytes_received"] < 2 * DEPTH * WIDTHS[0] * 4, "it is not fetched again"
            with tw.attach("policy") as actor:
                assert actor.version == 0 and actor(ONES).shape == (1, WIDTHS[1])
            server.replace(models[0], 2)
            assert relay.wait(2, 60)


def test_code_only_from_whom_one_trusts(
    store: Path, models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without secret and TLS a program is taken from this machine, or when told to trust."""
    monkeypatch.setattr("tilewright.live.transport.client.is_loopback", lambda host: False)
    with tw.serve_weights("policy", models[0]) as server:
        with tw.relay(server.address) as relay:
            until(lambda: relay.error is not None)
            assert "code from a server that nothing authenticates" in str(relay.error)
            assert not (store / "policy" / "current").exists()
        with tw.relay(server.address, trust=True) as relay:
            assert relay.wait(0, 60)
        with tw.relay(server.address) as relay:
            server.publish(telling_weights(1), 1)
            assert relay.wait(1, 60), "weights for a program that the store has are taken"


def test_programs_have_a_bound(store: Path, models: tuple[Model, Model]) -> None:
    with tw.serve_weights("policy", models[0]) as server, tw.relay(server.address, code_limit=1000) as relay:
        until(lambda: relay.error is not None)
        assert "a program of this size is not taken: expected <= 1000" in str(relay.error)


def test_close_does_not_wait(store: Path, models: tuple[Model, Model]) -> None:
    with tw.serve_weights("policy", models[0]) as server:
        relay = tw.relay(server.address)
        assert relay.wait(0, 60)
        started = time.monotonic()
        relay.close()
        relay.close()
        assert time.monotonic() - started < 10
        assert not relay.wait(1, 0.01)
        tw.Publisher("policy", models[0]).close()  # the relay's publisher holds the store no more
    nowhere = tw.relay("tcp://127.0.0.1:1/policy")
    assert not nowhere.wait(0, 0.1)
    nowhere.close()


def test_fork(store: Path, models: tuple[Model, Model]) -> None:
    """A child keeps neither the port nor the connections of its parent, and cannot publish in its name."""
    with tw.serve_weights("policy", models[0]) as server, tw.relay(server.address) as relay:
        assert relay.wait(0, 60)
        port = server.port
        told, say = os.pipe()
        hold, release = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(release)
            try:
                server.publish(telling_weights(3), 3)
                os.write(say, b"published")
            except TransportError as error:
                os.write(say, str(error).encode())
            os.read(hold, 1)
            os._exit(0)
        try:
            assert b"closed" in os.read(told, 1000)
            server.publish(telling_weights(1), 1)
            assert relay.wait(1, 60), "the parent's relay goes on"
            server.close()
            until(lambda: relay.error is not None)
            with tw.serve_weights("policy", models[0], port=port) as repeated:
                repeated.publish(telling_weights(2), 2)
                assert relay.wait(2, 60)
        finally:
            for file in (told, say, hold, release):
                os.close(file)
            os.waitpid(child, 0)


def test_importing_it_is_light() -> None:
    code = (
        "import sys, tilewright as tw; tw.relay, tw.serve_weights;"
        "bad = [m for m in ('ray', 'torch', 'onnx', 'tilewright.codegen', 'tilewright.compiler') if m in sys.modules];"
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_backoff_grows_and_is_bounded() -> None:
    waits = [backoff(k, 2.0) for k in range(40)]
    assert all(0.03 < w < 2.6 for w in waits)
    assert waits[0] < 0.07 and min(waits[8:]) > 1.4


def test_what_goes_wrong_repeatedly_is_said_seldom(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first time, at each power of two after that, and as soon as it is something else; all of it is counted."""
    relay = Relay(source(1, "policy"), "policy")
    assert (relay.version, relay.stats()["error"]) == (-1, None)
    assert not relay.wait(timeout=0.0)
    first, second = TransportError("is down"), TransportError("is elsewhere")
    with caplog.at_level(logging.INFO, logger=LOG):
        for failures in range(9):
            relay._note(first, failures)
        assert len(caplog.records) == 5  # 0, 1, 2, 4, 8
        relay._note(second, 9)
        assert len(caplog.records) == 6
    assert (relay.stats()["errors"], relay.stats()["error"]) == (10, str(second))
