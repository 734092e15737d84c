"""Several processes on one copy of weights: a killed worker comes back, a changed file is served, SIGTERM drains."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from prometheus_client.parser import text_string_to_metric_families

import tilewright as tw
from tilewright.serve.board import Board
from tilewright.serve.colleagues import Colleagues
from tilewright.serve.core import Core
from tilewright.serve.errors import ServeError
from tilewright.serve.models import Served
from tilewright.serve.opening import Source, open_source
from tilewright.serve.server import Server, Settings
from tilewright.serve.statistics import Statistics
from tilewright.serve.watch import Watcher

from .conftest import WEIGHTS, expected, layer_model

X = np.ones((1, 4), np.float32)


def write(path: Path, factor: float) -> None:
    """The layer with its weights times a factor, renamed into place."""
    model = layer_model()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(WEIGHTS[tensor.name] * np.float32(factor), tensor.name))
    onnx.save(model, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def scaled(factor: float) -> np.ndarray:
    return expected(X, {name: array * np.float32(factor) for name, array in WEIGHTS.items()})


@pytest.fixture
def process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, list[int], Path, subprocess.Popen[str]]]:
    monkeypatch.setenv("TILEWRIGHT_STORE_DIR", str(tmp_path / "stores"))
    folder = tmp_path / "models"
    folder.mkdir()
    write(folder / "layer.onnx", 1)
    command = [sys.executable, "-m", "tests.serve.worker_server", str(folder), "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        out: IO[str] = started.stdout  # type: ignore[assignment]
        port, *workers = map(int, out.readline().split())
        yield f"http://127.0.0.1:{port}", workers, folder, started
        started.terminate()
        assert started.wait(30) == 0
    assert not list((tmp_path / "stores").glob("serve.*"))  # its stores are gone


def eventually(check: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_workers(process: tuple[str, list[int], Path, subprocess.Popen[str]]) -> None:
    url, workers, folder, _ = process

    def ask() -> np.ndarray:
        with tw.client.Client(url, timeout=20) as client:
            return client.infer("layer", {"x": X})["y"]

    for _ in range(6):
        np.testing.assert_allclose(ask(), scaled(1), rtol=1e-5)
    # A worker is killed: the other answers, and its place is taken again. A connection may be lost with it.
    os.kill(workers[0], signal.SIGKILL)
    answered = 0
    for _ in range(20):
        try:
            np.testing.assert_allclose(ask(), scaled(1), rtol=1e-5)
            answered += 1
        except ServeError:
            time.sleep(0.05)
    assert answered >= 18
    # The file changes: both workers turn to it.
    write(folder / "layer.onnx", 3)
    eventually(lambda: all(np.allclose(ask(), scaled(3), rtol=1e-5) for _ in range(8)))


def test_workers_are_one_server(process: tuple[str, list[int], Path, subprocess.Popen[str]]) -> None:
    """Statistics are of all workers, whichever of them answers, also of those that have died; models are loaded into
    and unloaded from all of them."""
    url, workers, folder, _ = process

    def ask(name: str = "layer") -> int:
        with tw.client.Client(url, timeout=20) as client:
            try:
                np.testing.assert_allclose(
                    client.infer(name, {"x": X})["y"], scaled(1 if name == "layer" else 2), rtol=1e-5
                )
            except ServeError as error:
                return error.status.http
            return 200

    def counted() -> set[tuple[int, int, int]]:
        """The counts that eight connections read, each from the metrics, the dashboard and the model's statistics."""
        told = set()
        for _ in range(8):
            answers = [read(f"{url}/{path}") for path in ("metrics", "dashboard/data", "v2/models/layer/stats")]
            samples = {
                (s.name, s.labels.get("result")): s.value
                for family in text_string_to_metric_families(answers[0].decode())
                for s in family.samples
                if s.labels.get("model") == "layer"
            }
            board, stats = json.loads(answers[1]), json.loads(answers[2])
            told.add((
                int(samples["tilewright_requests_total", "answered"]),
                next(m for m in board["models"] if m["name"] == "layer")["answered"],
                stats["model_stats"][0]["inference_stats"]["success"]["count"],
            ))  # fmt: skip
        return told

    assert [ask() for _ in range(20)] == [200] * 20
    eventually(lambda: counted() == {(20, 20, 20)})
    os.kill(workers[1], signal.SIGKILL)
    eventually(lambda: counted() == {(20, 20, 20)})
    write(folder / "later.onnx", 2)
    eventually(lambda: [ask("later") for _ in range(8)] == [200] * 8)
    os.unlink(folder / "later.onnx")
    eventually(lambda: [ask("later") for _ in range(8)] == [404] * 8)


def read(url: str) -> bytes:
    while True:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return bytes(answer.read())
        except OSError:  # the worker that had this connection has been killed
            time.sleep(0.02)


def test_a_writer_that_is_killed_leaves_what_it_wrote_before() -> None:
    board = Board(2, size=256)
    assert board.read(1) is None
    for k in range(5):
        assert board.write(1, {"k": k}) and board.read(1) == {"k": k}
    half = 5 % 2  # where it would write next, or the other one: damage both in turn
    for damaged in (half, 1 - half):
        at = board._at(1, damaged) + 20
        before = board._memory[at]
        board._memory[at] = before ^ 1
        assert board.read(1) in ({"k": 4}, {"k": 3})
        board._memory[at] = before
    assert not board.write(1, "x" * 300) and board.read(1) == {"k": 4}
    board.clear(1)
    assert board.read(1) is None and board.read(0) is None


def test_numbers_that_do_not_fit_the_board_are_said_once() -> None:
    core, said = Core(), list[str]()
    colleagues = Colleagues(Board(2, size=32), 1, 1, [])
    colleagues.on_trouble = said.append
    for _ in range(3):
        colleagues.tell(core)
    assert len(said) == 1 and "do not fit" in said[0]


def test_statistics_add_up() -> None:
    source = random.Random(3)
    parts, whole = [Statistics(), Statistics()], Statistics()
    for _ in range(300):
        for target in (source.choice(parts), whole):
            state = source.getstate()
            seconds = source.expovariate(1000)
            target.answered(source.choice((1, 2)), seconds, seconds / 2, seconds * 2, source.random() < 0.1)
            target.executed(source.choice((1, 8)), seconds)
            target.refused(429, source.choice(("", "deadline")), seconds)
            after = source.getstate()
            source.setstate(state)
        source.setstate(after)
    total = Statistics()
    for part in parts:
        total.add(json.loads(json.dumps(part.to_json())))
    a, b = total.to_json(), whole.to_json()
    assert a["latency"][0] == b["latency"][0] and a["latency"][1] == pytest.approx(b["latency"][1])
    assert sorted(a["batches"]) == sorted(b["batches"]) and a["counts"] == b["counts"]
    assert a["durations"] == b["durations"] and a["dropped"] == b["dropped"] and a["failed"] == b["failed"]


def test_a_folder_is_watched(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    write(tmp_path / "a.onnx", 1)
    assert [s.name for s in watcher.accept()] == ["a"] and not watcher.changes()
    write(tmp_path / "b.onnx", 1)
    assert not watcher.changes()  # it might still be written
    assert [s.name for s in watcher.changes().opened] == ["b"]
    os.unlink(tmp_path / "a.onnx")
    assert watcher.changes().gone == [("a", "1")] and not watcher.changes()
    shutil.rmtree(tmp_path)
    assert watcher.changes().gone == [("b", "1")]


def test_a_model_is_replaced_without_a_failed_request(tmp_path: Path) -> None:
    """Programs are swapped while requests come: each answer is of one program as a whole, none fails."""
    paths = []
    for k in (1, 2):
        write(tmp_path / f"{k}.onnx", k)
        paths.append(tmp_path / f"{k}.onnx")
    versions = [open_source(Source("layer", "1", path)) for path in paths]
    wanted = [scaled(1), scaled(2)]
    with Server(Settings(http_port=0), [versions[0]]) as server:
        stop, wrong, counts = threading.Event(), [], [0]

        def ask() -> None:
            with tw.client.Client(server.url) as client:
                while not stop.is_set():
                    y = client.infer("layer", {"x": X})["y"]
                    counts[0] += 1
                    if not any(np.allclose(y, w, rtol=1e-5) for w in wanted):
                        wrong.append(y)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for k in range(40):
            server.call(server.core.add, versions[(k + 1) % 2])
            time.sleep(0.005)
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong and counts[0] > 20


def test_a_store_is_served_while_a_learner_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_STORE_DIR", str(tmp_path))
    model = tw.Model(tw.compile_program(layer_model()))
    with tw.Publisher("policy", model) as publisher:
        served = open_source(Source("policy", store="policy"))
        with Server(Settings(http_port=0), [served]) as server, tw.client.Client(server.url) as client:
            for version in range(1, 30):
                publisher.publish({n: a * np.float32(version) for n, a in WEIGHTS.items()}, version)
                outputs = client.infer("policy", {"x": X})
                assert outputs.weights_version == version
                np.testing.assert_allclose(outputs["y"], scaled(version), rtol=1e-5)


def test_canary(layer: tw.Model) -> None:
    """A share of the requests goes to a new version; when it does worse, all go back by themselves."""

    def failing(x: np.ndarray) -> np.ndarray:
        raise RuntimeError("a defect")

    from tilewright.runtime.specs import InputSpec, OutputSpec
    from tilewright.serve.models import Function

    shapes = [InputSpec("x", "f32", ("n", 4))], [OutputSpec("y", "f32", ("n", 3))]
    bad = Served("layer", "2", Function(failing, *shapes))
    with Server(Settings(http_port=0), [Served("layer", "1", layer)]) as server:
        server.call(server.core.add, bad, 0.3)
        assert server.core.catalogue.versions("layer") == ["1", "2"]
        statuses = []
        with tw.client.Client(server.url) as client:
            for _ in range(400):
                try:
                    statuses.append(client.infer("layer", {"x": X}).model_version)
                except ServeError as error:
                    statuses.append(str(error.status.http))
            assert statuses.count("500") == 50  # as many as it takes to evaluate
            assert set(statuses[-100:]) == {"1"}
            canary = server.core.catalogue.canary("layer")
            assert canary is not None and "failed or came too late" in canary.abandoned
            with pytest.raises(ServeError):
                client.infer("layer", {"x": X}, version="2")  # it still answers those who name it
        good = Served("layer", "3", layer)
        server.call(server.core.remove, "layer", "2")
        server.call(server.core.add, good, 0.3)
        with tw.client.Client(server.url) as client:
            seen = [client.infer("layer", {"x": X}).model_version for _ in range(300)]
            assert 50 < seen.count("3") < 140
            server.call(server.core.catalogue.promote, "layer")
            assert client.infer("layer", {"x": X}).model_version == "3"
