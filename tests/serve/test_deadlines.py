"""Deadlines in a running server: batches form, what cannot be in time is refused at once, and counted."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.specs import InputSpec, OutputSpec
from tilewright.serve.core import Core, Options, computed
from tilewright.serve.errors import ServeError, Status
from tilewright.serve.models import Function, Served
from tilewright.serve.server import Server, Settings

from .conftest import WEIGHTS, echo, expected


def batched(layer: tw.Model, **options: Any) -> Served:
    return Served("layer", "1", layer, **options)


def test_rows_meet_in_batches_and_answers_are_each_ones_own(layer: tw.Model) -> None:
    served = batched(layer, max_batch=16)
    source = np.random.default_rng(0)
    requests = [[source.standard_normal((n, 4)).astype(np.float32)] for n in (1, 3, 2)]
    for (x,), result in zip(requests, computed(served, requests), strict=True):
        assert not isinstance(result, ServeError)
        np.testing.assert_allclose(result[0][0], expected(x), rtol=1e-5, atol=1e-6)


def test_batches_under_load(layer: tw.Model) -> None:
    """With a lane that is busy, requests that wait go together."""
    served = batched(layer, max_batch=32)
    gate = threading.Event()
    blocker = echo("blocker", "f32", lambda x: (gate.wait(10), x)[1])
    blocker.estimates.observe(1, 0.01)
    core = Options(inline=0.0, lanes=1)
    with Server(Settings(http_port=0, core=core), [served, blocker]) as server, ThreadPoolExecutor(24) as threads:
        client = tw.client.Client(server.url)
        first = threads.submit(client.infer, "blocker", {"x": np.ones(1, np.float32)})
        time.sleep(0.1)
        xs = [np.full((1, 4), k, np.float32) for k in range(20)]
        answers = [threads.submit(client.infer, "layer", {"x": x}) for x in xs]
        time.sleep(0.3)
        gate.set()
        for x, answer in zip(xs, answers, strict=True):
            np.testing.assert_allclose(answer.result()["y"], expected(x), rtol=1e-5, atol=1e-5)
        first.result()
        assert served.statistics.executions <= 3
        assert max(served.statistics.batches) >= 10
        client.close()


def test_what_cannot_be_in_time_is_refused_at_once() -> None:
    slow = echo("slow", "f32", lambda x: (time.sleep(0.2), x)[1])
    slow.estimates.observe(1, 0.2)
    with Server(Settings(http_port=0), [slow]) as server, tw.client.Client(server.url) as client:
        x = {"x": np.ones(1, np.float32)}
        start = time.monotonic()
        with pytest.raises(tw.Error, match="deadline") as error:
            client.infer("slow", x, timeout=0.05)
        assert time.monotonic() - start < 0.15
        assert error.value.status is Status.DROPPED  # type: ignore[attr-defined]
        assert client.infer("slow", x, timeout=5.0)["y"].tolist() == [1.0]
        assert slow.statistics.dropped == {"deadline": 1}
        assert client.statistics("slow")[0]["inference_stats"]["fail"]["count"] == 1


def test_excess_in_flight_is_503() -> None:
    slow = echo("slow", "f32", lambda x: (time.sleep(0.3), x)[1])
    with Server(Settings(http_port=0, core=Options(in_flight=2)), [slow]) as server, ThreadPoolExecutor(6) as threads:
        slow.estimates.observe(1, 0.01)
        client = tw.client.Client(server.url)

        def ask(_: int) -> int:
            try:
                client.infer("slow", {"x": np.ones(1, np.float32)})
            except ServeError as error:
                return error.status.http
            return 200

        seen = sorted(threads.map(ask, range(6)))
        assert seen.count(200) == 2 and set(seen) == {200, 503}
        client.close()


def test_a_request_that_fails_fails_alone() -> None:
    """The other requests of the batch are answered."""

    def positive(x: np.ndarray) -> np.ndarray:
        if (x < 0).any():
            raise ValueError("negative")
        return x

    created = Served("f", "1", Function(positive, [InputSpec("x", "f32", ("n",))], [OutputSpec("y", "f32", ("n",))]))
    results = computed(created, [[np.array([v], np.float32)] for v in (1, -1, 2)])
    assert [isinstance(r, ServeError) for r in results] == [False, True, False]
    assert results[1].status is Status.INTERNAL  # type: ignore[union-attr]


def test_weights_change_between_requests(layer_path: Any) -> None:
    """Each answer is of one version of the weights as a whole, and says of which."""
    model = tw.Model(tw.compile_program(layer_path))
    with Server(Settings(http_port=0), [Served("layer", "1", model)]) as server, tw.client.Client(server.url) as client:
        x = np.ones((1, 4), np.float32)
        for version in range(1, 20):
            weights = {name: array * version for name, array in WEIGHTS.items()}
            model.update(weights, version=version)
            outputs = client.infer("layer", {"x": x})
            assert outputs.weights_version == version
            np.testing.assert_allclose(outputs["y"], expected(x, weights), rtol=1e-5)


def test_a_core_takes_nothing_once_it_ends(layer: tw.Model) -> None:
    core = Core()
    core.add(batched(layer))
    core.accepting = False
    got: list[Any] = []
    from tilewright.serve.requests import Request

    core.infer(Request("layer", {"x": np.ones((1, 4), np.float32)}, time.monotonic()), got.append)
    assert got[0].status is Status.UNAVAILABLE
    core.close()


def test_time_is_reserved_for_what_batches_do_not_see() -> None:
    """A tenth of a timeout, more while the loop is slow to hear of finished batches, and never more than half."""
    core = Core()
    assert core._reserve(0.02) == pytest.approx(0.002)
    assert core._reserve(float("inf")) == 0.0
    core._lag = 0.001
    assert core._reserve(0.02) == pytest.approx(0.005)
    core._lag = 1.0
    assert core._reserve(0.02) == pytest.approx(0.01)
    core.close()
