"""The parameter server: simulated schedules, all-reductions bit for bit, rows, the log after kill -9, actors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.collective.ranks import in_threads
from tests.collective.server import schedules
from tilewright.collective.group import Group
from tilewright.collective.server import SGD, Add, Push, Server, Shard, connect, ranges
from tilewright.collective.server.frames import Frame, decode, encode
from tilewright.collective.server.worker import Worker
from tilewright.support.errors import CollectiveError

STEPS = 5


def gradient(worker: int, step: int, weights: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng([worker, step])
    return {n: (v * 0.1 + rng.standard_normal(v.shape)).astype(v.dtype) for n, v in weights.items()}


def first() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"w": rng.standard_normal((40, 30)).astype(np.float32), "b": rng.standard_normal(7)}


def train(worker: Worker, steps: int = STEPS, between: Callable[[int], None] = lambda step: None) -> None:
    while worker.clock < steps:
        between(worker.clock)
        weights = worker.pull()
        worker.push(gradient(worker.worker, worker.clock, weights))


def all_workers(names: Any, count: int, folder: Path, body: Callable[[Worker], Any]) -> list[Any]:
    def one(number: int) -> Any:
        with connect(names, number, directory=folder, timeout=30) as worker:
            return body(worker)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_schedules_never_exceed_their_staleness() -> None:
    assert sum(schedules.run(seed) for seed in range(100)) > 500


def test_a_shard_that_lets_workers_run_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "may_pull", lambda self, clock: True)
    with pytest.raises(AssertionError, match=r"ahead|old|half"):
        for seed in range(50):
            schedules.run(seed)


def test_synchronous_is_an_all_reduction_bit_for_bit(tmp_path: Path) -> None:
    def reduced(group: Group) -> dict[str, Any]:
        weights = first()
        for step in range(STEPS):
            for name, g in gradient(group.rank, step, weights).items():
                group.all_reduce(g, "avg")
                weights[name] -= weights[name].dtype.type(0.1) * g
        return weights

    expected = in_threads(3, tmp_path, reduced)[0]
    with Server("sync", first(), 3, SGD(0.1), directory=tmp_path) as server:
        all_workers("sync", 3, tmp_path, train)
        for name, value in server.values().items():
            np.testing.assert_array_equal(value, expected[name])
    assert not list((tmp_path / "groups").iterdir())


def test_several_servers_share_ranges(tmp_path: Path) -> None:
    parts = ranges(first(), 2)
    assert abs(sum(v.nbytes for v in parts[0].values()) - sum(v.nbytes for v in parts[1].values())) < 400
    with Server("whole", first(), 2, SGD(0.1), directory=tmp_path) as server:
        all_workers("whole", 2, tmp_path, train)
        expected = server.values()
    names = ["part-0", "part-1"]
    servers = [Server(n, p, 2, SGD(0.1), directory=tmp_path) for n, p in zip(names, parts, strict=True)]
    all_workers(names, 2, tmp_path, train)
    with connect(names, 0, directory=tmp_path) as worker:
        pulled = worker.pull()
        worker.push({}, {"w": (np.array([1, 39]), np.ones((2, 30), np.float32))})
    for name, value in pulled.items():
        np.testing.assert_array_equal(value, expected[name])
    for server in servers:
        server.close()


def test_rows(tmp_path: Path) -> None:
    table = np.zeros((10, 3), np.float32)
    with Server("rows", {"t": table}, 1, Add(), directory=tmp_path) as server:
        with connect("rows", 0, directory=tmp_path) as worker:
            rows, values = np.array([4, 1, 4]), np.arange(9, dtype=np.float32).reshape(3, 3)
            worker.push({}, {"t": (rows, values)})
            np.add.at(table, rows, values)
            np.testing.assert_array_equal(worker.pull(rows={"t": np.array([1, 4])})["t"], table[[1, 4]])
        np.testing.assert_array_equal(server.values()["t"], table)


def _serve(folder: Path, log: Path, ready: Any) -> None:
    Server("killed", first(), 2, SGD(0.1), staleness=1, log=log, directory=folder)
    ready.set()
    threading.Event().wait()


def test_a_killed_server_goes_on_from_its_log(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")

    def start() -> Any:
        ready = context.Event()
        process = context.Process(target=_serve, args=(tmp_path, tmp_path / "log", ready), daemon=True)
        process.start()
        assert ready.wait(20)
        return process

    processes = [start()]
    steps = 12
    order: list[tuple[int, int]] = []

    def kill(number: int, step: int) -> None:
        order.append((number, step))
        if number == 0 and step in (3, 8):
            os.kill(processes[-1].pid, signal.SIGKILL)
            processes[-1].join()
            processes.append(start())

    all_workers("killed", 2, tmp_path, lambda w: train(w, steps, lambda step: kill(w.worker, step)))
    os.kill(processes[-1].pid, signal.SIGKILL)
    processes[-1].join()
    assert len(processes) == 3
    with Server("killed", first(), 2, SGD(0.1), staleness=1, log=tmp_path / "log", directory=tmp_path) as server:
        assert server.shard.clocks == [steps, steps]
        assert server.shard.steps == 2 * steps
    assert len(list((tmp_path / "log").iterdir())) == 2


def test_the_log_gives_the_bits_and_ends_where_it_is_cut(tmp_path: Path) -> None:
    for staleness in (0, 2):
        log = tmp_path / f"log-{staleness}"
        with Server("cut", first(), 2, SGD(0.1), staleness=staleness, log=log, directory=tmp_path) as server:
            all_workers("cut", 2, tmp_path, train)
            with connect("cut", 0, directory=tmp_path) as worker:
                worker.push(gradient(0, STEPS, first()))  # one that waits for the other's, if synchronous
            expected, clocks = server.values(), list(server.shard.clocks)
        for _ in range(2):  # once from pushes, once from a snapshot
            with Server("cut", first(), 2, SGD(0.1), staleness=staleness, log=log, directory=tmp_path) as server:
                assert server.shard.clocks == clocks
                assert len(server.shard.waiting()) == (staleness == 0)
                for name, value in server.values().items():
                    np.testing.assert_array_equal(value, expected[name])
                if staleness:
                    with connect("cut", 1, directory=tmp_path) as worker:
                        worker.push(gradient(1, 99, first()))
                    expected, clocks = server.values(), list(server.shard.clocks)
        pushes = next(log.glob("pushes-*"))
        os.truncate(pushes, max(0, pushes.stat().st_size - 3))
        with Server("cut", first(), 2, SGD(0.1), staleness=staleness, log=log, directory=tmp_path) as server:
            assert server.shard.clocks == [clocks[0], clocks[1] - bool(staleness)]


def policy() -> tw.Model:
    w, b = np.zeros((4, 2), np.float32), np.zeros(2, np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["obs", "w", "b"], ["action"])],
        "policy",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(v, n) for n, v in (("w", w), ("b", b))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    return tw.compile(model)


def test_steps_are_published_to_actors(tmp_path: Path) -> None:
    model = policy()
    values = {n: np.array(v) for n, v in model.weights.items()}
    with tw.Publisher("policy", model, directory=tmp_path) as publisher:
        with pytest.raises(CollectiveError, match="other weights"):
            Server("ps", {"w": values["w"]}, 1, Add(), publisher=publisher, directory=tmp_path)
        with (
            Server("ps", values, 1, Add(), publisher=publisher, directory=tmp_path) as server,
            tw.attach("policy", directory=tmp_path) as actor,
            connect("ps", 0, directory=tmp_path) as worker,
        ):
            before = publisher.version
            worker.push({"w": np.ones((4, 2), np.float32), "b": np.full(2, 0.5, np.float32)})
            outputs, version = actor.versioned(np.ones((1, 4), np.float32))
            assert version == before + 1
            np.testing.assert_array_equal(outputs, [[4.5, 4.5]])
            worker.push({"b": np.full(2, np.nan, np.float32)})
            assert "b" in str(server.failure)
            assert publisher.version == before + 1


def test_a_server_refuses_what_does_not_fit(tmp_path: Path) -> None:
    with (
        Server("strict", first(), 2, Add(), directory=tmp_path) as server,
        connect("strict", 1, directory=tmp_path) as w,
    ):
        wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
            ({"x": np.zeros(1, np.float32)}, {}, "no such weight"),
            ({"w": np.zeros(1, np.float32)}, {}, "is another"),
            ({}, {"w": (np.array([40]), np.zeros((1, 30), np.float32))}, "no such row"),
            ({}, {"w": (np.array([-1]), np.zeros((1, 30), np.float32))}, "no such row"),
            ({}, {"w": (np.array([1]), np.zeros((2, 30), np.float32))}, "do not fit"),
            ({}, {"w": (np.array([1]), np.zeros((1, 30)))}, "rows of 'w'"),
        ]
        for dense, rows, message in wrong:
            with pytest.raises(CollectiveError, match=message):
                w.push(dense, rows)
        with pytest.raises(CollectiveError, match="no such weight"):
            w.pull(["x"])
        assert server.shard.clocks == [0, 0]
        w.clock = 3
        with pytest.raises(CollectiveError, match="push is missing"):
            w.push(first())
    with pytest.raises(CollectiveError, match="does not answer"):
        connect("strict", 0, timeout=0.2, directory=tmp_path)
    for bad in ({"w": np.zeros(3, np.int32)}, {"w": np.zeros((4, 4))[:, 1]}):
        with pytest.raises(CollectiveError, match="must be"):
            Shard(bad, 1, Add())
    with pytest.raises(CollectiveError, match="no such server"):
        Shard(first(), 0, Add())


def test_frames_are_checked() -> None:
    frame = Frame("push", {"worker": 1, "clock": 2}, {"a": np.arange(5.0), "b": np.zeros((0, 3), np.int64)})
    data = encode(frame)
    back = decode(data)
    assert (back.kind, back.facts) == ("push", {"worker": 1, "clock": 2})
    np.testing.assert_array_equal(back.arrays["a"], np.arange(5.0))
    assert back.arrays["b"].shape == (0, 3)
    rng = np.random.default_rng(2)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data[: int(rng.integers(len(data) + 1))] if rng.random() < 0.3 else data)
        for _ in range(int(rng.integers(1, 4))):
            if damaged:
                damaged[int(rng.integers(len(damaged)))] = int(rng.integers(256))
        try:
            decode(bytes(damaged))
        except CollectiveError:
            refused += 1
    assert refused > 50


def test_a_push_that_is_repeated_counts_once() -> None:
    shard = Shard({"w": np.zeros(2)}, 1, Add())
    push = Push(0, 0, {"w": np.ones(2)}, {})
    assert shard.push(push)
    assert not shard.push(push)
    np.testing.assert_array_equal(shard.values["w"], 1)
