"""The record of a session's calls while `SessionOptions.enable_profiling` is set: a trace that chrome://tracing and
Perfetto show. The times of single kernels are given by `Model.profile` and `Model.timeline`."""

from __future__ import annotations

import json
import os
import threading
import time


class CallLog:
    """The events of a session, with their times since the session began.

    Args:
        prefix: what the file's name begins with.
    """

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.monotonic_ns()
        self._prefix = prefix
        self._events: list[dict[str, object]] = []

    def add(self, name: str, began_ns: int) -> None:
        """Append an event `name` that began at `began_ns` of the monotonic clock and ends now."""
        ended = time.monotonic_ns()
        where = {"pid": os.getpid(), "tid": threading.get_native_id()}
        times = {"dur": (ended - began_ns) // 1000, "ts": (began_ns - self.start_ns) // 1000}
        self._events.append({"cat": "Session", **where, **times, "ph": "X", "name": name, "args": {}})

    def write(self) -> str:
        """Write the events to a new file and return its name."""
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        name = f"{self._prefix}_{stamp}_{os.getpid()}_{self.start_ns}.json"
        lines = ",\n".join(json.dumps(event) for event in self._events)
        with open(name, "w") as file:
            file.write(f"[\n{lines}\n]\n")
        return name


__all__ = ["CallLog"]
