"""An open-loop load generator: requests leave at times that were drawn before, whether or not answers have come.

Latency is counted from the intended time. A generator that waits for answers before it sends more (a closed loop) hides
queues: when the server stalls, it stalls too, and the requests that would have waited are never sent ("coordinated
omission").
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import quote, urlsplit

import httptools

from tilewright.serve.batching.simulation import Load, arrivals
from tilewright.serve.errors import ServeError, Status
from tilewright.serve.tensors import Array, binary_request


@dataclass(frozen=True, slots=True)
class Point:
    """The measurements of one load.

    Args:
        offered: requests a second that were sent.
        goodput: answers a second that came within the promise.
        latencies: seconds from the intended time, of answers with status 200, in order of size.
        statuses: answers by status; 0 is none at all.
        lag: seconds by which the generator itself sent late, at the 99th percentile.
    """

    offered: float
    goodput: float
    violations: float
    latencies: Sequence[float]
    statuses: Mapping[int, int]
    lag: float

    def quantile(self, share: float) -> float:
        """Seconds within which this share of the good answers came."""
        return _quantile(self.latencies, share)


def request_bytes(url: str, model: str, inputs: Mapping[str, Array], timeout: float | None) -> bytes:
    """A whole request for an inference, with binary tensors."""
    parts = urlsplit(url)
    head, tail = binary_request(inputs, timeout=timeout)
    body = head + tail
    lines = (
        f"POST /v2/models/{quote(model, safe='')}/infer HTTP/1.1",
        f"Host: {parts.hostname}",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(body)}",
        "",
        "",
    )
    return "\r\n".join(lines).encode() + body


@dataclass(slots=True)
class _Run:
    """A run under way."""

    waiting: deque[float] = field(default_factory=deque)
    idle: list[_Connection] = field(default_factory=list)
    answers: list[tuple[float, float, int]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)


class _Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self, run: _Run, data: bytes) -> None:
        self._run, self._data = run, data
        self._intended = 0.0
        self._busy = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._parser = httptools.HttpResponseParser(self)

    def send(self, intended: float) -> None:
        self._intended, self._busy = intended, True
        assert self.transport is not None
        self.transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._done(self._parser.get_status_code())

    def _done(self, status: int) -> None:
        self._run.answers.append((self._intended, monotonic(), status))
        self._busy = False
        if self._run.waiting and self.transport is not None:
            self.send(self._run.waiting.popleft())
        else:
            self._run.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._busy:
            self._run.answers.append((self._intended, monotonic(), 0))


async def offer(
    url: str,
    data: bytes,
    rate: float,
    promise: float,
    *,
    seconds: float = 5.0,
    burst: float = 1.0,
    connections: int = 64,
    seed: int = 0,
) -> Point:
    """Send requests at this rate and count what comes back.

    Args:
        data: a whole request (`request_bytes`).
        burst: how many leave together, on average.
        connections: most requests under way; further ones wait here, and their time counts.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "localhost", parts.port or 80
    loop = asyncio.get_running_loop()
    run = _Run()
    try:
        for _ in range(connections):
            _, made = await loop.create_connection(lambda: _Connection(run, data), host, port)
            run.idle.append(made)
    except OSError as error:
        raise ServeError(f"the server does not answer: {error}", Status.UNAVAILABLE, where=url) from None
    times = list(arrivals(Load("", rate, promise, burst), seconds, random.Random(seed)))
    begin = monotonic() + 0.05
    everyone = list(run.idle)
    for time in times:
        await _until(begin + time)
        run.lags.append(monotonic() - begin - time)
        if run.idle:
            run.idle.pop().send(begin + time)
        else:
            run.waiting.append(begin + time)
    stop = monotonic() + max(2.0, 20 * promise)
    while len(run.answers) < len(times) and monotonic() < stop:
        await asyncio.sleep(0.01)
    for connection in everyone:
        if connection.transport is not None:
            connection.transport.abort()
    return _point(run, len(times), seconds, promise)


async def _until(time: float) -> None:
    """Wait for a time, to some microseconds: timers of loops are coarse, so the last part is spent asking again."""
    while (left := time - monotonic()) > 0:
        await asyncio.sleep(left - 0.001 if left > 0.002 else 0)


def _point(run: _Run, count: int, seconds: float, promise: float) -> Point:
    statuses = Counter(status for _, _, status in run.answers)
    statuses[0] += count - len(run.answers)
    latencies = sorted(end - intended for intended, end, status in run.answers if status == 200)
    kept = sum(latency <= promise for latency in latencies)
    return Point(
        count / seconds,
        kept / seconds,
        (len(latencies) - kept) / max(count, 1),
        latencies,
        {status: number for status, number in sorted(statuses.items()) if number},
        _quantile(sorted(run.lags), 0.99),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


__all__ = ["Point", "offer", "request_bytes"]
