"""A second thread for work that releases the GIL, such as LLVM's.

    with Background() as background:
        later = background.submit(lambda: compile_llvm(text, target))
        ...                                    # plan the next kernel
        code = later()

Jobs are done one after another, in the order in which they came.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

from tilewright.support.machine import usable_cpus

T = TypeVar("T")

SWITCH_SECONDS = 0.0003
"""The longest time in seconds that a thread may hold the GIL while another waits for it. Between two calls of LLVM the
second thread runs a few lines of Python, and would wait for the default of 5 ms each time."""


class Background:
    """A thread that does jobs in the background, with its queue; leaving the context waits for the running job and
    drops the rest. If the process has only one CPU, or no thread can be started, each job runs when it is submitted."""

    def __init__(self, cpus: float | None = None) -> None:
        self._several = (usable_cpus() if cpus is None else cpus) > 1
        self._switches: AbstractContextManager[None] = quick_switches() if self._several else nullcontext()
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left = False
        self._begun = self._done = 0

    def submit(self, work: Callable[[], T]) -> Callable[[], T]:
        """Submit a job. The returned function waits for it, and returns its result or raises its exception."""
        job = _Job(work)
        if not self._several:
            job.run()
            return job.result
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="tilewright background", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread is to be had
                job.run()
                return job.result
            self._thread = thread
        self._begun += 1
        self._jobs.put(job)  # type: ignore[arg-type]  # of any result
        return job.result

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._left:
                job.drop()
            else:
                job.run()
            with _changed:
                self._done += 1
                _changed.notify_all()

    def __enter__(self) -> Background:
        with _changed:
            _open.append((threading.get_ident(), self))
        self._switches.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        self._switches.__exit__(None, None, None)
        with _changed:
            _open.remove((threading.get_ident(), self))


class _Job(Generic[T]):
    """A function to be called by the thread. `result` waits until it has been called or dropped, and returns its result
    or raises its exception."""

    __slots__ = ("_done", "_error", "_result", "_work")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._result: T
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        self._done.set()

    def drop(self) -> None:
        self._error = RuntimeError("not done: its block was left before")
        self._done.set()

    def result(self) -> T:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result


def all_done(seconds: float = 1.0) -> bool:
    """Wait until the jobs of this thread's contexts are done. True if they are, and no other thread is in such a
    context, so that no thread holds a lock of LLVM or the compiler."""
    with _changed:
        return _changed.wait_for(
            lambda: all(owner == threading.get_ident() and b._begun == b._done for owner, b in _open), seconds
        )


_changed = threading.Condition()
_open: list[tuple[int, Background]] = []
"""The active contexts, each with its thread."""

_lock = threading.Lock()
_inside = 0
_before = 0.0


@contextmanager
def quick_switches() -> Iterator[None]:
    """Within the context, threads hand over the GIL sooner; afterwards the process has its own setting again."""
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, SWITCH_SECONDS))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                sys.setswitchinterval(_before)
