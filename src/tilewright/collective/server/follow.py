"""`follow`: keeps a weight store of this node up to date with parameter servers, on this or other machines."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.collective.server.frames import Frame, whole
from tilewright.collective.server.link import Access, Links
from tilewright.collective.server.shard import Array
from tilewright.collective.server.worker import joined
from tilewright.support.errors import CollectiveError, Error

if TYPE_CHECKING:
    from tilewright.live.store.publisher import Publisher

WAIT_MS = 500
"""Milliseconds that a server waits for a newer step before it answers that there is none."""


class Follower:
    """A thread, started by `follow`, that publishes the weights of servers into a store of this node whenever they
    change.

    Attributes:
        steps: for each server, the step of the weights published last; -1 before the first.
        failure: the error of the last attempt; None if it succeeded.
    """

    def __init__(self, links: Links, publisher: Publisher) -> None:
        self._links = links
        self._publisher = publisher
        self._parts: list[dict[str, Array]] = [{} for _ in links.names]
        self._read = [-1] * len(links.names)
        self._changed = threading.Condition()
        self._closed = False
        self.steps = [-1] * len(links.names)
        self.failure: Error | None = None
        self._thread = threading.Thread(target=self._run, name="tilewright-follower", daemon=True)
        self._thread.start()

    def wait(self, steps: int, timeout: float | None = None) -> bool:
        """Wait, at most `timeout` seconds, until the store has at least `steps` steps of every server; returns whether
        it has."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or min(self.steps) >= steps, timeout)
            return min(self.steps) >= steps

    def close(self) -> None:
        """End the thread that publishes, after its current attempt; the store keeps the version published last."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closed:
            failure: Error | None = None
            try:
                self._look()
            except Error as error:
                failure = error
            with self._changed:
                self.failure = failure
                if failure is None and self.steps != self._read:
                    self.steps = [*self._read]
                    self._changed.notify_all()
                elif failure is not None:
                    self._changed.wait_for(lambda: self._closed, 0.05)
        self._links.close()

    def _look(self) -> None:
        """Wait for newer weights of any server, read the weights of all servers that have newer ones, and publish all.
        Servers with fewer steps than others are read again."""
        waits = [WAIT_MS, *[0] * (len(self._read) - 1)]
        newer = [self._newer(k, wait) for k, wait in enumerate(waits)]
        if any(newer):
            for k, steps in enumerate(self._read):
                if steps < max(self._read):
                    self._newer(k, WAIT_MS)
            self._publisher.publish(joined(self._parts))

    def _newer(self, server: int, wait: int) -> bool:
        answer = self._links.call(server, Frame("newer", {"read": self._read[server] + 1, "wait": wait}, {}))
        if not answer.arrays:
            return False
        self._parts[server] = {name: array.copy() for name, array in answer.arrays.items()}
        self._read[server] = whole(answer.facts, "steps")
        return True


def follow(
    names: str | Sequence[str],
    publisher: Publisher,
    *,
    timeout: float = 60.0,
    secret: str | bytes | None = None,
    tls: ssl.SSLContext | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Follower:
    """Publish the weights of servers into a store of this node whenever they change.

        publisher = tw.Publisher("policy", model)
        follower = follow(["tcp://a:7071/policy", "tcp://b:7071/policy"], publisher, secret=secret)

    Of servers that share the weights by `ranges` the parts are put together; they may be of neighbouring steps.

    Args:
        names: addresses of servers with a port.
        timeout: seconds to wait for an answer; errors are stored in `failure`, and the request is repeated.
        secret, tls: as of the servers' ports.
    """
    listed = [names] if isinstance(names, str) else list(names)
    if not all(name.startswith("tcp:") for name in listed):
        hint = "a server of this node publishes by itself: Server(..., publisher=...)"
        raise CollectiveError("servers are followed over TCP", where="follow", got=listed[:4], hint=hint)
    return Follower(Links(listed, None, timeout, Access(directory, secret, tls)), publisher)


__all__ = ["Follower", "follow"]
