"""The learner's side over TCP: a port at which nodes fetch the newest weights of one or more names."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import ssl
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from tilewright.live.transport.address import is_loopback, peer_text
from tilewright.live.transport.blob import Blob
from tilewright.live.transport.client import DIGESTERS
from tilewright.live.transport.feed import Feed, Snapshot
from tilewright.live.transport.messages import MAX_WAIT, WANT_BYTES, Offer, Want, What
from tilewright.live.transport.session import authenticate, check_name, secret_bytes
from tilewright.live.transport.wire import Channel, HostileError, Kind, LostError, RefusedError
from tilewright.support.errors import TransportError

log = logging.getLogger("tilewright.transport")

_live: weakref.WeakSet[Server] = weakref.WeakSet()


class Service(Protocol):
    """Another service that a server offers under a name: it answers messages of nodes (`calls.py`)."""

    @property
    def name(self) -> str: ...

    def answer(self, channel: Channel) -> None:
        """Receive and answer one message of a connection; a TransportError ends the connection."""
        ...

    def close(self) -> None: ...

    def forget(self) -> None:
        """In the child of a fork: release what belongs to the parent."""
        ...


class Server:
    """Listens for nodes, and sends each the updates that it requests, with one thread for each connection.

    Args:
        host, port: where to listen; port 0 takes a free one.
        secret: at least 16 bytes that nodes must know too.
        tls: a context for servers, with a certificate. It may demand certificates of the nodes.
        trust: listen beyond this machine without a secret and without TLS: anybody may then read the weights.
        connections: how many nodes may be connected. A quarter as many more may be shaking hands.
        timeout: seconds that a node may take for a handshake and for each frame.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        secret: str | bytes | None = None,
        tls: ssl.SSLContext | None = None,
        trust: bool = False,
        connections: int = 256,
        timeout: float = 10.0,
    ) -> None:
        self._secret = secret_bytes(secret)
        self._tls = tls
        self._timeout = timeout
        self._feeds: dict[str, Feed | Service] = {}
        self._channels: dict[Channel, str | None] = {}  # and what they fetch, after the handshake
        self._most, self._most_new = connections, max(4, connections // 4)
        self._lock = threading.Lock()
        self._closed = False
        self._stats = {"accepted": 0, "refused": 0, "hostile": 0, "bytes_sent": 0, "transfers": 0, "resumed": 0}
        if not (is_loopback(host) or secret or tls or trust):
            hint = "give a secret or a TLS context, or trust=True if everyone who can connect may read the weights"
            raise TransportError("weights would be open to the network", where=f"host {host!r}", hint=hint)
        self._workers = ThreadPoolExecutor(DIGESTERS, thread_name_prefix="weights-digest")
        self._listener = _listen(host, port)
        self.host, self.port = host, int(self._listener.getsockname()[1])
        _live.add(self)
        threading.Thread(target=self._accept, name=f"weights:{self.port}", daemon=True).start()

    def add(self, feed: Feed | Service) -> None:
        """Serve a feed, or a service, under its name."""
        with self._lock:
            if check_name(feed.name) in self._feeds:
                raise TransportError("is served already", where=f"weights {feed.name!r}, port {self.port}")
            self._feeds[feed.name] = feed

    def remove(self, name: str) -> None:
        """Stop serving the feed or service called `name`, close it, and close the connections of nodes that use it.
        Does nothing if there is none."""
        with self._lock:
            feed = self._feeds.pop(name, None)
            channels = [c for c, served in self._channels.items() if served == name]
        if feed is not None:
            feed.close()
        for channel in channels:
            channel.close()

    def close(self) -> None:
        """Close all feeds and services, stop listening, and end all connections. May be called several times."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            channels = list(self._channels)
        for feed in self._feeds.values():
            feed.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for channel in channels:
            channel.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def stats(self) -> dict[str, int]:
        """Counts since the start: connections accepted, refused and hostile, bytes, transfers; connections now."""
        with self._lock:
            sent = self._stats["bytes_sent"] + sum(channel.sent for channel in self._channels)
            return {**self._stats, "bytes_sent": sent, "connections": self._connected()}

    # -- connections -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                # No descriptors or no memory for another one: those that are there go on.
                log.error("cannot accept a connection: %s", error.strerror or error)
                time.sleep(0.2 if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM) else 0.01)
                continue
            peer = peer_text(address)
            channel = Channel(sock, peer, self._timeout)
            if not self._register(channel):
                log.warning("%s: connection refused: there are too many", peer)
                channel.close()
                continue
            attend = threading.Thread(target=self._attend, args=(channel,), name=f"weights:{peer}", daemon=True)
            try:
                attend.start()
            except RuntimeError as error:  # the system gives no more threads
                log.error("%s: connection refused: %s", peer, error)
                self._unregister(channel)
                channel.close()

    def _register(self, channel: Channel) -> bool:
        with self._lock:
            done = self._connected()
            room = done < self._most and len(self._channels) - done < self._most_new and not self._closed
            self._stats["accepted" if room else "refused"] += 1
            if room:
                self._channels[channel] = None
            return room

    def _unregister(self, channel: Channel) -> None:
        with self._lock:
            self._channels.pop(channel, None)
            self._stats["bytes_sent"] += channel.sent

    def _connected(self) -> int:
        return sum(name is not None for name in self._channels.values())

    def _attend(self, channel: Channel) -> None:
        """Serve one connection from the handshake to its end."""
        peer = channel.peer
        try:
            if self._tls is not None:
                channel.start_tls(self._tls)
            name = authenticate(channel, self._secret, self._refusal)
            with self._lock:
                self._channels[channel] = name
            log.info("%s: fetches %r", peer, name)
            while (feed := self._feeds.get(name)) is not None and not self._closed:
                if isinstance(feed, Feed):
                    self._answer(channel, feed)
                else:
                    feed.answer(channel)
        except HostileError as error:
            self._count("hostile")
            log.warning("connection closed: %s", _line(error))
        except RefusedError as error:
            self._count("refused")
            log.warning("connection closed: %s", _line(error))
        except LostError as error:
            log.info("connection ended: %s", _line(error))
        except Exception:
            log.exception("%s: connection closed by a defect of this side", peer)
        finally:
            self._unregister(channel)
            channel.close()

    def _refusal(self, name: str) -> str | None:
        if name in self._feeds:
            return None
        return f"there is no {name!r} here, but {', '.join(sorted(self._feeds)) or 'nothing'}"

    def _answer(self, channel: Channel, feed: Feed) -> None:
        _, body = channel.receive({Kind.WANT: WANT_BYTES}, wait=MAX_WAIT)
        want = Want.unpack(body, channel.peer)
        with feed.newer(want.after, want.wait, channel.idle) as snapshot:
            if snapshot is None:
                channel.send(Kind.NOTHING)
                return
            if want.structure != snapshot.structure.id:
                self._send(channel, snapshot, What.CODE, snapshot.code, want.code)
            self._send(channel, snapshot, What.WEIGHTS, snapshot.weights, want.weights)

    def _send(self, channel: Channel, snapshot: Snapshot, what: What, blob: Blob, has: tuple[bytes, int]) -> None:
        start = min(has[1], blob.chunks) if has[0] == blob.id else 0
        offer = Offer(
            what, snapshot.mark, snapshot.version, snapshot.structure.id, blob.id, blob.nbytes, start, snapshot.finite
        )
        blob.begin(self._workers)
        channel.send(Kind.OFFER, offer.pack())
        for k in range(start, blob.chunks):
            channel.send(Kind.DATA, blob.chunk(k), blob.chunk_digest(k))
        channel.send(Kind.END, blob.root())
        self._count("transfers")
        if start:
            self._count("resumed")

    def _count(self, what: str) -> None:
        with self._lock:
            self._stats[what] += 1

    def forget(self) -> None:
        """In the child of a fork: close what was inherited, without ending the parent's connections; this copy of the
        server serves nothing."""
        self._closed = True
        self._lock = threading.Lock()
        self._listener.close()
        for channel in self._channels:
            channel.forget()
        for feed in self._feeds.values():
            feed.forget()


def _listen(host: str, port: int) -> socket.socket:
    try:
        result = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = result[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, OverflowError) as error:
        text = getattr(error, "strerror", None) or error
        raise TransportError(f"cannot listen: {text}", where=f"{host}:{port}") from None


def _line(error: TransportError) -> str:
    hint = f" ({error.hint})" if error.hint else ""
    return error.headline().replace("\n", " ") + hint


def _after_fork() -> None:
    for server in list(_live):
        server.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
