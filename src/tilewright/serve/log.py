"""The access log: a line of JSON for each request, with its id and the trace that it belongs to."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from typing import IO

from tilewright.serve.protocol.routes import Asked, Reply

_TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class AccessLog:
    """Writes lines to a file; of several processes each line stays whole.

    Args:
        file: that lines are appended to.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._numbers = itertools.count(1)
        self._prefix = f"{os.getpid():x}"

    def __call__(self, asked: Asked, reply: Reply) -> None:
        headers = asked.headers
        identity = headers.get("x-request-id", "")[:100] or f"{self._prefix}-{next(self._numbers)}"
        trace = headers.get("traceparent", "")
        line = {
            "time": round(time.time(), 6),
            "id": identity,
            "method": asked.method[:20],
            "path": asked.path[:300],
            "status": reply.status,
            "seconds": round(time.monotonic() - asked.arrival, 6),
            "in": len(asked.body),
            "out": len(reply.body),
        }
        if _TRACE.fullmatch(trace):
            line["traceparent"] = trace
        self._file.write(json.dumps(line) + "\n")

    def flush(self) -> None:
        """Write out what waits in the buffer."""
        self._file.flush()


__all__ = ["AccessLog"]
