"""Ray Serve: a deployment whose replicas share one copy of the weights on each node and batch by deadlines.

    from ray import serve
    from tilewright.serve.ray import deployment

    app = deployment("policy.tw", promise=0.02, ray_actor_options={"num_cpus": 1},
                     autoscaling_config={"min_replicas": 1, "max_replicas": 8}).bind()
    handle = serve.run(app)
    outputs = handle.remote({"obs": obs}).result()

Ray places, starts and scales replicas. A node's first replica publishes the model in the node's weight store, and all
others attach; or every replica attaches to a store that exists already (`store=`), which a learner publishes to and
`tilewright.ray_weights` brings to each node. Over HTTP a replica takes the bodies of the Open Inference Protocol.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tilewright
from tilewright.live.store.publisher import Publisher
from tilewright.runtime.model import Model
from tilewright.runtime.runner import Runner
from tilewright.serve.core import Core, Options
from tilewright.serve.errors import ServeError
from tilewright.serve.models import MAX_BATCH
from tilewright.serve.opening import Source, load, served
from tilewright.serve.protocol import rest
from tilewright.serve.requests import Answer, Request
from tilewright.support.digest import blake2b
from tilewright.support.errors import MissingPackageError, StoreError

_TIMEOUT_SECONDS = 60.0
"""Seconds that a replica waits for the node's first one to publish."""


class Replica:
    """The Ray actor of a deployment: it serves one model, attached to the node's weight store.

    Args:
        model: a file, .onnx or .tw, that is there on each node; its bytes, of a .tw file; or None with `store`.
        promise: seconds in which a request must be answered.
        lanes: batches at once.
    """

    def __init__(
        self,
        model: str | bytes | None = None,
        *,
        store: str | None = None,
        promise: float | None = None,
        max_batch: int = MAX_BATCH,
        threads: int = 1,
        lanes: int = 1,
    ) -> None:
        name = store or "model"
        self._publisher: Publisher | None = None
        runner = self._attached(model, store, threads)
        source = Source(name, store=name, promise=promise, max_batch=max_batch, threads=threads)
        self._served = served(source, runner)
        self._core = Core(Options(lanes=lanes))
        self._core.add(self._served)

    def _attached(self, model: str | bytes | None, store: str | None, threads: int) -> Runner:
        """Attach this actor to the node's store `store`, or to the store of `model`, which the node's first replica
        creates, for calls of `threads` threads; returns what runs the model."""
        if store is not None:
            return tilewright.attach(store, threads, timeout=_TIMEOUT_SECONDS)
        if model is None:
            raise ServeError("a replica wants a model or a store")
        data = model if isinstance(model, bytes) else Path(model).read_bytes()
        name = f"serve.ray.{blake2b(data).hexdigest()[:24]}"
        try:
            return tilewright.attach(name, threads)
        except StoreError:
            pass  # there is none yet
        try:
            self._publisher = Publisher(name, _opened(model, threads))
        except StoreError:  # another replica is making it
            return tilewright.attach(name, threads, timeout=_TIMEOUT_SECONDS)
        return tilewright.attach(name, threads)

    async def infer(
        self, inputs: Mapping[str, Any], *, timeout: float | None = None, priority: int = 0
    ) -> dict[str, Any]:
        """The outputs by name for one request with `inputs` by name; `priority` is 1 for requests that come first.
        Raises ServeError if it is refused, or would not be answered within `timeout` seconds."""
        request = Request(self._served.name, inputs, time.monotonic(), timeout=timeout, priority=priority)
        return dict((await self._answer(request)).outputs)

    async def _answer(self, request: Request) -> Answer:
        future: asyncio.Future[Answer | ServeError] = asyncio.get_running_loop().create_future()

        def done(result: Answer | ServeError) -> None:
            if not future.done():
                future.set_result(result)

        self._core.infer(request, done)
        result = await future
        if isinstance(result, ServeError):
            raise result
        return result

    async def __call__(self, request: Any) -> Any:
        """Answer a request: arrays by name from a handle of Ray Serve, or an HTTP request whose body is of the Open
        Inference Protocol."""
        if isinstance(request, Mapping):
            return await self.infer(request)
        from starlette.responses import Response

        try:
            body, headers = await request.body(), dict(request.headers)
            parsed = rest.parse_infer(self._served.name, "", headers, body, time.monotonic())
            answer, length = rest.answer_body(await self._answer(parsed.request), parsed)
        except ServeError as error:
            return Response(rest.error_body(error), error.status.http, media_type="application/json")
        extra = {} if length is None else {"Inference-Header-Content-Length": str(length)}
        kind = "application/json" if length is None else "application/octet-stream"
        return Response(answer, 200, extra, kind)

    def statistics(self) -> dict[str, Any]:
        """The replica's statistics, by name: requests answered, executions, requests dropped, the weights' version, and
        whether it publishes to the node's store."""
        s = self._served.statistics
        return {
            "answered": s.success.count, "executions": s.executions, "dropped": dict(s.dropped),
            "weights_version": self._served.weights_version, "publishes": self._publisher is not None,
        }  # fmt: skip

    def check_health(self) -> None:
        """Raise an error if the store is gone."""
        _ = self._served.weights_version


def _opened(model: str | bytes, threads: int) -> Model:
    if isinstance(model, bytes):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.tw"
            path.write_bytes(model)
            return Model.load(path, threads, keep_weights=True)
    runner = load(Source("model", path=Path(model), threads=threads))
    assert isinstance(runner, Model)
    return runner


def deployment(
    model: str | bytes | None = None,
    *,
    store: str | None = None,
    promise: float | None = None,
    max_batch: int = MAX_BATCH,
    threads: int = 1,
    lanes: int = 1,
    **options: Any,
) -> Any:
    """Create a deployment of Ray Serve, to be bound and run. `model`, `store`, `promise`, `max_batch`, `threads` and
    `lanes` are the arguments of its `Replica`s. `options` are Ray's own: `num_replicas`, `autoscaling_config`,
    `ray_actor_options`, `max_ongoing_requests` and others. Raises MissingPackageError without Ray Serve."""
    try:
        from ray import serve
    except ImportError:
        raise MissingPackageError("this needs Ray Serve", hint="pip install 'ray[serve]'") from None
    arguments = {
        "model": model, "store": store, "promise": promise, "max_batch": max_batch, "threads": threads, "lanes": lanes
    }  # fmt: skip
    options.setdefault("max_ongoing_requests", 4 * max_batch)  # as many wait here, where deadlines are known
    created = serve.deployment(**options)(Replica)
    return _Bound(created, arguments)


class _Bound:
    """A deployment and the arguments of its replicas."""

    def __init__(self, created: Any, arguments: Mapping[str, Any]) -> None:
        self.deployment, self._arguments = created, arguments

    def options(self, **options: Any) -> _Bound:
        """A copy with other options of Ray."""
        return _Bound(self.deployment.options(**options), self._arguments)

    def bind(self) -> Any:
        """The application for `serve.run`."""
        return self.deployment.bind(**self._arguments)


__all__ = ["Replica", "deployment"]
