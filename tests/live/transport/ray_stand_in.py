"""The part of Ray that `ray_nodes.py` uses, in this process: actors are objects whose methods run in threads."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock


class RayError(Exception):
    """The error that Ray raises where something cannot be delivered."""


class Actor:
    """A handle: `actor.method.remote(...)` gives a reference to the result."""

    def __init__(self, ray: Ray, created: Any, options: dict[str, Any]) -> None:
        self._ray, self._object, self.options, self.alive = ray, created, options, True

    def __getattr__(self, name: str) -> Any:
        return mock.Mock(remote=lambda *args: self._ray.call(self, getattr(self._object, name), args))


class Kind:
    """The result of `ray.remote(cls)`."""

    def __init__(self, ray: Ray, cls: type, options: dict[str, Any]) -> None:
        self._ray, self._cls, self._options = ray, cls, options

    def options(self, **options: Any) -> Kind:
        return Kind(self._ray, self._cls, options)

    def remote(self, *args: Any) -> Actor:
        actor = Actor(self._ray, self._cls(*args), self._options)
        self._ray.actors.append(actor)
        return actor


class Ray(ModuleType):
    """The module. `alive` are the ids of the nodes there are, `actors` all that were made."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.alive = {"one": True}
        self.actors: list[Actor] = []
        self.puts: list[Any] = []
        self.exceptions = mock.Mock(RayError=RayError)
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(8)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def call(self, actor: Actor, method: Any, args: tuple[Any, ...]) -> Future[Any]:
        if not actor.alive:
            return self._failed(RayError("the actor has died\nin a long story"))
        if inspect.iscoroutinefunction(method):
            return asyncio.run_coroutine_threadsafe(method(*args), self._loop)
        return self._threads.submit(method, *args)

    def _failed(self, error: Exception) -> Future[Any]:
        result: Future[Any] = Future()
        result.set_exception(error)
        return result

    def remote(self, cls: type) -> Kind:
        return Kind(self, cls, {})

    def is_initialized(self) -> bool:
        return bool(self.alive)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": node, "Alive": alive} for node, alive in self.alive.items()]

    def put(self, value: Any) -> Future[Any]:
        result: Future[Any] = Future()
        result.set_result(value)
        self.puts.append(value)
        return result

    def get(self, result: Future[Any] | Sequence[Future[Any]], timeout: float | None = None) -> Any:
        if not isinstance(result, Future):
            return [self.get(one, timeout) for one in result]
        try:
            return result.result(timeout)
        except TimeoutError as error:
            raise RayError("it takes too long") from error

    def wait(self, result: Sequence[Future[Any]], *, num_returns: int, timeout: float) -> None:
        assert num_returns == len(result)
        for one in result:
            one.exception(timeout)

    def kill(self, actor: Actor) -> None:
        actor.alive = False

    def end(self) -> None:
        self._threads.shutdown(wait=False)
        self._loop.call_soon_threadsafe(self._loop.stop)


@contextmanager
def ray_in_this_process() -> Iterator[Ray]:
    """`import ray` gives the stand-in."""
    ray = Ray()
    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node_id, soft: (node_id, soft)  # type: ignore[attr-defined]
    modules = {"ray": ray, "ray.util": ModuleType("ray.util"), "ray.util.scheduling_strategies": strategies}
    with mock.patch.dict(sys.modules, modules):
        try:
            yield ray
        finally:
            ray.end()
