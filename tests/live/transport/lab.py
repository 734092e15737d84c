"""Parts that the tests of the transport share: weights of many chunks, a proxy that cuts, peers that misbehave."""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from tests.runtime.programs import affine
from tilewright.live.transport.address import parse_address
from tilewright.live.transport.client import TcpSource
from tilewright.live.transport.feed import Feed
from tilewright.live.transport.server import Server
from tilewright.live.transport.source import Update
from tilewright.live.transport.structure import Structure
from tilewright.live.transport.wire import LostError
from tilewright.runtime.program import Program
from tilewright.runtime.specs import ParamSpec
from tilewright.support.errors import TransportError

SECRET = "a secret of more than sixteen bytes"
ELEMENTS = 600_001
"""Elements of the large weight: ten chunks, the last one of which is cut."""

FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
"""The first case of random ones."""


def count(short: int, share: float = 1.0) -> int:
    """How many random cases: few in `make test`, a share of TILEWRIGHT_FUZZ_CASES in `make fuzz`."""
    if not os.environ.get("TILEWRIGHT_FUZZ"):
        return short
    return max(short, int(share * int(os.environ.get("TILEWRIGHT_FUZZ_CASES", "10000"))))


def wide_program(elements: int = ELEMENTS) -> Program:
    """A program that is not linked, with a weight of this many elements. Others of it are another structure."""
    original = affine()
    params = (*original.manifest.params, ParamSpec("large", "f32", (elements,)))
    return Program(dataclasses.replace(original.manifest, params=params), original.objects)


def wide_weights(value: float, elements: int = ELEMENTS) -> dict[str, np.ndarray]:
    """All elements of all weights are `value`."""
    w, scale = np.full((2, 3), value, np.float32), np.array([value], np.float32)
    return {"w": w, "scale": scale, "large": np.full(elements, value, np.float32)}


def whole(value: float, elements: int, weights: int | None = None) -> Program:
    """The wide program with its weights, of which the large one may be of another size than it should."""
    program = wide_program(elements)
    return Program(program.manifest, program.objects, wide_weights(value, weights or elements))


def seen(update: Any) -> float:
    """The one value that all elements of an update have."""
    values = {v for a in update.structure.weights(update.image, "test").values() for v in np.unique(a).tolist()}
    assert len(values) == 1, f"version {update.version} is torn: {values}"
    return values.pop()


@contextmanager
def serving(
    *, elements: int = ELEMENTS, value: float | None = 1.0, secret: str | None = SECRET, **options: Any
) -> Iterator[tuple[Server, Feed]]:
    """A server of the wide program under the name "wide"."""
    server = Server(secret=secret, **options)
    feed = Feed("wide", wide_program(elements))
    if value is not None:
        feed.publish(wide_weights(value, elements), int(value))
    server.add(feed)
    try:
        yield server, feed
    finally:
        server.close()


def source(port: int, name: str = "wide", secret: str | None = SECRET, **options: Any) -> TcpSource:
    return TcpSource(parse_address(f"tcp://127.0.0.1:{port}/{name}"), secret=secret, **options)


def fetch(node: TcpSource, after: Update | None, structure: Structure | None, tries: int = 200) -> tuple[Update, int]:
    """The next update, trying again as often as the connection is lost; and how often that was."""
    for lost in range(tries):
        try:
            update = node.newer(after and after.mark, structure, 30)
        except LostError:
            continue
        assert update is not None
        return update, lost
    raise AssertionError("it never arrives")


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.002)


class Proxy:
    """Between a node and a server, byte for byte, until it cuts.

    Args:
        cut: for each connection, after how many bytes from the server it is cut; None: never.
        record: keep what went each way of the first connection.
        tamper: what is passed on in place of some bytes.
        freeze: where it would cut, keep the connection open and pass on nothing more.
    """

    def __init__(
        self,
        port: int,
        cut: Callable[[], int | None] = lambda: None,
        record: bool = False,
        tamper: Callable[[bytes], bytes] = lambda data: data,
        freeze: bool = False,
    ) -> None:
        self._freeze = threading.Event() if freeze else None
        self._target = port
        self._cut = cut
        self._tamper = tamper
        self.connections = 0
        self.cuts = 0
        self.recorded: tuple[bytearray, bytearray] | None = (bytearray(), bytearray()) if record else None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                node, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                node.close()
                continue
            recorded = self.recorded if self.connections == 1 else None
            threading.Thread(
                target=self._pump, args=(node, server, None, recorded and recorded[0]), daemon=True
            ).start()
            threading.Thread(
                target=self._pump, args=(server, node, self._cut(), recorded and recorded[1]), daemon=True
            ).start()

    def _pump(self, inlet: socket.socket, outlet: socket.socket, left: int | None, record: bytearray | None) -> None:
        try:
            while data := inlet.recv(65536 if left is None else min(65536, max(left, 1))):
                if left is not None and left <= 0:
                    self.cuts += 1
                    if self._freeze is not None:
                        self._freeze.wait(60)
                    break
                if record is not None:
                    record += data
                outlet.sendall(self._tamper(data))
                left = None if left is None else left - len(data)
        except OSError:
            pass
        for sock in (inlet, outlet):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def close(self) -> None:
        if self._freeze is not None:
            self._freeze.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def impostor(behave: Callable[[socket.socket], None], port: int = 0) -> Iterator[int]:
    """A listener on which each connection is handed to `behave`; gives its port."""
    listener = socket.create_server(("127.0.0.1", port))

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                with suppress(OSError, TransportError):
                    behave(sock)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def damage(data: bytes, rng: random.Random) -> bytes:
    """Bytes with bits flipped, pieces cut, repeated, exchanged or invented."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1:
                del out[at : at + rng.randint(1, 64)]
            case 2:
                out[at:at] = rng.randbytes(rng.randint(1, 64))
            case 3:
                out[at:at] = out[at : at + rng.randint(1, 64)]
            case 4:
                out[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", bytes(4)])
            case _:
                del out[at:]
    return bytes(out)
