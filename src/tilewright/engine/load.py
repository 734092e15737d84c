"""`loading`: a generator of batches that an engine's workers prepare while earlier ones are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, cast

from tilewright.engine.engine import Engine
from tilewright.engine.queues import Operation, Variable

T = TypeVar("T")
_END = object()


def loading(batches: Iterable[T], buffered: int = 2, engine: Engine | None = None) -> Iterator[T]:
    """Yield the batches in their order, of which up to `buffered` are made in advance, one at a time.

        for x, y in tw.engine.loading(read(files)):
            step(x, y)

    Args:
        engine: the engine whose workers make them; None: a worker of its own, which ends with the batches.

    An exception of the iterator `batches` is raised where its batch would come.
    """
    source, state = iter(batches), Variable("batches")
    owned = engine is None
    workers = engine or Engine(1)

    def begun() -> Operation:
        return workers.push(lambda: next(source, cast(Any, _END)), writes=[state], name="load")

    waiting = deque(begun() for _ in range(max(1, buffered)))
    try:
        while True:
            batch = workers.wait(waiting.popleft())
            if batch is _END:
                return
            waiting.append(begun())
            yield batch
    finally:
        if owned:
            workers.close()


__all__ = ["loading"]
