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
from typing import Protocol
from urllib.parse import quote, urlsplit

import httptools

from tilewright.serve.batching.simulation import Load, arrivals
from tilewright.serve.errors import ServeError, Status
from tilewright.serve.local_client import LocalModel
from tilewright.serve.protocol.frames import LENGTH, MAX_MESSAGE, REPLY
from tilewright.serve.tensors import Array, binary_request

MEMORY = 1 << 20
"""The least bytes that a connection with shared memory reserves for outputs."""


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
        """The seconds, from the intended time of sending, within which the fraction `share` of the answers with status
        200 came."""
        return _quantile(self.latencies, share)


def request_bytes(url: str, model: str, inputs: Mapping[str, Array], timeout: float | None) -> bytes:
    """The bytes of a complete HTTP request to the server at `url` for inference by `model` on `inputs`, with binary
    tensors; `timeout` seconds are left for the answer (None: the model's promise)."""
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
    """The state of a load test: times of requests that wait for a connection, idle connections, answers so far, and
    delays of sending."""

    waiting: deque[float] = field(default_factory=deque)
    idle: list[_Connection] = field(default_factory=list)
    answers: list[tuple[float, float, int]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)


class _Connection(asyncio.Protocol):
    """A connection with one request at a time.

    Args:
        data: what is sent for a request.
    """

    def __init__(self, run: _Run, data: bytes) -> None:
        self._run, self._data = run, data
        self._intended = 0.0
        self._busy = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, intended: float) -> None:
        self._intended, self._busy = intended, True
        if self.transport is None:  # the server has ended it meanwhile
            self._run.answers.append((intended, monotonic(), 0))
        else:
            self.transport.write(self._data)

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


class _HttpConnection(_Connection):
    """A connection that speaks HTTP."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._done(self._parser.get_status_code())


class _LocalConnection(_Connection):
    """A connection to the Unix socket of a server on this machine (`tw.client.local`); the tensors of its request are
    in shared memory, where they were written once."""

    def __init__(self, run: _Run, data: bytes, model: LocalModel) -> None:
        super().__init__(run, data)
        self._model = model  # which keeps the memory
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < LENGTH.size + REPLY.size:
            return
        size = LENGTH.unpack_from(self._received)[0]
        if size > MAX_MESSAGE and self.transport is not None:
            self.transport.abort()
        elif len(self._received) >= LENGTH.size + size:
            status = REPLY.unpack_from(self._received, LENGTH.size)[1]
            self._received = b""
            self._done(status)


class Target(Protocol):
    """The interface of a server to which a load test sends requests."""

    async def connect(self, run: _Run) -> _Connection:
        """Connect to the server. Raises OSError where that fails."""


@dataclass(frozen=True, slots=True)
class Http:
    """A server's address, and the bytes of the request that is sent to it (`request_bytes`)."""

    url: str
    data: bytes

    async def connect(self, run: _Run) -> _Connection:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "localhost", parts.port or 80
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: _HttpConnection(run, self.data), host, port))[1]


@dataclass(frozen=True, slots=True)
class Local:
    """A server on this machine, by the path of its Unix socket: tensors are in shared memory, where each connection
    writes its inputs once."""

    path: str
    model: str
    inputs: Mapping[str, Array]
    timeout: float | None = None

    async def connect(self, run: _Run) -> _Connection:
        model = LocalModel(self.path, self.model, memory=MEMORY + 2 * sum(a.nbytes for a in self.inputs.values()))
        data = model.message([self.inputs[t["name"]] for t in model.inputs], self.timeout or 0.0)
        loop = asyncio.get_running_loop()
        created = await loop.create_connection(lambda: _LocalConnection(run, data, model), sock=model.detach())
        return created[1]


async def offer(
    target: Target,
    rate: float,
    promise: float,
    *,
    seconds: float = 5.0,
    burst: float = 1.0,
    connections: int = 64,
    seed: int = 0,
) -> Point:
    """Send requests at this rate, and measure the answers.

    Args:
        burst: how many leave together, on average.
        connections: most requests under way; further ones wait here, and their time counts.
    """
    run = _Run()
    try:
        for _ in range(connections):
            run.idle.append(await target.connect(run))
    except OSError as error:
        raise ServeError(f"the server does not answer: {error}", Status.UNAVAILABLE) from None
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
    """Sleep until `time`, to within microseconds: the loop's timers are coarse, so that it polls the clock at the
    end."""
    while (left := time - monotonic()) > 0:
        await asyncio.sleep(left - 0.001 if left > 0.002 else 0)


def _point(run: _Run, count: int, seconds: float, promise: float) -> Point:
    statuses = Counter(status for _, _, status in run.answers)
    statuses[0] += count - len(run.answers)
    latencies = sorted(end - intended for intended, end, status in run.answers if status == 200)
    retained = sum(latency <= promise for latency in latencies)
    return Point(
        count / seconds,
        retained / seconds,
        (len(latencies) - retained) / max(count, 1),
        latencies,
        {status: number for status, number in sorted(statuses.items()) if number},
        _quantile(sorted(run.lags), 0.99),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


__all__ = ["Http", "Local", "Point", "Target", "offer", "request_bytes"]
