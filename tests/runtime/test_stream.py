"""Calls in other threads: futures, coroutines, streams with arenas of their own, forks."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from concurrent.futures import CancelledError

import numpy as np
import pytest

from tests.runtime.programs import affine, affine_reference, copy16
from tilewright.runtime.model import Model
from tilewright.support.collection import without_collection
from tilewright.support.errors import CallError


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(affine(lo=0, hi=5000))


def rows(n: int) -> np.ndarray:
    return np.linspace(0, 1, n, dtype=np.float32)


def weights() -> dict[str, np.ndarray]:
    return dict(affine().weights)


def test_futures(model: Model) -> None:
    pending = [model.call_async(rows(n)) for n in range(1, 50)]
    for n, p in enumerate(pending, 1):
        assert np.array_equal(p.result(10)[0], model(rows(n))[0])
    out = model(rows(3))
    assert model.call_async(x=rows(3), out=out).result(10) is out
    with pytest.raises(CallError, match="wrong element type"):
        model.call_async(np.zeros(3)).result(10)


def test_coroutines(model: Model) -> None:
    async def several() -> list[tuple[np.ndarray, ...]]:
        return await asyncio.gather(*(model.call_async(rows(n)) for n in range(1, 20)))

    async def fails() -> None:
        await model.call_async(np.zeros(3))

    for n, y in enumerate(asyncio.run(several()), 1):
        assert np.array_equal(y[0], model(rows(n))[0])
    with pytest.raises(CallError, match="wrong element type"):
        asyncio.run(fails())


def test_a_call_is_a_coroutine(model: Model) -> None:
    want = model(rows(5))[0]
    assert np.array_equal(asyncio.run(model.call_async(rows(5)))[0], want)
    assert np.array_equal(asyncio.run(model.stream().call_async(rows(5)))[0], want)
    with pytest.raises(CallError, match="wrong element type"):
        asyncio.run(model.call_async(np.zeros(3)))

    async def shared() -> list[tuple[np.ndarray, ...]]:
        pending = model.call_async(rows(5))
        tasks = [asyncio.create_task(pending) for _ in range(3)]
        waited = await asyncio.wait_for(pending, 10)
        return [*await asyncio.gather(*tasks), waited, await pending, await asyncio.shield(pending), pending.result()]

    assert all(np.array_equal(y[0], want) for y in asyncio.run(shared()))


def test_results_that_a_task_awaited_need_no_garbage_collection(model: Model) -> None:
    async def waits() -> None:
        pending = model.call_async(rows(5))
        calls.append(weakref.ref(pending))
        await asyncio.create_task(pending)

    calls = []
    with without_collection():
        asyncio.run(waits())
        pending = model.call_async(rows(5))
        calls.append(weakref.ref(pending))
        asyncio.run(pending)
        del pending
        for _ in range(200):  # the threads that made the calls forget them soon
            if not any(call() for call in calls):
                break
            time.sleep(0.01)
        assert [call() for call in calls] == [None, None]


def test_a_task_of_a_call_is_cancelled_with_it(model: Model) -> None:
    stream = model.stream()
    gate = threading.Event()

    async def run() -> None:
        stream.call_async(rows(1)).result(10)  # its thread runs
        assert stream._background is not None
        blocking = stream._background.submit(lambda: gate.wait(10), (), None, {})
        second = stream.call_async(rows(2))
        task = asyncio.create_task(second)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await blocking
        assert second.cancelled()

    asyncio.run(run())


def test_cancelled_before_it_begins(model: Model) -> None:
    stream = model.stream()
    entered, gate = threading.Event(), threading.Event()

    def wait() -> bool:
        entered.set()
        return gate.wait(10)

    stream.call_async(rows(1)).result(10)  # its thread runs
    assert stream._background is not None
    first = stream._background.submit(wait, (), None, {})
    assert entered.wait(10)
    second = stream.call_async(rows(2))
    third = stream.call_async(rows(3))
    assert second.cancel() and not first.cancel()
    gate.set()
    with pytest.raises(CancelledError):
        second.result(10)
    assert np.array_equal(third.result(10)[0], model(rows(3))[0]), "those after it are made all the same"

    async def abandoned() -> None:
        await asyncio.wait_for(stream.call_async(rows(4)), 10)

    asyncio.run(abandoned())
    stream.close()
    assert np.array_equal(stream(rows(3))[0], model(rows(3))[0])
    assert np.array_equal(stream.call_async(rows(3)).result(10)[0], model(rows(3))[0])


def test_streams_share_weights_and_not_arenas() -> None:
    model = Model(affine(lo=0, hi=5000))
    streams = [model.stream(threads=1) for _ in range(3)]
    arenas = {a.ctypes.data for s in [model, *streams] for a in s._engine._arenas if a is not None}
    assert len(arenas) == 4
    assert len({id(s._engine.linked) for s in [model, *streams]}) == 1
    assert all(s._weight_addresses() == model._weight_addresses() for s in streams)
    for version in range(1, 20):
        new = {n: a + version for n, a in weights().items()}
        model.update(new)
        for s in [*streams, model.stream()]:
            assert s.version == version
            y, used = s.versioned(rows(5))
            assert used == version
            np.testing.assert_allclose(y[0], affine_reference(rows(5), new["w"]), rtol=1e-5)


def test_updates_while_streams_run() -> None:
    model = Model(affine(lo=0, hi=5000))
    versions = [weights(), {n: a + 1 for n, a in weights().items()}]
    wanted = [affine_reference(rows(64), w["w"]) for w in versions]
    stop = threading.Event()
    wrong: list[int] = []

    def call() -> None:
        with model.stream(threads=1) as stream:
            while not stop.is_set():
                (y, _), version = stream.versioned(rows(64))
                if not np.allclose(y, wanted[version % 2], rtol=1e-5):
                    wrong.append(version)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for k in range(1, 200):
        model.update(versions[k % 2])
    stop.set()
    for t in threads:
        t.join()
    assert not wrong


def test_a_stream_is_freed() -> None:
    model = Model(copy16())
    engine = weakref.ref(model.stream()._engine)
    gc.collect()
    assert engine() is None and not model._weights._followers


def test_child_of_a_fork_has_threads_of_its_own(model: Model) -> None:
    stream = model.stream()
    want = model(rows(7))[0]
    assert np.array_equal(model.call_async(rows(7)).result(10)[0], want)
    assert np.array_equal(stream.call_async(rows(7)).result(10)[0], want)
    child = os.fork()
    if child == 0:
        try:
            same = [np.array_equal(m.call_async(rows(7)).result(10)[0], want) for m in (model, stream)]
            os._exit(0 if all(same) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(stream.call_async(rows(7)).result(10)[0], want)


def test_a_fork_while_weights_change() -> None:
    model = Model(affine(lo=0, hi=5000))
    stop = threading.Event()

    def update() -> None:
        while not stop.is_set():
            model.update(weights())

    thread = threading.Thread(target=update)
    thread.start()
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    version = model.stream().versioned(rows(7))[1]
                    os._exit(0 if model.update(weights()) > version else 1)
                finally:
                    os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()
