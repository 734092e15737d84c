"""The versions that a learner offers: the newest, one copy for all who fetch it, few versions however slow they are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from tests.live.transport.lab import ELEMENTS, seen, serving, source, whole, wide_program, wide_weights
from tilewright.live.transport.blob import Blob, Partial, chunk_count
from tilewright.live.transport.feed import MAX_IMAGES, Feed, Snapshot
from tilewright.live.transport.messages import Mark
from tilewright.live.transport.wire import CHUNK, digest
from tilewright.support.errors import TransportError, WeightError


def always() -> bool:
    return True


def take(feed: Feed, after: Mark | None = None) -> Snapshot | None:
    with feed.newer(after, 0, always) as result:
        return result


def test_newest_only() -> None:
    feed = Feed("wide", wide_program())
    assert take(feed) is None
    for version in (1, 2, 7):
        feed.publish(wide_weights(version), version)
    result = take(feed)
    assert result is not None and result.version == 7
    assert take(feed, result.mark) is None
    assert feed.publish(wide_weights(8)) == 8
    assert take(feed, result.mark) is not None
    assert take(feed, Mark(b"another run 1234", 1000)) is not None, "another run has something else"


def test_what_does_not_fit_changes_nothing() -> None:
    feed = Feed("wide", wide_program())
    feed.publish(wide_weights(1), 5)
    bad = wide_weights(2)
    bad["large"][7] = np.nan
    for weights, version in ((bad, 6), ({"w": bad["w"]}, 6), (wide_weights(2), 5), (wide_weights(2, 5), 6)):
        with pytest.raises(WeightError):
            feed.publish(weights, version)
    result = take(feed)
    assert result is not None and result.version == 5 and (result.mark.number, feed.published) == (1, 1)
    assert feed.publish(bad, 6, finite=False) == 6
    assert feed.publish(wide_weights(3), 2, force=True) == 2
    result = take(feed)
    assert result is not None and result.version == 2 and result.mark.number == 3


def test_another_structure_that_does_not_fit_changes_nothing() -> None:
    feed = Feed("wide", wide_program())
    feed.publish(wide_weights(1), 1)
    with pytest.raises(WeightError):
        feed.replace(whole(1, 10, 11))
    assert feed.publish(wide_weights(2)) == 2
    assert feed.replace(whole(3, 10)) == 3
    result = take(feed)
    assert result is not None and result.structure.params[-1].shape == (10,)


def test_waiting_ends() -> None:
    feed = Feed("wide", wide_program())
    result: list[Snapshot | None] = []

    def wait() -> None:
        with feed.newer(None, 30, always) as snapshot:
            result.append(snapshot)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    feed.publish(wide_weights(1), 1)
    for thread in threads:
        thread.join(5)
    assert [s.version for s in result if s] == [1, 1, 1]
    assert len({id(s) for s in result}) == 1
    with feed.newer(result[0].mark if result[0] else None, 30, lambda: False) as nothing:
        assert nothing is None
    feed.close()
    with feed.newer(result[0].mark if result[0] else None, 30, always) as nothing:
        assert nothing is None
    with pytest.raises(TransportError, match="closed"):
        feed.publish(wide_weights(2), 2)


def test_slow_nodes_cost_a_bounded_amount_of_memory() -> None:
    """However many versions are being fetched; and a fetched one does not change under the fetcher's hands."""
    feed = Feed("wide", wide_program())
    with ExitStack() as stack:
        held = []
        for version in range(1, 3 * MAX_IMAGES):
            feed.publish(wide_weights(version), version)
            result = stack.enter_context(feed.newer(None, 0, always))
            assert result is not None
            held.append(result)
            assert feed.images() <= MAX_IMAGES + 1
        assert len(set(held)) == MAX_IMAGES
        assert held[-1].version == MAX_IMAGES, "the newest of those that are being fetched"
        for snapshot in held:
            weights = snapshot.structure.weights(snapshot.weights.data, "test")
            assert (weights["large"] == snapshot.version).all()
    result = take(feed)
    assert result is not None and result.version == 3 * MAX_IMAGES - 1
    assert feed.images() == 1


def test_memory_is_used_once_more() -> None:
    feed = Feed("wide", wide_program())
    places = set()
    for version in range(1, 10):
        feed.publish(wide_weights(version), version)
        result = take(feed)
        assert result is not None
        places.add(result.memory.ctypes.data)
    assert len(places) == 2


def test_one_copy_for_all_nodes() -> None:
    """Ten nodes at once: one image, digested once."""
    with serving() as (server, feed):
        nodes = [source(server.port) for _ in range(10)]
        result = []
        threads = [
            threading.Thread(target=lambda node=node: result.append(seen(node.newer(None, None, 10)))) for node in nodes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert result == [1.0] * 10
        assert feed.images() == 1
        assert server.stats()["connections"] == 10
        for node in nodes:
            node.close()


def test_chunks() -> None:
    with ThreadPoolExecutor(2) as workers:
        for nbytes in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK):
            data = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
            blob = Blob(data)
            blob.begin(workers)
            assert blob.chunks == chunk_count(nbytes)
            part = Partial(blob.id, nbytes)
            for k in range(part.chunks):
                assert part.done == k
                part.view(k)[:] = blob.chunk(k)
                part.add(digest(part.view(k)))
            assert part.done == part.chunks == blob.chunks
            assert part.root() == blob.root()
            assert part.memory.tobytes() == data.tobytes()
    assert chunk_count(ELEMENTS * 4) == 10
