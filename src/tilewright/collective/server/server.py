"""`Server`: the weights of a process, which workers on this machine update and pull through shared memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tilewright.collective.group import Group, join
from tilewright.collective.segment import path_of
from tilewright.collective.server.frames import Frame, decode, encode, whole
from tilewright.collective.server.link import connection
from tilewright.collective.server.log import Log, push_of
from tilewright.collective.server.port import IDLE_SECONDS, Port, open_services
from tilewright.collective.server.shard import Array, Rule, Shard, check_rows
from tilewright.live.transport.address import Address
from tilewright.runtime.layout import aligned_bytes
from tilewright.support.errors import CollectiveError, Error

if TYPE_CHECKING:
    from tilewright.live.store.publisher import Publisher

LOOK_SECONDS = 0.01
"""Seconds between two checks whether a worker has come."""
CONNECT_SECONDS = 2.0
"""Seconds within which a worker must complete its connection."""
GLANCE_SECONDS = 0.5
"""Seconds between two checks whether a worker that waits for weights is still alive."""
READER_SECONDS = 20.0
"""The most seconds that a reader may wait for newer weights in one message."""


class Server:
    """Weights that several workers update. It serves each worker by a thread until it is closed.

    Args:
        name: by which workers connect.
        values: the first weights by name, f32 or f64; they are copied, once.
        workers: how many there will be.
        rule: how gradients update weights.
        staleness: how far a worker may be ahead of the slowest: 0 is synchronous, None has no bound.
        log: a folder for what is pushed; if it has a log, the server goes on where that ends. None: nothing is kept.
        durable: whether pushes are on the disk before they are answered.
        port: where workers and readers of other machines connect, over TCP; several servers may have one.
        message_limit: the most bytes of a message from these; None: twice the weights' bytes plus 64 MB.
        publisher: of a weight store whose parameters have these names: weights are published every `every` steps,
            without another copy.
        directory: where workers and server find each other on this machine.

    Attributes:
        failure: the error of the last publication; None if it succeeded.
    """

    def __init__(
        self,
        name: str,
        values: Mapping[str, Array],
        workers: int,
        rule: Rule,
        *,
        staleness: int | None = 0,
        log: str | os.PathLike[str] | None = None,
        durable: bool = False,
        publisher: Publisher | None = None,
        every: int = 1,
        directory: str | os.PathLike[str] | None = None,
        port: Port | None = None,
        message_limit: int | None = None,
    ) -> None:
        self.name = name
        self.shard = Shard({n: _copied(np.asarray(v)) for n, v in values.items()}, workers, rule, staleness)
        self._directory = directory
        self._publisher = publisher
        self._every = max(1, every)
        self._changed = threading.Condition(threading.RLock())
        self.failure: Error | None = None
        self._closed = False
        self._port = port
        self._limit = message_limit or 2 * sum(v.nbytes for v in self.shard.values.values()) + (64 << 20)
        self._groups: dict[int, Group] = {}
        wanted = None if publisher is None else {p.name for p in publisher.params}
        if wanted is not None and wanted != set(values):
            raise CollectiveError(
                "the publisher has other weights",
                where=f"server {name!r}",
                expected=sorted(wanted)[:8],
                got=sorted(values)[:8],
            )
        self._log = None if log is None else Log(log, durable=durable)
        if self._log is not None:
            self._log.restore(self.shard)
        self._threads = [
            threading.Thread(target=self._serve, args=(w,), name=f"tilewright-server-{w}", daemon=True)
            for w in range(workers)
        ]
        for thread in self._threads:
            thread.start()
        self._end_services: Callable[[], None] = _nothing
        if port is not None:
            self._end_services = open_services(port, name, workers, self._limit, self._answered)

    @property
    def address(self) -> str:
        """The text `tcp://host:port/name` by which workers of other machines connect. `host` is as the caller passed it
        to the port, so that they must be able to reach it by that name. Raises CollectiveError if the server has no
        port."""
        if self._port is None:
            raise CollectiveError("it has no port", where=f"server {self.name!r}", hint="Server(..., port=Port(...))")
        return str(Address(self._port.host, self._port.port, self.name))

    def commit(self) -> int:
        """Publish the current weights by the server's publisher; returns the number of their version. Raises
        CollectiveError if the server has no publisher."""
        if self._publisher is None:
            raise CollectiveError("it has no publisher", where=f"server {self.name!r}")
        with self._changed:
            version = self._publisher.publish(self.shard.values)
            self.failure = None
            return version

    def values(self) -> dict[str, Array]:
        """A copy of the current weights by name; no worker changes them while they are copied."""
        with self._changed:
            return {name: value.copy() for name, value in self.shard.values.items()}

    def close(self) -> None:
        """Disconnect workers and readers, end the server's threads, and close its log, whose files remain for the next
        server."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            groups = list(self._groups.values())
        self._end_services()
        for group in groups:
            group.abandon()
        for thread in self._threads:
            thread.join()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- workers -------------------------------------------------------------------------------------------------------

    def _serve(self, worker: int) -> None:
        """Answer the messages of the worker with this number until the server closes; if the worker dies, those of a
        worker that connects in its place. Runs in a thread of its own."""
        name = connection(self.name, worker)
        path = path_of(name, self._directory)
        while not self._closed:
            if not path.exists():
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, LOOK_SECONDS)
                continue
            try:
                group = join(name, 0, 2, timeout=CONNECT_SECONDS, directory=self._directory)
            except CollectiveError:
                path.unlink(missing_ok=True)  # of a worker that died; one that lives tries once more
                continue
            group.timeout = IDLE_SECONDS
            with group:
                with self._changed:
                    self._groups[worker] = group
                try:
                    while not self._closed:
                        group.send(np.frombuffer(encode(self._answered(group.message(1), worker)), np.uint8), 1)
                except CollectiveError:
                    continue
                finally:
                    with self._changed:
                        self._groups.pop(worker, None)

    def _answered(self, data: Array, worker: int | None, gone: Callable[[], bool] = lambda: False) -> Frame:
        try:
            frame = decode(data)
            return self._told(frame, gone) if worker is None else self._answer(frame, worker, gone)
        except Exception as error:  # it is the worker's, which has to know
            return Frame("error", {"text": str(error)[:2000]}, {})

    def _told(self, frame: Frame, gone: Callable[[], bool]) -> Frame:
        """The answer to a reader's message: all weights, or none if they are still at the step that it has read, after
        waiting for a time that it states, or until `gone` returns True, since the reader has left."""
        if frame.kind != "newer":
            raise CollectiveError("no such message of a reader", where=f"server {self.name!r}", got=frame.kind[:40])
        read, until = (
            whole(frame.facts, "read"),
            time.monotonic() + min(whole(frame.facts, "wait") / 1e3, READER_SECONDS),
        )
        with self._changed:
            self._wait(lambda: self.shard.steps + 1 != read or time.monotonic() >= until, gone)
            newer = self.shard.steps + 1 != read
            arrays = {name: value.copy() for name, value in self.shard.values.items()} if newer else {}
            return Frame("weights", {"steps": self.shard.steps}, arrays)

    def _wait(self, condition: Callable[[], bool], gone: Callable[[], bool]) -> None:
        """Wait, with the lock released, until `condition()` is true or `gone()` says that the peer has left. Raises
        CollectiveError if the server is closed."""
        while not (self._changed.wait_for(lambda: self._closed or condition(), GLANCE_SECONDS) or gone()):
            pass
        if self._closed:
            raise CollectiveError("the server is closed", where=f"server {self.name!r}")

    def _answer(self, frame: Frame, worker: int, gone: Callable[[], bool]) -> Frame:
        match frame.kind:
            case "hello":
                with self._changed:
                    return Frame("hello", {"clock": self.shard.clocks[worker]}, {})
            case "sizes":
                return Frame("sizes", {n: len(v) if v.ndim else 1 for n, v in self.shard.values.items()}, {})
            case "push":
                self._push(frame, worker)
                return Frame("done", {}, {})
            case "pull":
                return self._pull(frame, worker, gone)
        raise CollectiveError("no such message", where=f"server {self.name!r}", got=frame.kind[:40])

    def _push(self, frame: Frame, worker: int) -> None:
        push = push_of(frame)
        if push.worker != worker:
            raise CollectiveError(
                "another worker's push", where=f"server {self.name!r}", expected=worker, got=push.worker
            )
        with self._changed:
            self.shard.check(push)
            if push.clock == self.shard.clocks[worker] and self._log is not None:
                self._log.append(push, self.shard)
            moved = self.shard.push(push)
            if self._log is not None and self._log.is_long:
                self._log.snapshot(self.shard)
            if moved and self._publisher is not None and self.shard.steps % self._every == 0:
                try:
                    self.commit()
                except Error as error:  # the push was taken, whatever becomes of its publication
                    self.failure = error
            self._changed.notify_all()

    def _pull(self, frame: Frame, worker: int, gone: Callable[[], bool]) -> Frame:
        names = frame.facts.get("names")
        room = self._limit
        with self._changed:
            clock = self.shard.clocks[worker]
            self._wait(lambda: self.shard.may_pull(clock), gone)
            arrays: dict[str, Array] = {}
            for name in self.shard.values if names is None else dict.fromkeys(names):
                if name not in self.shard.values:
                    raise CollectiveError("no such weight", where=f"server {self.name!r}", got=str(name)[:80])
                value, numbers = self.shard.values[name], frame.arrays.get(f"rows {name}")
                if numbers is not None:
                    check_rows(numbers, value, f"weight {name!r}")
                room -= value.nbytes if numbers is None else len(numbers) * value[:1].nbytes
                if room < 0:
                    raise CollectiveError("too many rows", where=f"server {self.name!r}", expected=self._limit)
                arrays[name] = value.copy() if numbers is None else value[numbers]
            return Frame("weights", {"clocks": list(self.shard.clocks), "steps": self.shard.steps}, arrays)


def _nothing() -> None:
    pass


def _copied(value: Array) -> Array:
    """A contiguous copy of `value` at an address that has the alignment of native code."""
    memory = aligned_bytes(max(value.nbytes, 1))[: value.nbytes].view(value.dtype).reshape(value.shape)
    np.copyto(memory, value)
    return memory


__all__ = ["Server"]
