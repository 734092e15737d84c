"""The handshake of a connection: both sides send a nonce, and prove that they know the secret.

    node -> server   hello: magic, protocol, keyed or not, nonce (32)
    server -> node   hello: the same with the server's nonce
    node -> server   OPEN name       its tag proves that the node knows the secret
    server -> node   WELCOME         its tag proves that the server does; or REFUSED with a reason

The session's keys, one for each direction, are BLAKE2b of both hellos under the secret. Nonces of both sides are in
them, so nothing recorded in one session means anything in another. Without a secret the keys follow from the hellos
alone: tags then detect damage, not attacks. The secret itself is never sent, but an eavesdropper can test guesses, so
that it should be long and random. The data is not encrypted: for that, use TLS.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from hashlib import blake2b

from tilewright.live.transport.wire import Channel, HostileError, Kind, LostError, RefusedError
from tilewright.support.errors import TransportError

MAGIC = b"TWEIGHTS"
"""The first bytes of a connection."""
PROTOCOL = 1
"""Version of the protocol: both ends must agree."""
MIN_SECRET = 16
"""The least bytes of a shared secret."""

_HELLO = struct.Struct("<8sHH32s")
_MAX_NAME = 128
"""The most bytes of a store's name."""
_MAX_REASON = 512
"""The most bytes of the reason for a refusal."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PERSON = b"tw-transport-1"
"""BLAKE2's personalisation, so that digests of other protocols are never valid here."""


def secret_bytes(secret: str | bytes | None) -> bytes | None:
    """The key of 64 bytes that is derived from `secret`; None if there is no secret. Raises TransportError if it has
    less than `MIN_SECRET` bytes."""
    if secret is None:
        return None
    raw = secret.encode() if isinstance(secret, str) else bytes(secret)
    if len(raw) < MIN_SECRET:
        hint = 'make one with python -c "import secrets; print(secrets.token_hex(32))"'
        raise TransportError(
            "the secret is too short", expected=f"at least {MIN_SECRET} bytes", got=len(raw), hint=hint
        )
    return blake2b(raw, digest_size=64, person=_PERSON).digest()


def check_name(name: str) -> str:
    """A valid name of weights or a service. Raises TransportError for others."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TransportError("bad name", expected="letters, digits, '.', '_' and '-'", got=repr(name)[:80])
    return name


def join(channel: Channel, secret: bytes | None, name: str) -> None:
    """The node's side of a handshake, with the `secret` that both sides share (None: without one): open a session about
    the source `name`. Raises RefusedError if the server refuses."""
    mine = _HELLO.pack(MAGIC, PROTOCOL, secret is not None, os.urandom(32))
    channel.write(mine)
    theirs = _read_hello(channel)
    _check_hello(theirs, secret, channel.peer)
    _set_keys(channel, secret, mine, theirs, mine_first=True)
    channel.send(Kind.OPEN, name.encode())
    try:
        kind, body = channel.receive({Kind.WELCOME: 0, Kind.REFUSED: _MAX_REASON})
    except LostError as error:
        if secret is None:
            raise
        hint = "are the secrets of both sides the same?"
        raise LostError("the server ended the handshake", where=channel.peer, got=error.what, hint=hint) from None
    if kind is Kind.REFUSED:
        raise RefusedError(f"the server refuses: {printable(body)}", where=channel.peer)


def authenticate(channel: Channel, secret: bytes | None, refusal: Callable[[str], str | None]) -> str:
    """The server's side of a handshake: the name that a node requests, after both sides have proved that they have the
    `secret` (None: without one).

    Args:
        refusal: a function that returns why a name is refused, or None.
    """
    theirs = _read_hello(channel)
    if theirs[: len(MAGIC)] != MAGIC:
        raise HostileError("does not speak this protocol", where=channel.peer, got=printable(theirs[:16]))
    mine = _HELLO.pack(MAGIC, PROTOCOL, secret is not None, os.urandom(32))
    channel.write(mine)
    _check_hello(theirs, secret, channel.peer)
    _set_keys(channel, secret, theirs, mine, mine_first=False)
    try:
        _, body = channel.receive({Kind.OPEN: _MAX_NAME})
    except HostileError as error:
        if secret is None:
            raise
        raise HostileError(error.what, where=error.where, hint="does it know the secret?") from None
    name = printable(body)
    reason = refusal(name)
    if reason is not None:
        channel.send(Kind.REFUSED, reason.encode()[:_MAX_REASON])
        raise RefusedError(reason, where=channel.peer)
    channel.send(Kind.WELCOME)
    return name


def printable(data: bytes, limit: int = 200) -> str:
    """The untrusted bytes `data`, at most `limit` of them, as printable text for one line of a log."""
    text = data[: 4 * limit].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)[:limit]


def _read_hello(channel: Channel) -> bytes:
    hello = bytearray(_HELLO.size)
    channel.read(memoryview(hello))
    return bytes(hello)


def _check_hello(theirs: bytes, secret: bytes | None, peer: str) -> None:
    magic, protocol, keyed, _ = _HELLO.unpack(theirs)
    if magic != MAGIC:
        raise HostileError("does not speak this protocol", where=peer, got=printable(theirs[:16]))
    if protocol != PROTOCOL:
        raise RefusedError("speaks another version of the protocol", where=peer, expected=PROTOCOL, got=protocol)
    if keyed != (secret is not None):
        what = "the peer wants no secret, and this side does" if secret else "the peer wants a secret"
        raise RefusedError(what, where=peer, hint="give both sides the same secret")


def _set_keys(channel: Channel, secret: bytes | None, node: bytes, server: bytes, *, mine_first: bool) -> None:
    common = blake2b(node + server, digest_size=64, key=secret or b"", person=_PERSON).digest()
    from_node = blake2b(b"from the node", digest_size=64, key=common, person=_PERSON).digest()
    from_server = blake2b(b"from the server", digest_size=64, key=common, person=_PERSON).digest()
    channel.secure(*((from_node, from_server) if mine_first else (from_server, from_node)))
