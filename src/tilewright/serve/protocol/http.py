"""HTTP/1.1 on an asyncio protocol: httptools parses, and the limits are enforced here.

Requests of a connection are answered in order. While one is computed, none of its successors is parsed, so that a
client that sends without reading cannot fill the memory.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

import httptools
import numpy as np

from tilewright.serve.errors import ServeError, Status
from tilewright.serve.protocol.rest import JSON_LENGTH
from tilewright.serve.protocol.routes import Asked, Reply, Send, refusal


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what a client may send.

    Args:
        body, header: bytes of a request; the header's include the path.
        headers: lines of a header.
        connections: at once.
        header_seconds: from the first byte of a header to its end.
        body_seconds: in which a body comes, and an answer is read.
        idle_seconds: between requests.
    """

    body: int = 64 << 20
    header: int = 16 << 10
    headers: int = 100
    connections: int = 10_000
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    idle_seconds: float = 120.0


READ_BYTES = 64 << 10
"""Bytes that are read at once while a request's size is unknown."""
LARGE = 32 << 10
"""From this many bytes on, a request with the same header as the last one is read directly into the memory of its
tensors."""
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_HEADS = {
    (status.value, kind): f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: "
    for status in HTTPStatus
    for kind in ("application/json", "application/octet-stream")
}
MAX_PIPELINED = 64
_FRAMING = frozenset(("transfer-encoding", "content-encoding", "expect", "upgrade"))
Log = Callable[[Asked, Reply], None]
Answering = Callable[[Asked, Send], None]
"""A function that answers a request, now or later: it always calls `send` once, on the loop's thread."""


class Connections:
    """The open connections of a server."""

    def __init__(self, answer: Answering, limits: Limits, log: Log | None = None) -> None:
        self.answer, self.limits, self.log = answer, limits, log
        self.open: set[HttpProtocol] = set()

    def make(self) -> HttpProtocol:
        """A protocol for a new connection."""
        return HttpProtocol(self)

    def close_idle(self) -> None:
        """Close the connections that have no request in progress at once, and others after the answer to theirs."""
        for protocol in list(self.open):
            protocol.close_when_idle()

    def sweep(self) -> None:
        """Close connections whose client has exceeded a limit of time; the server calls it periodically."""
        now = time.monotonic()
        for protocol in list(self.open):
            protocol.check_time(now)


@dataclass(frozen=True, slots=True)
class _Last:
    """The header of the last request, which was received whole and by itself. Clients repeat it, and then it need not
    be parsed.

    Args:
        size: bytes of the header and the body.
    """

    head: bytes
    size: int
    method: str
    path: str
    headers: dict[str, str]


class _Large:
    """A large request that probably repeats the last header, while it is received: it goes into one buffer, of which
    its tensors become views.

    Args:
        last: the one before it.
    """

    def __init__(self, last: _Last) -> None:
        self.last = last
        self.filled = 0
        json = last.headers[JSON_LENGTH]
        start = -(len(last.head) + int(json)) % 16 if json.isascii() and json.isdigit() and len(json) < 16 else 0
        self.view = np.empty(start + last.size, np.uint8).data[start:]  # tensors begin at multiples of 16

    def received(self, count: int) -> bool:
        """Count `count` bytes more as received. Returns whether those so far agree with the last header."""
        before, self.filled = self.filled, self.filled + count
        size = len(self.last.head)
        return before >= size or self.view[: min(self.filled, size)] == self.last.head[: self.filled]

    @property
    def body(self) -> memoryview:
        return self.view[len(self.last.head) :].toreadonly()


class HttpProtocol(asyncio.BufferedProtocol):
    """One HTTP connection of a client."""

    def __init__(self, connections: Connections) -> None:
        self._all = connections
        self._limits = connections.limits
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[Asked, bool]] = deque()
        self._closing = False
        self._busy = False
        self._refused = False
        self._deadline = time.monotonic() + self._limits.idle_seconds
        self._between = True
        self._count = 0
        self._last: _Last | None = None
        self._large: _Large | None = None
        self._first, self._fed, self._base = b"", 0, 0
        self._scratch = np.empty(READ_BYTES, np.uint8).data
        self._begin()

    def _begin(self) -> None:
        """Discard the parts of the request received last (URL, headers, body), before those of another one are
        received."""
        self._url = b""
        self._headers: dict[str, str] = {}
        self._header_bytes = self._lines = 0
        self._body: list[bytes] = []
        self._body_bytes = 0

    # -- asyncio -------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._all.open.add(self)
        if len(self._all.open) > self._limits.connections:
            self._fail(ServeError("too many connections are open", Status.UNAVAILABLE))

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.open.discard(self)
        self._transport = None
        self._waiting.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large.view[self._large.filled :]
        last = self._last
        alike = last is not None and last.size >= LARGE and JSON_LENGTH in last.headers
        if last is None or not alike or not self._between or self._busy or self._refused:
            return self._scratch
        self._large = _Large(last)
        return self._large.view

    def buffer_updated(self, nbytes: int) -> None:
        large = self._large
        if large is None:
            self._received(bytes(self._scratch[:nbytes]))
            return
        if large.filled == 0:
            self._between = False
            self._deadline = time.monotonic() + self._limits.body_seconds
        fits = large.received(nbytes)
        self._header_bytes = large.filled
        if fits and large.filled < large.last.size:
            return
        self._large, self._between, self._header_bytes = None, True, 0
        if not fits:  # the parser reads it from its beginning
            self._received(bytes(large.view[: large.filled]))
            return
        last = large.last
        self._start(Asked(last.method, last.path, last.headers, large.body, time.monotonic()), True)

    def _received(self, data: bytes) -> None:
        if self._refused:
            return
        last, begun = self._last, self._between
        if last is not None and begun and not self._busy and len(data) == last.size and data.startswith(last.head):
            body = data[len(last.head) :]
            self._start(Asked(last.method, last.path, last.headers, body, time.monotonic()), True)
            return
        if begun:
            self._first, self._fed, self._base = data, 0, self._count
        self._last, self._fed = None, self._fed + len(data)
        try:
            self._parser.feed_data(data)
            if self._between and self._count == self._base + 1:
                self._last = self._repeatable(self._first, self._fed)
        except httptools.HttpParserUpgrade:
            self._fail(ServeError("no other protocol is spoken here"))
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._fail(cause if isinstance(cause, ServeError) else ServeError("the request cannot be read"))
        except httptools.HttpParserError:
            self._fail(ServeError("this is no HTTP"))

    def _repeatable(self, data: bytes, size: int) -> _Last | None:
        """The header of the request that begins with `data` and has `size` bytes in all, to be recognised if it is
        repeated; None if requests with it cannot be."""
        head = data[: data.find(b"\r\n\r\n") + 4]
        headers = self._headers
        framed = headers.get("content-length") == str(size - len(head)) and not _FRAMING.intersection(headers)
        if not framed or not self._parser.should_keep_alive() or self._refused:
            return None
        method, path = self._parser.get_method().decode("latin-1"), self._url.decode("latin-1")
        return _Last(head, size, method, path, headers)

    def pause_writing(self) -> None:
        self._deadline = time.monotonic() + self._limits.body_seconds

    # -- httptools -----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begin()
        self._between = False
        self._deadline = time.monotonic() + self._limits.header_seconds

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value) + 4)
        self._lines += 1
        if self._lines > self._limits.headers:
            raise ServeError("too many headers", Status.HEADER_TOO_LARGE, expected=self._limits.headers)
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.header:
            raise ServeError("the header is too large", Status.HEADER_TOO_LARGE, expected=self._limits.header)

    def on_headers_complete(self) -> None:
        self._deadline = time.monotonic() + self._limits.body_seconds
        length = self._headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and (len(length) > 15 or int(length) > self._limits.body):
            raise _too_large(self._limits.body)
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > self._limits.body:
            raise _too_large(self._limits.body)
        self._body.append(data)

    def on_message_complete(self) -> None:
        now = time.monotonic()
        self._between = True
        self._count += 1
        method = self._parser.get_method().decode("latin-1")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        keep = self._parser.should_keep_alive() and not self._closing
        encoding = self._headers.get("content-encoding", "identity")
        if encoding != "identity":
            body = decompressed(body, encoding, self._limits.body)
        asked = Asked(method, self._url.decode("latin-1"), self._headers, body, now)
        if self._busy:
            self._wait(asked, keep)
        else:
            self._start(asked, keep)
        self._header_bytes = 0

    def _start(self, asked: Asked, keep: bool) -> None:
        self._busy = True
        self._deadline = float("inf")
        self._all.answer(asked, lambda reply: self._reply(asked, reply, keep))

    def _wait(self, asked: Asked, keep: bool) -> None:
        """Let a request wait whose predecessor is not answered yet, and stop reading; `keep` says whether the
        connection stays open after it. Raises ServeError if too many wait."""
        if len(self._waiting) >= MAX_PIPELINED:
            raise ServeError("too many requests without reading their answers", Status.DROPPED)
        self._waiting.append((asked, keep))
        if self._transport is not None:
            self._transport.pause_reading()

    # -- answers -------------------------------------------------------------------------------------------------------

    def _reply(self, asked: Asked, reply: Reply, keep: bool) -> None:
        if self._all.log is not None:
            self._all.log(asked, reply)
        if self._transport is None:
            return
        self._write(reply, keep, asked.method == "HEAD")
        self._busy = False
        self._deadline = time.monotonic() + self._limits.idle_seconds
        if not keep or self._closing or (self._refused and not self._waiting):
            self._transport.close()
        elif self._waiting:
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        """Start the request that has waited longest on this connection; if none waits then, receive more. Does nothing
        while a request is in progress or after the connection has ended."""
        if self._transport is None or self._busy:
            return
        if self._waiting:
            self._start(*self._waiting.popleft())
        if not self._waiting and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _write(self, reply: Reply, keep: bool, head_only: bool = False) -> None:
        head = _HEADS.get((reply.status, reply.content_type))
        if not reply.body:  # nothing is no JSON
            head = f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, '')}\r\nContent-Length: "
        elif head is None:
            reason = _REASONS.get(reply.status, "")
            head = f"HTTP/1.1 {reply.status} {reason}\r\nContent-Type: {reply.content_type}\r\nContent-Length: "
        head += str(len(reply.body))
        if reply.etag:
            head += f'\r\nETag: "{reply.etag}"'
        if reply.json_length is not None:
            head += f"\r\nInference-Header-Content-Length: {reply.json_length}"
        if reply.status == 401:
            head += "\r\nWWW-Authenticate: Bearer"
        if reply.status in (429, 503):
            head += "\r\nRetry-After: 1"
        head += "\r\n\r\n" if keep else "\r\nConnection: close\r\n\r\n"
        assert self._transport is not None
        if head_only or len(reply.body) < LARGE:
            self._transport.write(head.encode("latin-1") + (b"" if head_only else reply.body))
        else:
            self._transport.writelines((head.encode("latin-1"), reply.body))

    def _fail(self, error: ServeError) -> None:
        """Answer an unreadable request with an error, after the requests before it, and close the connection."""
        self._refused = True
        if self._transport is None or self._transport.is_closing():
            return
        reply = refusal(error)
        if self._all.log is not None:
            self._all.log(Asked("-", self._url.decode("latin-1"), self._headers, b"", time.monotonic()), reply)
        if not self._busy:
            self._write(reply, keep=False)
            self._transport.close()

    # -- time ----------------------------------------------------------------------------------------------------------

    def check_time(self, now: float) -> None:
        """Close the connection if its client has exceeded a time limit at time `now`, on the monotonic clock."""
        if now < self._deadline or self._transport is None:
            return
        if self._header_bytes and not self._busy:
            self._fail(ServeError("the request did not come in time", Status.TIMEOUT))
        elif self._transport.is_closing() or self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def close_when_idle(self) -> None:
        """Close the connection now, or after the answer to the request in progress; requests that wait are dropped."""
        self._closing = True
        if not self._busy and self._transport is not None:
            self._transport.close()


def _too_large(limit: int) -> ServeError:
    return ServeError("the body is too large", Status.TOO_LARGE, expected=f"at most {limit} bytes")


def decompressed(body: bytes, encoding: str, limit: int) -> bytes:
    """`body` decompressed by `encoding`, gzip or deflate. Raises ServeError for another encoding, if it is damaged, or
    if it has more than `limit` bytes."""
    if encoding not in ("gzip", "deflate"):
        raise ServeError("the encoding is not known", expected="gzip, deflate or identity", got=encoding[:40])
    try:
        stream = zlib.decompressobj(31 if encoding == "gzip" else 15)
        raw = stream.decompress(body, limit + 1)
    except zlib.error:
        raise ServeError(f"the body is no {encoding}") from None
    if len(raw) > limit:
        raise _too_large(limit)
    if not stream.eof:
        raise ServeError(f"the body is no {encoding}", got="an end too soon")
    return raw


__all__ = ["Connections", "HttpProtocol", "Limits", "decompressed"]
