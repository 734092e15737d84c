"""Hostile peers: the connection is closed, one line is logged, nothing is published, memory is bounded."""

from __future__ import annotations

import collections
import itertools
import logging
import random
import socket
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.live.transport.hostile import IMAGE, SMALL, STRUCTURE, hostile_node, hostile_server, offered
from tests.live.transport.lab import (
    FIRST,
    SECRET,
    Proxy,
    count,
    damage,
    fetch,
    impostor,
    seen,
    serving,
    source,
    until,
    wide_weights,
)  # fmt: skip
from tilewright.live.transport.messages import NO_STRUCTURE, WANT_BYTES, Mark, Offer, Want, What
from tilewright.live.transport.session import authenticate, join, secret_bytes
from tilewright.live.transport.wire import Channel, HostileError, Kind
from tilewright.support.errors import ArtifactError, Error, TransportError

LOG = "tilewright.transport"


def test_hostile_servers() -> None:
    """A node believes none of them, and has no more memory than one image and the bound on code."""
    outcomes: collections.Counter[str] = collections.Counter()
    seeds = itertools.count(FIRST)
    with impostor(lambda sock: hostile_server(sock, random.Random(next(seeds)))) as port:
        for case in range(cases := count(250)):
            if case == 0:
                tracemalloc.start()  # for some only: it makes all slow
            outcomes[ask(port, case)] += 1
            if case == min(cases, 40) - 1:
                assert tracemalloc.get_traced_memory()[1] < 12 << 20, "one image, one program, the impostor's frames"
                tracemalloc.stop()
    assert outcomes["HostileError"] > cases / 4, outcomes
    assert outcomes["ArtifactError"] > cases / 50, outcomes
    assert outcomes["LostError"] > cases / 50, outcomes


def ask(port: int, case: int) -> str:
    """Ask an impostor for weights; gives what came of it."""
    node = source(port, code_limit=1 << 20)
    try:
        update = node.newer(None, STRUCTURE if case % 3 == 0 else None, 0)
    except (TransportError, ArtifactError) as error:
        assert "\n" not in error.headline() and len(error.headline()) < 1000
        return type(error).__name__
    finally:
        node.close()
    if update is None:
        return "nothing"
    assert update.structure.id == STRUCTURE.id
    assert len(update.structure.weights(update.image, "test")) == 3
    return "update"


def test_hostile_nodes(caplog: pytest.LogCaptureFixture) -> None:
    """The server goes on for the others, with the weights that it had and no thread or connection left over."""
    with serving(elements=SMALL, timeout=5.0) as (server, feed), caplog.at_level(logging.WARNING, LOG):
        node = source(server.port)
        update = node.newer(None, None, 5)
        before = threading.active_count()
        node.close()
        cases = count(250)
        tracemalloc.start()
        try:
            for seed in range(FIRST, FIRST + cases):
                hostile_node(server.port, random.Random(seed))
                until(lambda: len(server._channels) < 8)
            until(lambda: server.stats()["accepted"] == cases + 1 and not server._channels)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
        until(lambda: threading.active_count() <= before)
        stats = server.stats()
        assert stats["hostile"] > cases / 4
        lines = [r.getMessage() for r in caplog.records]
        assert len(lines) == stats["hostile"] + stats["refused"], "one line each"
        assert all("127.0.0.1:" in line and "\n" not in line and len(line) < 600 for line in lines)
        assert not any(r.exc_info for r in caplog.records)
        assert feed.images() == 1
        node = source(server.port)
        update = node.newer(None, None, 5)
        assert update is not None and seen(update) == 1
        node.close()


def test_bytes_changed_on_the_way() -> None:
    """Someone between node and server who does not know the secret: nothing but the truth arrives."""
    rng = random.Random(FIRST)
    with serving(elements=SMALL) as (server, feed):
        proxy = Proxy(server.port, tamper=lambda data: damage(data, rng) if rng.random() < 0.15 else data)
        arrived = tried = 0
        node = source(proxy.port, timeout=0.3)
        # How many pieces a connection is cut into, and so how many are changed, is the machine's affair: as many tries
        # as it takes to have seen both.
        tries = count(30, 0.1)
        while tried < tries or arrived < 3 or server.stats()["hostile"] < 2:
            tried += 1
            assert tried < tries + 500, f"{arrived} updates arrived, {server.stats()['hostile']} were found out"
            feed.publish(wide_weights(tried + 1, SMALL), tried + 1)
            try:
                update = node.newer(None, None, 0)
            except Error:
                continue
            assert update is not None and seen(update) == tried + 1
            arrived += 1
        node.close()
        proxy.close()


@pytest.mark.parametrize("nbytes", [0, 1 << 31, (1 << 64) - 1])
@pytest.mark.parametrize("what", list(What))
def test_huge_sizes_cost_nothing(what: What, nbytes: int) -> None:
    def lie(sock: socket.socket) -> None:
        channel = Channel(sock, "node", 5.0)
        authenticate(channel, secret_bytes(SECRET), lambda name: None)
        channel.receive({Kind.WANT: WANT_BYTES})
        channel.send(Kind.OFFER, Offer(what, Mark(b"r" * 16, 1), 1, STRUCTURE.id, bytes(16), nbytes, 0, True).pack())
        channel.read(memoryview(bytearray(1)))

    for _ in range(2):  # the first time imports what it needs
        with impostor(lie) as port:
            node = source(port)
            tracemalloc.start()
            with pytest.raises(HostileError, match=r"size"):
                node.newer(None, STRUCTURE, 0)
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert most < 200_000


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_welcome_says_nothing_more(secret: str | None) -> None:
    def lie(sock: socket.socket) -> None:
        channel = Channel(sock, "node", 5.0)
        authenticate(SlyChannel(channel), secret and secret_bytes(secret), lambda name: None)  # type: ignore[arg-type]
        channel.read(memoryview(bytearray(1)))

    with impostor(lie) as port:
        with pytest.raises(HostileError, match="a frame is too long: expected WELCOME <= 0"):
            source(port, secret=secret).newer(None, STRUCTURE, 0)


class SlyChannel:
    """A channel whose empty frames have a byte."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> object:
        return getattr(self._channel, name)

    def send(self, kind: Kind, body: bytes = b"!") -> None:
        self._channel.send(kind, body)


def test_a_wrong_digest_is_never_published(
    store: Path, models: tuple[tw.Model, tw.Model], caplog: pytest.LogCaptureFixture
) -> None:
    """All frames are good, but the whole is not what the server says it is: the store stays as it is."""
    frames = offered(What.WEIGHTS, IMAGE.tobytes())
    frames[-1] = (Kind.END, bytes(32))

    def lie(sock: socket.socket) -> None:
        channel = Channel(sock, "node", 5.0)
        authenticate(channel, secret_bytes(SECRET), lambda name: None)
        channel.receive({Kind.WANT: WANT_BYTES})
        for kind, body in frames:
            channel.send(kind, body)  # type: ignore[arg-type]

    with impostor(lie) as port:
        with pytest.raises(HostileError, match="the digest of the whole is wrong"):
            source(port).newer(None, STRUCTURE, 0)
    with tw.serve_weights("policy", models[0], secret=SECRET) as server, caplog.at_level(logging.ERROR, LOG):
        port = server.port
        with tw.relay(server.address, secret=SECRET) as relay, tw.attach("policy", timeout=60) as actor:
            assert relay.wait(0, 60)
            before = actor(np.ones((1, 256), np.float32))
            server.close()
            with impostor(lie, port):
                until(lambda: relay.error is not None and "weights for a program" in str(relay.error))
            assert relay.version == 0 and (actor(np.ones((1, 256), np.float32)) == before).all()
        until(lambda: "weights for a program that was not sent" in caplog.text)


def test_nodes_that_read_slowly_are_left(caplog: pytest.LogCaptureFixture) -> None:
    """A node that asks and does not take: its connection ends, others are served all the while."""
    with serving(timeout=0.3) as (server, feed), caplog.at_level(logging.INFO, LOG):
        socks = []
        for _ in range(5):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", server.port))
            slow = source(server.port)
            slow._channel = Channel(sock, "slow", 0.3)
            join(slow._channel, secret_bytes(SECRET), "wide")
            none = (bytes(16), 0)
            slow._channel.send(Kind.WANT, Want(None, NO_STRUCTURE, 0.0, none, none).pack())
            socks.append(sock)
        node = source(server.port)
        for version in range(2, 12):
            feed.publish(wide_weights(version), version)
            update, _ = fetch(node, None, None)
            assert (seen(update), update.version) == (version, version)
        until(lambda: server.stats()["connections"] <= 1)
        assert "silent or too slow" in caplog.text
        assert feed.images() == 1
        node.close()
        for sock in socks:
            sock.close()
