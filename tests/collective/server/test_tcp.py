"""The parameter server between machines: workers in other processes over TCP, ranges and rows, stores of other nodes,
and peers that send what they should not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.collective.server import hostile
from tests.collective.server.test_server import STEPS, first, gradient, policy, train
from tests.live.transport.test_tls import node_side, server_side
from tilewright.collective.server import SGD, Add, Port, Server, connect, follow, ranges
from tilewright.collective.server.link import connection
from tilewright.live.transport.address import parse_address
from tilewright.live.transport.calls import Caller, receive_message, send_message
from tilewright.live.transport.wire import Channel, Kind
from tilewright.support.errors import CollectiveError, TransportError

SECRET = "a secret of thirty-two characters"


@contextmanager
def listening(**options: Any) -> Iterator[Port]:
    port = Port(secret=SECRET, **options)
    try:
        yield port
    finally:
        port.close()


def _learn(names: list[str], number: int, steps: int) -> None:
    with connect(names, number, secret=SECRET, timeout=60) as worker:
        train(worker, steps)


def in_processes(names: list[str], count: int, steps: int = STEPS) -> None:
    """Workers, each in a process that is no fork of this one's threads."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_learn, args=(names, k, steps), daemon=True) for k in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


@pytest.mark.parametrize("staleness", [0, 1, None])
def test_workers_in_other_processes_over_tcp(staleness: int | None, tmp_path: Path) -> None:
    with listening() as port:
        with Server("far", first(), 2, SGD(0.1), staleness=staleness, port=port, directory=tmp_path) as server:
            in_processes([server.address], 2)
            assert server.shard.clocks == [STEPS, STEPS]
            values = server.values()
        with Server("near", first(), 2, SGD(0.1), staleness=0, directory=tmp_path) as server:
            threads = [
                threading.Thread(target=lambda k=k: train(connect("near", k, directory=tmp_path))) for k in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if staleness == 0:  # the bits are those of shared memory, and so of an all-reduction
                for name, value in server.values().items():
                    np.testing.assert_array_equal(values[name], value)
        assert port.stats()["hostile"] == 0


def test_shards_ranges_and_rows_and_a_store_that_follows(tmp_path: Path) -> None:
    model = policy()
    values = {n: np.array(v) for n, v in model.weights.items()}
    parts = ranges(values, 2)
    assert any(key.startswith("w@") for key in parts[0]) and any(key.startswith("w@") for key in parts[1])
    with listening() as one, listening() as two, tw.Publisher("policy", model, directory=tmp_path) as publisher:
        servers = [
            Server(f"part-{k}", p, 1, Add(), port=port, directory=tmp_path)
            for k, (p, port) in enumerate(zip(parts, (one, two), strict=True))
        ]
        names = [server.address for server in servers]
        with (
            connect(names, 0, secret=SECRET) as worker,
            follow(names, publisher, secret=SECRET) as follower,
            tw.attach("policy", directory=tmp_path) as actor,
        ):
            numbers = np.array([3, 0, 3])
            worker.push({"b": np.ones(2, np.float32)}, {"w": (numbers, np.ones((3, 2), np.float32))})
            np.testing.assert_array_equal(worker.pull()["w"], [[1, 1], [0, 0], [0, 0], [2, 2]])
            np.testing.assert_array_equal(worker.pull(rows={"w": numbers})["w"], [[2, 2], [1, 1], [2, 2]])
            assert list(worker.pull(["b"])) == ["b"]
            assert follower.wait(1, timeout=20), follower.failure
            np.testing.assert_array_equal(actor(np.ones((1, 4), np.float32)), [[4, 4]])
            worker.push({"b": np.full(2, np.nan, np.float32)})
            deadline = time.monotonic() + 20
            while follower.failure is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert "b" in str(follower.failure)  # the store refuses it, and keeps what it has
            np.testing.assert_array_equal(actor(np.ones((1, 4), np.float32)), [[4, 4]])
        for server in servers:
            server.close()


def test_a_worker_finds_a_server_that_was_started_anew(tmp_path: Path) -> None:
    with listening() as port:
        server = Server("again", first(), 1, SGD(0.1), port=port, log=tmp_path / "log", directory=tmp_path)
        with connect(server.address, 0, secret=SECRET, timeout=20) as worker:
            worker.push(gradient(0, 0, first()))
            server.close()
            begun = threading.Timer(
                0.3,
                lambda: servers.append(
                    Server("again", first(), 1, SGD(0.1), port=port, log=tmp_path / "log", directory=tmp_path)
                ),
            )
            servers: list[Server] = []
            begun.start()
            worker.push(gradient(0, 1, first()))
            assert worker.clock == 2
        begun.join()
        assert servers[0].shard.clocks == [2]
        servers[0].close()


def _killed(number: int, folder: Path, ready: Any) -> None:
    """A server at a port, as a process that is to be killed."""
    port = Port(port=number, secret=SECRET)
    Server("mortal", first(), 1, SGD(0.1), port=port, log=folder / "log", directory=folder)
    ready.send(port.port)
    threading.Event().wait()


def test_a_killed_server_goes_on_from_its_log(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes: list[Any] = []
    steps = 9

    def start(number: int) -> int:
        receive, send = context.Pipe(duplex=False)
        processes.append(context.Process(target=_killed, args=(number, tmp_path, send), daemon=True))
        processes[-1].start()
        assert receive.poll(30)
        return int(receive.recv())

    def kill() -> None:
        os.kill(processes[-1].pid, signal.SIGKILL)
        processes[-1].join()

    def between(step: int) -> None:
        if step in (2, 6):  # the worker learns of it when it pulls
            if step == 6:
                timer.join()  # on a busy machine it kills late, and two servers would want the port
            kill()
            start(number)
        elif step == 4:  # or while it waits for its answer
            timer.start()

    number = start(0)
    timer = threading.Timer(0.002, lambda: (kill(), start(number)))
    with connect(f"tcp://127.0.0.1:{number}/mortal", 0, secret=SECRET, timeout=60) as worker:
        train(worker, steps, between)
        timer.join()
        weights = worker.pull()
    kill()
    assert len(processes) == 4
    with Server("whole", first(), 1, SGD(0.1), directory=tmp_path) as server:
        train(connect("whole", 0, directory=tmp_path), steps)
        for name, value in server.values().items():
            np.testing.assert_array_equal(weights[name], value)


def test_workers_over_tls(tmp_path: Path) -> None:
    port = Port(tls=server_side())
    with Server("private", first(), 1, SGD(0.1), port=port, directory=tmp_path) as server:
        address = server.address.replace("localhost", "127.0.0.1")
        with connect(address, 0, tls=node_side()) as worker:
            train(worker)
            np.testing.assert_array_equal(worker.pull()["w"], server.values()["w"])
        for wrong in (None, ssl.create_default_context()):  # not TLS, and a context that does not know the authority
            with pytest.raises(CollectiveError, match="does not answer"):
                connect(address, 0, tls=wrong, timeout=0.1)
        assert server.shard.clocks == [STEPS]
    port.close()


def test_who_may_connect(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="open to the network"):
        Port("0.0.0.0")
    with listening() as port, Server("closed", first(), 1, Add(), port=port, directory=tmp_path) as server:
        for wrong in (None, "another secret of many letters"):
            with pytest.raises(CollectiveError, match="does not answer"):
                connect(server.address, 0, secret=wrong, timeout=0.1)
        with pytest.raises(CollectiveError, match="no 'server-closed-1' here"):
            connect(server.address, 1, secret=SECRET, timeout=0.1)
        with pytest.raises(CollectiveError, match="too long"):
            connect(server.address, 0, secret=SECRET, limit=8)
        assert server.shard.clocks == [0]
    with Server("local", first(), 1, Add(), directory=tmp_path) as server:
        with pytest.raises(CollectiveError, match="no port"):
            print(server.address)
        with pytest.raises(CollectiveError, match="over TCP"):
            follow("local", None)  # type: ignore[arg-type]


def test_hostile_workers(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.collective.server.server.READER_SECONDS", 0.1)
    options: dict[str, Any] = {"staleness": None, "message_limit": 1 << 20, "directory": tmp_path}
    with listening(timeout=5.0) as port, Server("strict", first(), 1, Add(), port=port, **options) as server:
        for seed in range(80):
            try:
                hostile.message(port, seed, SECRET)
            except TransportError:
                continue
        assert not any(r.exc_info for r in caplog.records)
        with connect(server.address, 0, secret=SECRET) as worker:
            before = worker.pull()
            worker.push({"b": np.ones(7)})
            np.testing.assert_array_equal(worker.pull()["b"], before["b"] + 1)
        assert port.stats()["hostile"] > 10


def test_a_hostile_server(tmp_path: Path) -> None:
    class Liar:
        name = connection("liar", 0)
        answers = 0

        def answer(self, channel: Channel) -> None:
            receive_message(channel, Kind.CALL, 1 << 20, 30)
            self.answers += 1
            if self.answers % 2:
                send_message(channel, Kind.ANSWER, b"no frame")
            else:
                channel.send(Kind.ANSWER, (1 << 40).to_bytes(8, "little"))

        def close(self) -> None: ...

        def forget(self) -> None: ...

    with listening() as port:
        port.add(Liar())
        with pytest.raises(CollectiveError, match="too long"):
            connect(f"tcp://127.0.0.1:{port.port}/liar", 0, secret=SECRET, timeout=5)
        caller = Caller(parse_address(f"tcp://127.0.0.1:{port.port}/server-liar-0"), secret=SECRET)
        caller.close()
