"""Records of what an engine's workers did and when: a picture as text, and events for trace viewers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tilewright.engine.queues import Operation
from tilewright.runtime.trace_events import named_track, write_events
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Ran:
    """An operation that a worker has run; times are nanoseconds of `time.perf_counter_ns`."""

    name: str
    number: int
    worker: int
    begin: int
    end: int
    failed: bool


class Recording:
    """A record of the operations that workers ran, in the order in which they ended."""

    def __init__(self, workers: int, end: Callable[[], None]) -> None:
        self.workers = max(workers, 1)
        self.ran: list[Ran] = []
        self._end = end

    def add(self, operation: Operation, worker: int, begin: int, end: int) -> None:
        name = operation.name or getattr(operation.function, "__name__", "operation")
        self.ran.append(Ran(name, operation.number, worker, begin, end, operation.failure is not None))

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for https://ui.perfetto.dev or chrome://tracing."""
        origin = min((r.begin for r in self.ran), default=0)
        events: list[dict[str, Any]] = [named_track("process_name", 0, "tilewright engine")]
        events += [named_track("thread_name", w, f"worker {w}") for w in range(self.workers)]
        for r in self.ran:
            event = {
                "ph": "X",
                "pid": 0,
                "tid": r.worker,
                "ts": (r.begin - origin) / 1e3,
                "dur": (r.end - r.begin) / 1e3,
            }
            events.append(
                event | {"name": r.name, "cat": "operation", "args": {"number": r.number, "failed": r.failed}}
            )
        write_events(path, events)

    def __str__(self) -> str:
        """A picture as text: a line for each worker with 64 columns of time; a column has the first letter of the
        operation that was running."""
        if not self.ran:
            return "nothing ran"
        origin, end = min(r.begin for r in self.ran), max(r.end for r in self.ran)
        scale = 64 / max(end - origin, 1)
        rows = [[" "] * 64 for _ in range(self.workers)]
        for r in self.ran:
            first, last = int((r.begin - origin) * scale), int((r.end - origin) * scale)
            for k in range(first, min(max(last, first + 1), 64)):
                rows[r.worker][k] = r.name[0]
        lines = [f"worker {w} |{''.join(row)}|" for w, row in enumerate(rows)]
        return "\n".join([*lines, f"{(end - origin) / 1e6:.1f} ms"])
