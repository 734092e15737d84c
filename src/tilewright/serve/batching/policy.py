"""The choice of waiting jobs that become the next batch, and of those that are dropped. The code uses no threads,
sockets or clocks: every function gets the current time as an argument, so that a simulation runs the same code as the
server.

`DeadlineQueue` is what the server uses:

- A job that finds work before it that will take longer than its deadline allows is refused when it arrives, so that its
  caller may ask elsewhere at once (Clockwork).
- Jobs wait in the order of priority, then of deadline.
- A free lane takes the largest batch whose estimate, with the margin, fits the slack of all its jobs (Nexus). It never
  waits for further jobs.
- A job that can no longer be done in time is dropped before it costs a lane anything, and so is a job that would force
  a small batch while a full one waits: under overload such jobs would take the lane's time from many (Nexus's early
  drop).

`AimdQueue` is the comparison: Clipper's, which knows no estimates and searches for the batch size.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilewright.serve.batching.estimates import Estimates

_PROBE_SECONDS = 0.1
_PERIOD = 16
"""Batches between two updates of the target batch size."""


@dataclass(slots=True, eq=False)
class Job:
    """A waiting request.

    Args:
        rows: of the batch that it takes.
        arrival, deadline: seconds of a clock; the deadline may be infinite.
        payload: the caller's.
    """

    rows: int
    arrival: float
    deadline: float
    priority: int = 0
    payload: Any = None
    order: tuple[int, float, float] = field(init=False)

    def __post_init__(self) -> None:
        self.order = (-self.priority, self.deadline, self.arrival)


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that one call computes together. `rows`: the sum of their numbers of rows."""

    jobs: Sequence[Job]
    rows: int


class Queue(Protocol):
    """The interface of a queue of the jobs that wait for one model; the policy decides on their order and batches."""

    def accept(self, job: Job, now: float, start: float, lanes: int) -> bool:
        """Enqueue a job at time `now`, or return False to refuse it; `start` is the time at which one of `lanes` lanes
        will be free."""

    def take(self, now: float) -> tuple[Batch | None, list[Job]]:
        """The batch that a free lane computes at time `now` (None if there is none), and the jobs that are dropped
        because they cannot be done in time."""

    def finished(self, rows: int, seconds: float, met: bool) -> None:
        """Record that a batch took `seconds`, and whether its jobs met their deadlines."""

    def backlog(self) -> float:
        """The estimated seconds that the jobs in the queue take."""

    def head(self) -> tuple[int, float, float] | None:
        """The `order` of the job that is next, which is less for a more urgent one; None if the queue is empty."""

    def remove(self, job: Job) -> bool:
        """Remove a job whose caller has gone; False if it is not in the queue."""

    def __len__(self) -> int: ...


class DeadlineQueue:
    """Jobs ordered by deadline, and batches by estimates.

    Args:
        estimates: of the model's batches.
        promise: seconds in which most jobs must be answered; infinite: batches as large as are of use.
    """

    def __init__(self, estimates: Estimates, promise: float, max_batch: int) -> None:
        self.estimates = estimates
        self.promise = promise
        self.max_batch = max_batch
        self._jobs: list[Job] = []
        self._rows = 0
        self._target = 0
        self._finished = 0
        self._probe: Job | None = None
        self._probed = float("-inf")

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def target(self) -> int:
        """The batch size with the highest throughput that leaves half of the promise for waiting."""
        if not self._target:
            self._target = self.estimates.best(self.promise / 2)
        return self._target

    def accept(self, job: Job, now: float, start: float, lanes: int) -> bool:
        earlier = self._rows if not self._jobs or self._jobs[-1].order <= job.order else self._rows_before(job)
        target = self.target
        batches = earlier // target / lanes
        # Others will join its batch if it has to wait, so that its time is a full batch's.
        own = max(target, job.rows) if earlier or start > now else job.rows
        finish = max(now, start) + batches * self.estimates.seconds(target) + self.estimates.bound(own)
        if finish > job.deadline and not self._probes(job, now, idle=not self._jobs and start <= now):
            return False
        insort(self._jobs, job, key=lambda j: j.order)
        self._rows += job.rows
        return True

    def _probes(self, job: Job, now: float, idle: bool) -> bool:
        """Whether to run `job` at time `now` although its estimate exceeds its deadline: on an `idle` lane, at most ten
        times a second. If a disturbance has made the estimate too large, all jobs would be refused otherwise, and none
        would correct it."""
        hopeless = job.deadline - now < self.estimates.least(job.rows)
        if not idle or hopeless or now - self._probed < _PROBE_SECONDS:
            return False
        self._probed, self._probe = now, job
        return True

    def _rows_before(self, job: Job) -> int:
        return sum(other.rows for other in self._jobs if other.order <= job.order)

    def take(self, now: float) -> tuple[Batch | None, list[Job]]:
        jobs = self._jobs
        first, left = 0, self._rows
        end, rows = self._window(now, first)
        while first < len(jobs) and (not rows or (2 * rows < self.target <= left - jobs[first].rows)):
            # It is too late for the first job, or it leaves time for a small batch only while a full one waits.
            left -= jobs[first].rows
            first += 1
            end, rows = self._window(now, first)
        dropped, batch = jobs[:first], jobs[first:end]
        del jobs[:end]
        self._rows = left - rows
        return (Batch(batch, rows) if batch else None), dropped

    def _window(self, now: float, first: int) -> tuple[int, int]:
        """(end, rows) of the largest batch that begins with waiting job number `first`, starts at time `now` and meets
        the deadlines of all of its jobs."""
        rows, deadline, end = 0, float("inf"), first
        for job in self._jobs[first : first + self.max_batch]:
            deadline = min(deadline, job.deadline)
            fits = not rows or rows + job.rows <= self.max_batch
            overdue = now + self.estimates.bound(rows + job.rows) > deadline
            if not fits or (overdue and (rows or job is not self._probe)):
                break
            rows += job.rows
            end += 1
        return end, rows

    def finished(self, rows: int, seconds: float, met: bool) -> None:
        self.estimates.observe(rows, seconds)
        self._finished += 1
        if self._finished % _PERIOD == 0:
            self._target = 0

    def backlog(self) -> float:
        if not self._rows:
            return 0.0
        target = self.target
        full, rest = divmod(self._rows, target)
        return full * self.estimates.seconds(target) + (self.estimates.seconds(rest) if rest else 0.0)

    def head(self) -> tuple[int, float, float] | None:
        return self._jobs[0].order if self._jobs else None

    def remove(self, job: Job) -> bool:
        if job not in self._jobs:
            return False
        self._jobs.remove(job)
        self._rows -= job.rows
        return True


class AimdQueue:
    """Clipper's adaptive batching (NSDI 2017): jobs in order of arrival, with a batch size that grows by one while
    promises are kept and shrinks by a tenth when one is broken. No job is refused or dropped."""

    def __init__(self, promise: float, max_batch: int) -> None:
        self.promise = promise
        self.max_batch = max_batch
        self._size = 1.0
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def accept(self, job: Job, now: float, start: float, lanes: int) -> bool:
        self._jobs.append(job)
        return True

    def take(self, now: float) -> tuple[Batch | None, list[Job]]:
        rows = 0
        jobs: list[Job] = []
        while self._jobs and (not jobs or rows + self._jobs[0].rows <= int(self._size)):
            jobs.append(self._jobs.popleft())
            rows += jobs[-1].rows
        return (Batch(jobs, rows) if jobs else None), []

    def finished(self, rows: int, seconds: float, met: bool) -> None:
        # A batch may take the whole promise (Clipper, section 4.3).
        if seconds > self.promise:
            self._size = max(1.0, self._size * 0.9)
        elif rows >= int(self._size):
            self._size = min(self._size + 1, float(self.max_batch))

    def backlog(self) -> float:
        return 0.0

    def head(self) -> tuple[int, float, float] | None:
        return self._jobs[0].order if self._jobs else None

    def remove(self, job: Job) -> bool:
        if job not in self._jobs:
            return False
        self._jobs.remove(job)
        return True


__all__ = ["AimdQueue", "Batch", "DeadlineQueue", "Job", "Queue"]
