"""Several models on some lanes (cores): the choice of the model whose queue a free lane serves. Like `policy.py`, this
code knows no threads or clocks."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tilewright.serve.batching.policy import Batch, Job, Queue


@dataclass(frozen=True, slots=True)
class Start:
    """A batch that has been assigned to a lane. `model`: the key of its queue; `lane`: the lane's number; `batch`: the
    jobs; `began`: the time of the assignment, in seconds of the caller's clock."""

    model: Hashable
    lane: int
    batch: Batch
    began: float


class Dispatcher:
    """Queues by model, and the time at which each lane will be free. No lane is idle while a job waits."""

    def __init__(self, lanes: int) -> None:
        self.queues: dict[Hashable, Queue] = {}
        self._until = [0.0] * lanes
        self._free = list(range(lanes))

    @property
    def idle(self) -> int:
        """The number of lanes that compute no batch."""
        return len(self._free)

    def arrive(self, model: Hashable, job: Job, now: float) -> bool:
        """Queue `job` for `model` at time `now`, in seconds; returns False if it is refused because it could not be
        done in time."""
        lanes = len(self._until)
        start = now if self._free else max(now, min(self._until))
        others = sum(
            queue.backlog()
            for name, queue in self.queues.items()
            if name != model and (first := queue.head()) is not None and first <= job.order
        )
        return self.queues[model].accept(job, now, start + others / lanes, lanes)

    def next(self, now: float) -> tuple[Start | None, list[tuple[Hashable, Job]]]:
        """The next batch for a free lane, from the model whose first job is most urgent; and the jobs that are dropped
        because they can no longer be done in time."""
        dropped: list[tuple[Hashable, Job]] = []
        while self._free:
            waiting = [(head, name) for name, queue in self.queues.items() if (head := queue.head()) is not None]
            if not waiting:
                break
            name = min(waiting, key=lambda pair: pair[0])[1]
            batch, gone = self.queues[name].take(now)
            dropped += [(name, job) for job in gone]
            if batch is not None:
                lane = self._free.pop()
                return Start(name, lane, batch, now), dropped
        return None, dropped

    def expect(self, start: Start, seconds: float) -> None:
        """Record the estimate that the batch of `start`, which has begun, takes `seconds` in all; `arrive` uses it to
        tell when its lane will be free."""
        self._until[start.lane] = start.began + seconds

    def finished(self, start: Start, now: float) -> None:
        """Record that a batch ended at `now`: its lane is free, and its duration corrects the queue's estimates."""
        self._free.append(start.lane)
        queue = self.queues.get(start.model)
        if queue is not None:
            met = all(now <= job.deadline for job in start.batch.jobs)
            queue.finished(start.batch.rows, now - start.began, met)


__all__ = ["Dispatcher", "Start"]
