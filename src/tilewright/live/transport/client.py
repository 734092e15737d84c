"""The node's side over TCP: fetches updates, resumes interrupted transfers, and trusts no unchecked data."""

from __future__ import annotations

import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tilewright.live.transport.address import Address, is_loopback, peer_text
from tilewright.live.transport.blob import NO_ID, Partial, chunk_count, digested, reusable
from tilewright.live.transport.messages import MAX_WAIT, NO_STRUCTURE, OFFER_BYTES, Mark, Offer, Want, What
from tilewright.live.transport.session import join, secret_bytes
from tilewright.live.transport.source import Update
from tilewright.live.transport.structure import Structure, decode
from tilewright.live.transport.wire import Channel, HostileError, Kind, LostError, RefusedError
from tilewright.runtime.interop import Array
from tilewright.support.errors import Error, TransportError

log = logging.getLogger("tilewright.transport")

DIGESTERS = 2
"""Threads that digest chunks while others arrive."""

CODE_LIMIT = 256 << 20
"""The default limit on the bytes of a program."""


def opened(address: Address, timeout: float) -> tuple[Channel, bool]:
    """(a connection to `address`, whether that is on this machine); sending and receiving wait at most `timeout`
    seconds. Raises LostError if it fails."""
    where = str(address)
    try:
        sock = socket.create_connection((address.host, address.port), timeout)
    except (OSError, UnicodeError) as error:
        text = getattr(error, "strerror", None) or error
        raise LostError(f"cannot connect: {text}", where=where) from None
    peer = sock.getpeername()
    return Channel(sock, f"{where} ({peer_text(peer)})", timeout), is_loopback(str(peer[0]))


class TcpSource:
    """Updates from a learner's `Server`.

    Args:
        address: of the server.
        secret: shared with the server.
        tls: a context for clients; it verifies the server's name unless configured otherwise.
        trust: run code from a server that nothing authenticates.
        code_limit: bytes that a program may have.
        timeout: seconds for connecting, and for each frame.
    """

    def __init__(
        self,
        address: Address,
        *,
        secret: str | bytes | None = None,
        tls: ssl.SSLContext | None = None,
        trust: bool = False,
        code_limit: int = CODE_LIMIT,
        timeout: float = 10.0,
    ) -> None:
        self.address = address
        self._secret = secret_bytes(secret)
        self._tls = tls
        self._trust = trust
        self._code_limit = code_limit
        self._timeout = timeout
        self._channel: Channel | None = None
        self._loopback = False
        self._closed = False
        self._code: Partial | None = None
        self._weights: Partial | None = None
        self._fetched: Structure | None = None  # a program that has come, before its weights have
        self._unfit: tuple[bytes, Error] | None = None  # a program that cannot be used here, and why
        self._memory: Array | None = None
        self._workers = ThreadPoolExecutor(DIGESTERS, thread_name_prefix="weights-digest")
        self._stats = {"connections": 0, "bytes_received": 0, "updates": 0, "programs": 0, "resumed": 0}

    def newer(self, after: Mark | None, structure: Structure | None, wait: float) -> Update | None:
        """The newest update newer than `after` from the server; None if none came within `wait` seconds (see
        `Source.newer`)."""
        if self._closed:
            raise TransportError("the source is closed", where=str(self.address))
        try:
            channel = self._channel or self._connect()
            return self._ask(channel, after, self._fetched or structure, wait)
        except BaseException as error:
            if isinstance(error, HostileError):
                self._code = self._weights = None
            self._disconnect()
            raise

    def close(self) -> None:
        """Close the source; a waiting call raises TransportError."""
        self._closed = True
        channel = self._channel
        if channel is not None:
            channel.close()

    def forget(self) -> None:
        """In the child of a fork: the connection is the parent's."""
        self._closed = True
        if self._channel is not None:
            self._channel.forget()

    def stats(self) -> dict[str, int]:
        """Counts of connections, bytes, complete updates, complete programs, and resumed transfers."""
        channel = self._channel
        received = self._stats["bytes_received"] + (channel.received if channel else 0)
        return {**self._stats, "bytes_received": received}

    # -- the connection ----------------------------------------------------------------------------------------------

    def _connect(self) -> Channel:
        self._channel, self._loopback = opened(self.address, self._timeout)
        channel = self._channel
        self._stats["connections"] += 1
        if self._tls is not None:
            channel.start_tls(self._tls, self.address.host)
        join(channel, self._secret, self.address.name)
        return channel

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._stats["bytes_received"] += channel.received
            channel.close()

    @property
    def _authentic(self) -> bool:
        """Whether the server's identity is certain: by the secret or TLS, or because it is this machine or need not be
        checked."""
        proved = self._tls is not None and self._tls.verify_mode == ssl.CERT_REQUIRED and self._tls.check_hostname
        return self._secret is not None or proved or self._loopback or self._trust

    # -- updates -----------------------------------------------------------------------------------------------------

    def _ask(self, channel: Channel, after: Mark | None, have: Structure | None, seconds: float) -> Update | None:
        seconds = min(max(seconds, 0.0), MAX_WAIT)
        want = Want(after, have.id if have else NO_STRUCTURE, seconds, _part(self._code), _part(self._weights))
        channel.send(Kind.WANT, want.pack())
        kind, body = channel.receive({Kind.NOTHING: 0, Kind.OFFER: OFFER_BYTES}, wait=seconds)
        if kind is Kind.NOTHING:
            return None
        offer = Offer.unpack(body, channel.peer)
        if offer.what is What.CODE:
            have = self._fetched = self._program(channel, offer)
            offer = Offer.unpack(channel.receive({Kind.OFFER: OFFER_BYTES})[1], channel.peer)
        if offer.what is not What.WEIGHTS or have is None or offer.structure != have.id:
            raise HostileError("weights for a program that was not sent", where=channel.peer)
        if not offer.mark.newer_than(after):
            raise HostileError("an update that is not newer", where=channel.peer)
        return self._update(channel, offer, have)

    def _program(self, channel: Channel, offer: Offer) -> Structure:
        """Fetch the program that `offer` announces. Raises HostileError if what arrives is another one, RefusedError if
        the server is not authenticated."""
        if not self._authentic:
            hint = "use a secret or TLS; trust=True takes native code from any process that answers at this address"
            raise RefusedError("code from a server that nothing authenticates", where=channel.peer, hint=hint)
        if self._unfit and self._unfit[0] == offer.structure:
            raise self._unfit[1]
        if not 0 < offer.nbytes <= self._code_limit:
            raise HostileError(
                "a program of this size is not taken", where=channel.peer, expected=f"<= {self._code_limit}",
                got=offer.nbytes,
            )  # fmt: skip
        part = self._resumed(channel, offer, self._code)
        if part is None:
            part = self._code = Partial(offer.blob, offer.nbytes)
        self._receive(channel, part)
        self._code = None
        try:
            result = decode(part.memory.data.toreadonly(), str(self.address))
        except Error as error:
            self._unfit = (offer.structure, error)
            raise
        if result.id != offer.structure:
            raise HostileError("a program that is not the one announced", where=channel.peer)
        self._stats["programs"] += 1
        return result

    def _update(self, channel: Channel, offer: Offer, have: Structure) -> Update:
        """Receive the weights that `offer` announces, as an update of the program `have`."""
        if offer.nbytes != have.layout.nbytes:
            raise HostileError(
                "weights of the wrong size", where=channel.peer, expected=have.layout.nbytes, got=offer.nbytes
            )
        part = self._resumed(channel, offer, self._weights)
        if part is None:
            self._memory = reusable(self._memory, offer.nbytes)
            part = self._weights = Partial(offer.blob, offer.nbytes, self._memory)
        self._receive(channel, part)
        self._weights = self._fetched = None
        image = part.memory.data.toreadonly()
        have.weights(image, channel.peer)
        self._stats["updates"] += 1
        return Update(offer.mark, offer.version, have, image, offer.finite)

    def _resumed(self, channel: Channel, offer: Offer, part: Partial | None) -> Partial | None:
        """The partial blob `part`, if the server continues where it ends; None if the server begins with the first
        chunk. Raises HostileError if the server continues elsewhere."""
        if offer.start == 0:
            return None
        if part is None or (part.id, part.nbytes, part.done) != (offer.blob, offer.nbytes, offer.start):
            raise HostileError("goes on where nothing was begun", where=channel.peer, got=f"chunk {offer.start}")
        self._stats["resumed"] += 1
        log.info("%s: goes on at chunk %d of %d", channel.peer, part.done, chunk_count(part.nbytes))
        return part

    def _receive(self, channel: Channel, part: Partial) -> None:
        """Receive the chunks that `part` lacks, and compare the digest of the whole with the server's. Raises
        HostileError if they differ."""
        waiting: deque[tuple[Future[bytes], Callable[[bytes], None]]] = deque()
        try:
            for k in range(part.done, part.chunks):
                view = part.view(k)
                accept = channel.read_into(Kind.DATA, view)
                waiting.append((digested(self._workers, view), accept))
                if len(waiting) > DIGESTERS:
                    _take_chunk(part, waiting)
        finally:
            # What has arrived before the connection broke counts.
            while waiting:
                _take_chunk(part, waiting)
        _, root = channel.receive({Kind.END: 32})
        if root != part.root():
            raise HostileError("the digest of the whole is wrong", where=channel.peer)


def _take_chunk(part: Partial, waiting: deque[tuple[Future[bytes], Callable[[bytes], None]]]) -> None:
    """Accept the oldest chunk in `waiting`, once its digest is computed, into `part`; if its tag is wrong, an error is
    raised and the rest is dropped."""
    try:
        result, accept = waiting.popleft()
        accept(result.result())
        part.add(result.result())
    except BaseException:
        wait([future for future, _ in waiting])  # no thread may read the memory after this
        waiting.clear()
        raise


def _part(part: Partial | None) -> tuple[bytes, int]:
    return (part.id, part.done) if part else (NO_ID, 0)
