"""Agents in threads and their broker in one process: answers are those of direct calls, whatever is batched."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.live.broker.lab import HIDDEN, expected, is_right, observations, policy_weights, wait_until
from tilewright.live.broker.client import BrokerClient
from tilewright.live.broker.server import Broker
from tilewright.live.broker.structs import READY, SLOT

pytestmark = pytest.mark.usefixtures("store")


def together(bodies: list[Any]) -> None:
    """Run functions in threads of their own; the first error is raised."""
    errors: list[BaseException] = []

    def guarded(body: Any) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("lanes", [1, 3])
def test_every_agent_gets_its_own_rows(policy: Any, lanes: int) -> None:
    """Any number of rows, in any company; the state's rows lie along the second axis."""
    with Broker("p", policy, max_batch=11, rows=8, lanes=lanes, agents=16, max_wait=1e-3).start() as broker:

        def agent(seed: int) -> None:
            random = np.random.default_rng(seed)
            with BrokerClient("p", call_timeout=60.0) as agent:
                for _ in range(60):
                    arguments = observations(random, int(random.integers(1, 9)))
                    assert is_right(agent(*arguments), 0, arguments)

        together([lambda k=k: agent(k) for k in range(12)])
        stats = broker.stats()
        assert stats.requests == 12 * 60
        assert stats.batches < stats.requests  # some company there was
        assert stats.rows / stats.batches <= 11


def test_ways_to_call(policy: Any) -> None:
    with Broker("p", policy).start():
        agent = BrokerClient("p")
        arguments = observations(np.random.default_rng(1), 3)
        want = expected(0, *arguments)
        outputs, version = agent.versioned(*arguments)
        assert version == policy.version
        assert is_right(outputs, 0, arguments)
        out = tuple(np.empty_like(a) for a in want)
        assert agent(*arguments, out=out) is out
        assert is_right(out, 0, arguments)
        result = agent.run(dict(zip(("h", "bytes", "obs"), arguments[::-1], strict=True)))
        assert is_right((result["action"], result["h_next"]), 0, arguments)
        # Rows that are not dense are copied first.
        wide = np.repeat(arguments[0], 2, axis=0)[::2]
        assert is_right(agent(wide, *arguments[1:]), 0, arguments)
        assert [i.name for i in agent.inputs] == ["obs", "bytes", "h"]
        assert agent.rows == 8
        assert "recurrent" in repr(agent)


def test_recurrent_state_goes_round(policy: Any) -> None:
    """The state that comes out goes in again, beside an agent that does the same."""
    with Broker("p", policy, max_wait=1e-3).start():

        def episode(seed: int) -> None:
            random = np.random.default_rng(seed)
            agent, h = BrokerClient("p"), np.zeros((1, 2, HIDDEN), np.float32)
            for _ in range(30):
                obs, raw, _ = observations(random, 2)
                (_, h_next) = agent(obs, raw, h)
                assert np.array_equal(h_next, expected(0, obs, raw, h)[1])
                h = h_next % 7

        together([lambda: episode(1), lambda: episode(2)])


def test_those_who_ask_together_are_run_together(policy: Any) -> None:
    """One batch for two agents that have been at it; no call waits for one who is not."""
    with Broker("p", policy, max_wait=10.0, lanes=1).start() as broker:
        agents = [BrokerClient("p", call_timeout=300.0) for _ in range(2)]
        idle = BrokerClient("p")
        arguments = observations(np.random.default_rng(1), 1)
        agents[0](*arguments)  # alone: answered at once, or this takes ten seconds
        barrier = threading.Barrier(2)

        def rounds(agent: BrokerClient) -> None:
            agent(*arguments)
            for _ in range(10):
                barrier.wait(60.0)
                agent(*arguments)

        together([lambda a=a: rounds(a) for a in agents])
        stats = broker.stats()
        assert stats.requests == 23
        assert stats.batches <= 13
        assert idle.is_attached
        assert broker.stats().elapsed < 60.0  # not ten seconds for each


def test_a_lone_agent_waits_for_no_one(policy: Any) -> None:
    """An answer would be too late after `max_wait`."""
    with Broker("p", policy, max_wait=10.0).start():
        agent = BrokerClient("p", call_timeout=6.0)
        for rows in (1, 3):
            arguments = observations(np.random.default_rng(rows), rows)
            assert is_right(agent(*arguments), 0, arguments)


def test_agents_that_wait_have_their_turns(policy: Any) -> None:
    """A batch goes on after the slot where the last one ended: no agent is passed over."""
    with Broker("p", policy, max_batch=1, rows=1, lanes=1) as broker:
        agents = [BrokerClient("p", call_timeout=60.0) for _ in range(5)]
        threads = [threading.Thread(target=a, args=observations(np.random.default_rng(1), 1)) for a in agents]
        for thread in threads:
            thread.start()
        ring = broker._ring
        wait_until(lambda: all(ring.slot_word(k, SLOT.state) == READY for k in range(5)))
        broker.start()
        for thread in threads:
            thread.join()
        _, seen = broker._batcher._keep[:2]
        times = [seen[8 * k] for k in range(5)]  # type: ignore[index]
        assert times == sorted(times)


def test_one_client_in_several_threads(policy: Any) -> None:
    """Calls of one client go one after the other."""
    with Broker("p", policy).start():
        agent = BrokerClient("p")

        def calls(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(20):
                arguments = observations(random, 2)
                assert is_right(agent(*arguments), 0, arguments)

        together([lambda k=k: calls(k) for k in range(4)])


def test_each_answer_is_of_one_version(policy: Any) -> None:
    """Weights are published while agents call; each answer is that of the version it names."""
    with tw.Publisher("p", policy) as publisher, Broker("p").start():
        stop = threading.Event()

        def agent(seed: int) -> None:
            random, last, done = np.random.default_rng(seed), 0, False
            with BrokerClient("p") as agent:
                while not done:
                    done = stop.is_set()  # the last call begins after the last publication
                    arguments = observations(random, int(random.integers(1, 9)))
                    outputs, version = agent.versioned(*arguments)
                    assert is_right(outputs, version if version > first else 0, arguments)
                    assert version >= last
                    last = version
            assert last > first

        def publish() -> None:
            for version in range(first + 1, first + 60):
                publisher.publish(policy_weights(version), version)
            stop.set()

        first = publisher.version
        together([*[lambda k=k: agent(k) for k in range(4)], publish])


def test_a_new_structure_is_followed(policy: Any) -> None:
    """The broker moves to it by itself, and agents get another ring between calls."""
    from tests.live.broker.lab import build

    helper = pytest.importorskip("onnx.helper")
    double = build(
        [helper.make_node("Mul", ["obs", "two"], ["twice"])],
        {"obs": (1, ["n", 7])},
        {"twice": (1, ["n", 7])},
        {"two": np.full((1,), 2, np.float32)},
    )
    with tw.Publisher("p", policy), Broker("p", max_wait=1e-3).start() as broker:
        agent = BrokerClient("p")
        arguments = observations(np.random.default_rng(1), 2)
        assert is_right(agent(*arguments), 0, arguments)
    with tw.Publisher("p", double), Broker("p").start() as broker:
        x = np.arange(14, dtype=np.float32).reshape(2, 7)
        with pytest.raises(tw.Error):
            agent(*arguments)  # three inputs were right for the old one
        assert np.array_equal(agent(x), 2 * x)
        with tw.Publisher("q", policy):
            pass
        wait_until(lambda: broker.stats().agents == 1)


def test_a_structure_that_changes_under_a_broker(policy: Any) -> None:
    from tests.live.broker.lab import build

    helper = pytest.importorskip("onnx.helper")
    double = build(
        [helper.make_node("Mul", ["obs", "two"], ["twice"])],
        {"obs": (1, ["n", 7])},
        {"twice": (1, ["n", 7])},
        {"two": np.full((1,), 2, np.float32)},
    )
    tw.Publisher("p", policy).close()
    with Broker("p").start():
        agent = BrokerClient("p")
        arguments = observations(np.random.default_rng(1), 2)
        assert is_right(agent(*arguments), 0, arguments)
        tw.Publisher("p", double).close()
        x = np.arange(14, dtype=np.float32).reshape(2, 7)
        # The call that finds the change has the old inputs, and says so.
        with pytest.raises(tw.errors.CallError, match="number of inputs"):
            agent(*arguments)
        assert np.array_equal(agent(x), 2 * x)


def test_falling_back_and_coming_back(policy: Any, store: Path) -> None:
    """Without a broker the agent calls its own actor; with one again it goes there."""
    with tw.Publisher("p", policy) as publisher:
        agent = BrokerClient("p", fallback=True)
        arguments = observations(np.random.default_rng(1), 2)
        assert is_right(agent(*arguments), 0, arguments)
        assert agent.versioned(*arguments)[1] == publisher.version
        assert not agent.is_attached
        assert agent.rows is None
        agent._next_look = 0.0
        assert not agent._look(), "there is none to be found"
        assert not agent._look(), "who has just looked does not look again"
        for _ in range(2):
            with Broker("p").start() as broker:

                def answered(broker: Broker = broker) -> bool:
                    assert is_right(agent(*arguments), 0, arguments)
                    return agent.is_attached and broker.stats().requests > 0

                wait_until(answered)
            assert is_right(agent(*arguments), 0, arguments)
            assert not agent.is_attached
