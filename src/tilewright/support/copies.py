"""Distributes independent jobs to forked copies of this process, for work that holds the GIL.

    made = share(count, own, copied, processes=2)

A copy inherits all that a job depends on, so that nothing has to be sent to it; its results come back as bytes. All
processes take jobs from one queue, which is a pipe: a read of two bytes is atomic, and gives each job to one process.
If a copy fails, dies or is silent for long (it may have inherited a lock that another thread held), the caller does its
unfinished jobs itself; no copy remains when `share` returns or raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator

MAX_JOBS = 30_000
"""The largest number of jobs that are shared: their indices fit a pipe's 64 KiB."""
MAX_SILENCE = 10.0
"""The seconds of silence after which a copy is abandoned; four times the caller's longest job if that is more."""

_JOB = struct.Struct("<H")
_RESULT = struct.Struct("<II")


def share(count: int, own: Callable[[int], None], copied: Callable[[int], bytes], processes: int) -> dict[int, bytes]:
    """Do the jobs 0 to `count - 1`, each in one process.

    Args:
        own: does a job in this process.
        copied: does a job in a forked copy of this process; returns its result.
        processes: how many processes do jobs, this one included.

    Returns the copies' results, by job. A job without a result that was not done by `own` has failed in its copy.
    Raises what `own` raises.
    """
    if not 0 < count <= MAX_JOBS:
        return {}
    jobs, end = os.pipe()
    copies: list[_Copy] = []
    try:
        with contextlib.closing(os.fdopen(end, "wb", closefd=True)) as queue:
            queue.write(b"".join(map(_JOB.pack, range(count))))
        for _ in range(min(processes, count) - 1):
            try:
                copies.append(_Copy(jobs, copied))
            except OSError:  # no process or pipe is to be had
                break
        longest = 0.0
        for k in _queued(jobs):
            began = time.monotonic()
            own(k)
            longest = max(longest, time.monotonic() - began)
        producers: dict[int, bytes] = {}
        for copy in copies:
            producers |= copy.finished(max(MAX_SILENCE, 4 * longest))
        return producers
    finally:
        os.close(jobs)
        for copy in copies:
            copy.end()


def _queued(jobs: int) -> Iterator[int]:
    """Yield the jobs that this process takes from the queue, until it is empty."""
    while len(word := os.read(jobs, _JOB.size)) == _JOB.size:
        yield _JOB.unpack(word)[0]


class _Copy:
    """A forked copy, and a thread that reads its results."""

    def __init__(self, jobs: int, work: Callable[[int], bytes]) -> None:
        source, sink = os.pipe()
        try:
            with warnings.catch_warnings():
                # Of other threads, whose locks a copy may inherit: it is given up where it waits for one.
                warnings.simplefilter("ignore")
                self.pid = os.fork()
        except OSError:
            os.close(source)
            os.close(sink)
            raise
        if self.pid == 0:
            _run_copy(jobs, source, sink, work)
        os.close(sink)
        self._source = source
        self._results: dict[int, bytes] = {}
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._read, name="tilewright copy", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with os.fdopen(self._source, "rb") as source:
            while len(head := source.read(_RESULT.size)) == _RESULT.size:
                index, length = _RESULT.unpack(head)
                data = source.read(length)
                if len(data) < length:
                    return
                self._heard = time.monotonic()
                self._results[index] = data

    def finished(self, timeout: float) -> dict[int, bytes]:
        """Wait until the copy has ended, or has sent no result for `timeout` seconds; returns its results so far, by
        job."""
        while self._thread.is_alive() and time.monotonic() - self._heard < timeout:
            self._thread.join(0.05)
        return dict(self._results)

    def end(self) -> None:
        """Kill the forked copy if it still runs, and wait until it has ended; jobs that it has not finished are
        lost."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _run_copy(jobs: int, source: int, sink: int, work: Callable[[int], bytes]) -> None:
    """The main function of a forked copy: for each number that it reads from the pipe `jobs`, it writes the result of
    `work` to the pipe `sink`, whose other end `source` it closes first. Does not return."""
    try:
        os.close(source)
        with contextlib.suppress(Exception):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a copy ends with its parent
        for k in _queued(jobs):
            data = work(k)
            for part in (_RESULT.pack(k, len(data)), data):
                left = memoryview(part)
                while left:
                    left = left[os.write(sink, left) :]
    except BaseException:  # the parent does what is not done, and raises what there is to raise
        pass
    finally:
        os._exit(0)
