"""Connections that break at any byte: what has arrived counts, what is published is whole."""

from __future__ import annotations

import random

import pytest

from tests.live.transport.lab import (
    ELEMENTS,
    FIRST,
    Proxy,
    count,
    fetch,
    seen,
    serving,
    source,
    until,
    whole,
    wide_weights,
)  # fmt: skip
from tilewright.live.transport.source import Update
from tilewright.live.transport.structure import Structure
from tilewright.live.transport.wire import CHUNK, LostError

NBYTES = 4 * ELEMENTS


def test_goes_on_where_it_stopped() -> None:
    """Each connection carries three chunks; without going on the ten would never arrive."""
    with serving() as (server, _):
        proxy = Proxy(server.port, cut=lambda: 3 * CHUNK + 20_000)
        node = source(proxy.port)
        update, lost = fetch(node, None, None, tries=10)
        assert seen(update) == 1
        assert 3 <= lost <= 5
        stats = node.stats()
        assert stats["resumed"] == lost
        assert stats["bytes_received"] < NBYTES + (lost + 1) * (CHUNK + 50_000)
        assert stats["updates"] == stats["programs"] == 1, "the program came once"
        node.close()
        proxy.close()


def test_a_network_that_falls_silent() -> None:
    """No message says that the connection is gone: the node gives it up in time, and goes on in the next one."""
    with serving() as (server, _):
        cuts = iter([5 * CHUNK, 100])
        proxy = Proxy(server.port, cut=lambda: next(cuts, None), freeze=True)
        node = source(proxy.port, timeout=0.4)
        for _ in range(2):
            with pytest.raises(LostError, match="silent or too slow"):
                node.newer(None, None, 0)
        update, _ = fetch(node, None, None)
        assert seen(update) == 1
        assert node.stats()["resumed"] >= 1
        node.close()
        proxy.close()


def test_a_newer_version_begins_anew() -> None:
    """The part that was fetched of version 1 is not mixed with version 2."""
    with serving() as (server, feed):
        cuts = iter([5 * CHUNK])
        proxy = Proxy(server.port, cut=lambda: next(cuts, None))
        node = source(proxy.port)
        with pytest.raises(LostError):
            node.newer(None, None, 5)
        feed.publish(wide_weights(2), 2)
        update, _ = fetch(node, None, None)
        assert (seen(update), update.version) == (2, 2)
        assert node.stats()["resumed"] == 0
        node.close()
        proxy.close()


def test_a_newer_program_begins_anew() -> None:
    with serving() as (server, feed):
        cuts = iter([5 * CHUNK])
        proxy = Proxy(server.port, cut=lambda: next(cuts, None))
        node = source(proxy.port)
        with pytest.raises(LostError):
            node.newer(None, None, 5)
        feed.replace(whole(2, ELEMENTS - 99), 2)
        update, _ = fetch(node, None, None)
        assert seen(update) == 2
        assert update.structure.params[-1].shape == (ELEMENTS - 99,)
        assert node.stats()["programs"] == 2
        node.close()
        proxy.close()


def test_cut_anywhere() -> None:
    """Each connection is cut after a random number of bytes, often inside the handshake or a frame's head."""
    rng = random.Random(FIRST)
    rounds = count(30, 0.1)

    def cut() -> int:
        return rng.choice([rng.randrange(600), rng.randrange(NBYTES), rng.randrange(3 * NBYTES)])

    with serving() as (server, feed):
        proxy = Proxy(server.port, cut=cut)
        node = source(proxy.port)
        update: Update | None = None
        structure: Structure | None = None
        for version in range(2, 2 + rounds):
            feed.publish(wide_weights(version), version)
            update, _ = fetch(node, update, structure)
            structure = update.structure
            assert (seen(update), update.version) == (version, version)
        stats = node.stats()
        assert stats["updates"] == rounds
        assert proxy.cuts > rounds / 2
        assert stats["resumed"] > rounds / 6
        node.close()
        proxy.close()
        until(lambda: server.stats()["connections"] == 0)
        assert server.stats()["hostile"] == 0


def test_published_while_it_breaks() -> None:
    """Versions keep coming while connections break: each that arrives is whole, and they only grow."""
    rng = random.Random(7)
    with serving() as (server, feed):
        proxy = Proxy(server.port, cut=lambda: rng.randrange(2 * NBYTES))
        node = source(proxy.port)
        update: Update | None = None
        arrived = []
        for version in range(2, 40):
            feed.publish(wide_weights(version), version)
            try:
                result = node.newer(update and update.mark, update and update.structure, 0)
            except LostError:
                continue
            if result is not None:
                update = result
                assert seen(result) == result.version
                arrived.append(result.version)
        assert arrived == sorted(set(arrived))
        assert len(arrived) > 10
        node.close()
        proxy.close()


def test_the_server_goes_and_comes_back() -> None:
    with serving() as (server, _):
        node = source(server.port)
        first, _ = fetch(node, None, None)
        port = server.port
    with pytest.raises(LostError):
        node.newer(first.mark, first.structure, 5)
    with pytest.raises(LostError, match="cannot connect"):
        node.newer(first.mark, first.structure, 5)
    with serving(value=3, port=port) as (server, _):
        update, _ = fetch(node, first, first.structure)
        assert seen(update) == 3
        assert node.stats()["programs"] == 1, "the structure is the one that the node has"
        node.close()
