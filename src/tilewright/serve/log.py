"""The access log: a line of JSON for each request, with its id and the trace that it belongs to."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Mapping
from typing import IO

from tilewright.serve.protocol.routes import Asked, Reply

_TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class AccessLog:
    """Writes lines to a file; lines of several processes do not mix.

    Args:
        file: the file to append to.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._numbers = itertools.count(1)
        self._prefix = f"{os.getpid():x}"

    def __call__(self, asked: Asked, reply: Reply) -> None:
        """Log the HTTP request `asked` with its response `reply`."""
        sizes = len(asked.body), len(reply.body)
        self.write(asked.headers, asked.method[:20], asked.path[:300], reply.status, asked.arrival, sizes)

    def write(
        self,
        headers: Mapping[str, str],
        method: str,
        path: str,
        status: int | str,
        arrival: float,
        sizes: tuple[int, int],
    ) -> None:
        """Write the log's line for one request.

        Args:
            status: HTTP's number, or the name of gRPC's code.
            arrival: on the monotonic clock.
            sizes: bytes received and sent.
        """
        identity = headers.get("x-request-id", "")[:100] or f"{self._prefix}-{next(self._numbers)}"
        trace = headers.get("traceparent", "")
        line = {
            "time": round(time.time(), 6),
            "id": identity,
            "method": method,
            "path": path,
            "status": status,
            "seconds": round(time.monotonic() - arrival, 6),
            "in": sizes[0],
            "out": sizes[1],
        }
        if _TRACE.fullmatch(trace):
            line["traceparent"] = trace
        self._file.write(json.dumps(line) + "\n")

    def flush(self) -> None:
        """Write the lines that are still in memory to the file; the server calls it periodically."""
        self._file.flush()


__all__ = ["AccessLog"]
