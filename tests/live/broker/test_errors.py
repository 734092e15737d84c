"""Failures are reported, once and clearly, and nothing that an agent writes stops the broker."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import random
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.live.broker.lab import OBS, build, is_right, observations, wait_until
from tilewright.ir.dtype import BY_NAME
from tilewright.live import store as weights
from tilewright.live.broker.client import BrokerClient
from tilewright.live.broker.fit import ring_spec
from tilewright.live.broker.ring import FILE, Ring
from tilewright.live.broker.server import Broker
from tilewright.live.broker.structs import CLAIMED, FAILED, HEADER, IDLE, READY, READY_AT, SLOT, TIMED_OUT
from tilewright.support.errors import BrokerError, CallError

F32 = TensorProto.FLOAT
SOURCE = np.random.default_rng(7)
pytestmark = pytest.mark.usefixtures("store")


def test_inputs_are_checked_before_anything_is_sent(policy: Any) -> None:
    with Broker("p", policy, rows=4, max_batch=4).start() as broker:
        agent = BrokerClient("p")
        obs, raw, h = observations(SOURCE, 2)
        for arguments, message in (
            ((obs.astype(np.float64), raw, h), "wrong element type"),
            ((obs[:, :3], raw, h), "wrong dimension"),
            ((obs, raw[:1], h), "disagrees"),
            ((obs, raw), "number of inputs"),
            (observations(SOURCE, 5), "4"),
            (observations(SOURCE, 0), "1"),
        ):
            with pytest.raises(CallError, match=message):
                agent(*arguments)
        with pytest.raises(CallError, match=r"action.*wrong shape"):
            agent(obs, raw, h, out=(np.empty((3, 3), np.float32), np.empty((1, 2, 4), np.float32)))
        assert broker.stats().requests == 0
        assert is_right(agent(obs, raw, h), 0, (obs, raw, h))


def test_where_there_is_no_broker(policy: Any) -> None:
    with pytest.raises(BrokerError, match=r"there is no broker(.|\n)*tilewright broker"):
        BrokerClient("p")
    with pytest.raises(tw.Error, match="name"):
        BrokerClient("../p")
    with pytest.raises(tw.Error, match="no such store"):
        Broker("p")
    Broker("p", policy).close()
    with pytest.raises(BrokerError, match="the broker has gone"):
        BrokerClient("p", timeout=0.01)
    with pytest.raises(tw.Error, match="no such store"):
        BrokerClient("p", fallback=True)


def test_one_broker_a_name(policy: Any) -> None:
    with Broker("p", policy) as first:
        with pytest.raises(BrokerError, match="a broker of this name already"):
            Broker("p", policy)
        later: list[Broker] = []
        thread = threading.Thread(target=lambda: later.append(Broker("p", policy, wait=20.0)))
        thread.start()
        first.close()
        thread.join()
        with pytest.raises(BrokerError, match="closed"):
            first.start()
        later[0].close()


def test_options(policy: Any) -> None:
    with pytest.raises(BrokerError) as caught:
        Broker("p", policy, max_batch=0, rows=-1, agents=1000, lanes=True, max_wait=-1.0)
    assert len(caught.value.problems) == 5
    with pytest.raises(BrokerError, match="at most 4"):
        Broker("p", policy, max_batch=4, rows=5)


def _linear(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> Any:
    return build(nodes, inputs, outputs, {"w": np.ones((OBS, OBS), np.float32)})


def test_models_that_cannot_be_batched() -> None:
    matmul = helper.make_node("MatMul", ["x", "w"], ["y"])
    fixed = _linear([matmul], {"x": (F32, [1, OBS])}, {"y": (F32, [1, OBS])})
    with pytest.raises(BrokerError, match="one symbolic dimension"):
        Broker("p", fixed)
    mixed = _linear(
        [helper.make_node("Softmax", ["x"], ["y"], axis=0)], {"x": (F32, ["n", OBS])}, {"y": (F32, ["n", OBS])}
    )
    with pytest.raises(BrokerError, match=r"output 'y'.*depends on the other rows"):
        Broker("p", mixed)
    summed = _linear(
        [matmul, helper.make_node("ReduceMax", ["y"], ["m"], keepdims=0)],
        {"x": (F32, ["n", OBS])},
        {"y": (F32, ["n", OBS]), "m": (F32, [])},
    )
    with pytest.raises(BrokerError, match=r"output 'm'.*not one row of a batch"):
        Broker("p", summed)
    largest = [
        helper.make_node("Cast", ["x"], ["f"], to=F32),
        helper.make_node("ReduceMax", ["f", "first"], ["m"]),
        helper.make_node("Sub", ["f", "m"], ["y"]),
    ]
    u8 = TensorProto.UINT8
    compared = build(largest, {"x": (u8, ["n", OBS])}, {"y": (F32, ["n", OBS])}, {"first": np.array([0], np.int64)})
    with pytest.raises(BrokerError, match=r"output 'y'.*depends on the other rows"):
        Broker("p", compared)
    assert not list(Path(os.environ["TILEWRIGHT_STORE_DIR"]).glob("*/broker"))


def test_no_room(policy: Any, monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BrokerError, match="no room for the ring"):
        Broker("p", policy)
    assert sorted(p.name for p in (store / "p").iterdir()) == ["broker.lock"]
    monkeypatch.undo()
    os.environ["TILEWRIGHT_STORE_DIR"] = str(store)
    Broker("p", policy).close()


def test_a_store_that_is_removed(policy: Any) -> None:
    """The broker of a removed store ends, and says why; agents learn it."""
    publisher = tw.Publisher("p", policy)
    with Broker("p").start() as broker, BrokerClient("p", call_timeout=0.2) as agent:
        arguments = observations(SOURCE, 1)
        assert is_right(agent(*arguments), 0, arguments)
        publisher.close(remove=True)
        wait_until(lambda: not broker.is_serving)
        with pytest.raises(BrokerError, match="its ring was removed"):
            broker.check()
        with pytest.raises(BrokerError, match="there is no broker"):
            agent(*arguments)


@pytest.mark.parametrize("published", [True, False])
def test_a_broker_counts_when_stores_are_swept(policy: Any, store: Path, published: bool) -> None:
    """A store with a broker's files is a store: it is listed, kept while the broker lives, and removed after it."""
    if published:
        tw.Publisher("p", policy).close()
    with Broker("p", None if published else policy):
        assert [candidate.name for candidate in weights.stores()] == ["p"] * published
        assert weights.sweep() == []
    assert [swept.path for swept in weights.sweep()] == [store / "p"]
    assert not list(store.iterdir())


def test_files_are_private(policy: Any, store: Path) -> None:
    with Broker("p", policy):
        assert (store / "p" / FILE).stat().st_mode & 0o777 == 0o600
        assert (store / "p").stat().st_mode & 0o777 == 0o700
        assert (store / "p" / FILE).stat().st_blocks * 512 >= (store / "p" / FILE).stat().st_size


def test_a_broker_that_does_not_answer(policy: Any) -> None:
    """The broker lives, but does not serve: the call ends, and the request is taken back."""
    arguments = observations(SOURCE, 2)
    with Broker("p", policy) as broker:
        agent = BrokerClient("p", call_timeout=0.1)
        with pytest.raises(BrokerError, match="does not answer"):
            agent(*arguments)
        agent.close()
        broker.start()
        assert is_right(BrokerClient("p", call_timeout=60.0)(*arguments), 0, arguments)
        assert broker.stats().requests == 1  # the first was taken back


def test_a_request_of_a_broker_that_died_is_answered_by_the_next(policy: Any) -> None:
    """The request stands in the ring, asked or even begun."""
    arguments = observations(SOURCE, 2)
    for begun in (False, True):
        answers: list[Any] = []
        with Broker("p", policy):
            agent = BrokerClient("p", call_timeout=30.0)
            thread = threading.Thread(target=lambda a=agent, result=answers: result.append(a(*arguments)))
            thread.start()
            ring = agent._ring
            assert ring is not None
            wait_until(lambda r=ring: r.slot_word(0, SLOT.state) == READY)
            if begun:
                ring.set_slot_word(0, SLOT.state, CLAIMED)
                ring.words[READY_AT >> 3] = 0
        with Broker("p", policy).start():
            thread.join()
        assert is_right(answers[0], 0, arguments)
        agent.close()


def test_a_request_whose_batch_failed_is_not_asked_once_more(policy: Any) -> None:
    with Broker("p", policy), BrokerClient("p") as agent:
        with pytest.raises(BrokerError, match="the batch could not be run"):
            agent._end(agent._agent, FAILED)
        assert agent.is_attached
        with pytest.raises(BrokerError, match="does not answer"):
            agent._end(agent._agent, TIMED_OUT)
        assert not agent.is_attached


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_the_tensors_of_a_slot_lie_separately_on_lines_of_their_own(policy: Any, rows: int) -> None:
    for slots in (1, 5, 64):
        spec = ring_spec(policy.manifest, slots, rows, 32)
        for (at, end), t in zip(pairwise(spec.offsets), spec.tensors, strict=True):
            nbytes = np.zeros([rows if isinstance(d, str) else d for d in t.shape], BY_NAME[t.dtype].numpy).nbytes
            assert at % 64 == 0 and nbytes <= end - at < nbytes + 64
        assert spec.slot_size % 128 == 64 and 0 <= spec.slot_size - spec.offsets[-1] < 128
        assert spec.slots_at >= mmap.PAGESIZE + len(spec.text)
        assert spec.size % mmap.PAGESIZE == 0 and spec.size >= spec.slots_at + slots * spec.slot_size


def test_a_signal_interrupts_a_call(policy: Any) -> None:
    """The handler of a signal runs at once, and what it raises ends the call."""

    class Alarm(Exception):
        pass

    def ring_out(*_: Any) -> None:
        raise Alarm

    arguments = observations(SOURCE, 1)
    before = signal.signal(signal.SIGALRM, ring_out)
    try:
        with Broker("p", policy) as broker:
            agent = BrokerClient("p", call_timeout=60.0)
            for _ in range(3):
                with pytest.raises(Alarm):
                    signal.setitimer(signal.ITIMER_REAL, 0.02)
                    agent(*arguments)
            broker.start()
            assert is_right(agent(*arguments), 0, arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_closed_agents(policy: Any) -> None:
    with Broker("p", policy, agents=1).start() as broker:
        with BrokerClient("p") as agent:
            with pytest.raises(BrokerError, match="every place is taken"):
                BrokerClient("p")
        assert broker.stats().agents == 0
        with pytest.raises(BrokerError, match="is closed"):
            agent(*observations(SOURCE, 1))
        forgotten = BrokerClient("p")
        del forgotten
        gc.collect()
        BrokerClient("p", timeout=10.0).close()


def test_nonsense_in_slots(policy: Any) -> None:
    """An agent may write what it likes where it can: other agents get right answers all the while."""
    choose = random.Random(3)
    with Broker("p", policy, agents=5, max_wait=1e-3).start() as broker:
        good = [BrokerClient("p", call_timeout=30.0) for _ in range(2)]
        path = Path(os.environ["TILEWRIGHT_STORE_DIR"]) / "p" / FILE
        hostile = Ring.open(path)
        lengths = (0, -1, 9, 1 << 31, (1 << 63) - 1, -(1 << 63))
        end = time.monotonic() + 1.5
        turn = 0
        while time.monotonic() < end or turn <= 10:
            for slot in (2, 3, 4):
                hostile.set_slot_word(slot, SLOT.rows, choose.choice(lengths))
                hostile.set_slot_word(slot, SLOT.status, choose.getrandbits(62))
                hostile.set_slot_word(slot, SLOT.state, choose.choice([READY, READY, choose.randrange(-9, 9)]))
            hostile.words[READY_AT >> 3 : (READY_AT >> 3) + 4] = -1
            hostile.words[HEADER.attached >> 3] = choose.getrandbits(62)
            for at in (256, 264, 272, 280):  # the bell, who sleeps, for how many, since when
                hostile.words[at >> 3] = choose.choice([0, 1, -1, choose.getrandbits(62), 1 << 62])
            agent = good[turn % 2]
            arguments = observations(SOURCE, 1 + turn % 8)
            assert is_right(agent(*arguments), 0, arguments)
            turn += 1
        wait_until(lambda: broker.stats().agents == 2)
        hostile.close()
        for k in (2, 3, 4):
            if hostile.slot_word(k, SLOT.state) == CLAIMED:
                hostile.set_slot_word(k, SLOT.state, IDLE)
        assert is_right(good[0](*arguments), 0, arguments)


def test_damaged_rings(policy: Any, store: Path) -> None:
    """A file that is not a ring, or not of its description's size, is refused; a broker puts a new one in its place."""
    Broker("p", policy).close()
    path = store / "p" / FILE
    whole = path.read_bytes()
    choose = random.Random(5)
    cases = [b"", whole[:100], whole[:5000], whole + bytes(4096), bytes(len(whole))]
    text = whole[4096 : whole.index(b"\0", 4096)]
    for old, new in (
        (b'"slots":64', b'"slots":-4'), (b'"slots":64', b'"slots":65'), (b'"rows":8', b'"rows":9'),
        (b'["batch",5]', b'["batch",-5]'), (b'["batch",5]', b'["batch",9e999]'), (b'"f32"', b'"f99"'),
        (b'"inputs"', b'"inputz"'), (b'["batch",5]', b'[5,5]'), (b"{", b"["),
    ):  # fmt: skip
        changed = text.replace(old, new, 1)
        assert changed != text
        size = len(changed).to_bytes(8, "little")
        cases.append(whole[:24] + size + whole[32:4096] + changed.ljust(4096, b"\0") + whole[8192:])
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(choose.randint(1, 4)):
            damaged[choose.choice([choose.randrange(32), 4096 + choose.randrange(len(text))])] = choose.randrange(256)
        cases.append(bytes(damaged))
    refused = 0
    for case in cases:
        path.write_bytes(case)
        try:
            Ring.open(path).close()
        except BrokerError:
            refused += 1
    assert refused >= 30
    path.write_bytes(cases[1])
    with pytest.raises(BrokerError):
        BrokerClient("p")
    with Broker("p", policy).start():
        arguments = observations(SOURCE, 1)
        assert is_right(BrokerClient("p")(*arguments), 0, arguments)
