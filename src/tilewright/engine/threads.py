"""The queues and workers of an engine in Python: the reference for the native ones, and the only ones on systems
without futexes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from queue import SimpleQueue

from tilewright.engine.queues import Operation, Variable, enter, leave
from tilewright.engine.timeline import Recording
from tilewright.support.errors import EngineError


class Threads:
    """The core of an engine in Python; `Engine` is its public interface.

    Args:
        workers: how many threads call `work`; 0: operations run in `push`.
        call: calls an operation's function.
    """

    def __init__(self, workers: int, call: Callable[[Operation], None]) -> None:
        self._workers = workers
        self._call = call
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._heap: list[Operation] = []
        self._tickets: SimpleQueue[bool] = SimpleQueue()
        self._pushed = 0
        self._left = 0
        self._stopped = False
        self._recording: Recording | None = None

    def push(self, operation: Operation, deletes: Variable | None) -> None:
        """Enqueue an operation. Raises EngineError if the engine was stopped or a variable is deleted."""
        with self._lock:
            if self._stopped:
                raise EngineError("the engine is closed", where=named(operation))
            refuse_deleted(operation)
            if deletes is not None:
                deletes.deleted = True
            operation._number = self._pushed
            self._pushed += 1
            ready = enter(operation)
            if ready and self._workers:
                heappush(self._heap, operation)
        if ready:
            if self._workers:
                self._tickets.put(True)
            else:
                self._run(operation, 0)

    def work(self, number: int) -> None:
        """Run operations until the engine is stopped."""
        while self._tickets.get():
            with self._lock:
                operation = heappop(self._heap)
            self._run(operation, number)

    def _run(self, operation: Operation, worker: int) -> None:
        """Call the function of a ready operation on the worker number `worker`, then start the operations that waited
        for it."""
        recording = self._recording
        begin = time.perf_counter_ns() if recording else 0
        operation._failure = operation.inherited
        if operation._failure is None:
            self._call(operation)
        if recording:
            recording.add(operation, worker, begin, time.perf_counter_ns())
        operation.function = nothing  # what the function holds on to may go
        with self._lock:
            ready = leave(operation)
            operation._ended = True
            self._left += 1
            if operation._finished is not None:
                operation._finished.set()
            if self._left == self._pushed:
                self._idle.notify_all()
            if self._workers:
                for one in ready:
                    heappush(self._heap, one)
        for one in ready:
            if self._workers:
                self._tickets.put(True)
            else:
                self._run(one, worker)

    def wait(self, operation: Operation | None, timeout: float | None) -> bool:
        """Wait for `operation`, or for all if it is None, at most `timeout` seconds; returns whether it has ended."""
        if operation is None:
            with self._idle:
                return self._idle.wait_for(lambda: self._left == self._pushed, timeout)
        with self._lock:
            finished = None
            if not operation.done:
                finished = operation._finished = operation._finished or threading.Event()
        return finished is None or finished.wait(timeout)

    def record(self, recording: Recording | None) -> None:
        self._recording = recording

    @property
    def pending(self) -> int:
        return self._pushed - self._left

    def stop(self) -> None:
        """Let all calls of `work` return. No operation may be pending."""
        with self._lock:
            self._stopped = True
        for _ in range(self._workers):
            self._tickets.put(False)


def refuse_deleted(operation: Operation) -> None:
    """Raise EngineError if an operation names a deleted variable."""
    for v in (*operation.reads, *operation.writes):
        if v.deleted:
            raise EngineError("the variable is deleted", where=named(operation), got=v)


def nothing() -> None:
    """Do nothing: the function of operations that only wait for variables."""


def named(operation: Operation) -> str:
    """The name of an operation in error messages."""
    return f"operation {operation.number}" + (f" ({operation.name})" if operation.name else "")
