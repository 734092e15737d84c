"""Peers that know the secret and yet send what they should not: scripts of frames, damaged with a purpose.

A case is a seed. `hostile_server` plays one to a node, `hostile_node` one to a server; what is sent are good frames
with good tags, so that everything after the tags is tried.
"""

from __future__ import annotations

import dataclasses
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from tests.live.transport.lab import SECRET, damage, wide_program, wide_weights
from tilewright.live.transport import structure
from tilewright.live.transport.blob import Blob
from tilewright.live.transport.messages import WANT_BYTES, Mark, Offer, Want, What
from tilewright.live.transport.session import authenticate, join, secret_bytes
from tilewright.live.transport.wire import CHUNK, Channel, Kind, digest
from tilewright.runtime.image import pack_into
from tilewright.support.errors import TransportError

SMALL = 70_000
"""Elements of the large weight in these tests: two chunks."""

STRUCTURE, CODE = structure.encode(wide_program(SMALL))
IMAGE = np.zeros(STRUCTURE.layout.nbytes, np.uint8)
pack_into(STRUCTURE.layout, STRUCTURE.params, [wide_weights(1, SMALL)[p.name] for p in STRUCTURE.params], IMAGE)

WORKERS = ThreadPoolExecutor(1)
Frames = list[tuple[Kind | int, bytes]]


def offered(what: What, data: bytes, of: bytes = STRUCTURE.id) -> Frames:
    """A good transfer of these bytes."""
    blob = Blob(np.frombuffer(data, np.uint8))
    offer = Offer(what, Mark(b"r" * 16, 7), 7, of, blob.id, blob.nbytes, 0, True)
    blob.begin(WORKERS)
    chunks: Frames = [(Kind.DATA, bytes(blob.chunk(k))) for k in range(blob.chunks)]
    return [(Kind.OFFER, offer.pack()), *chunks, (Kind.END, blob.root())]


def server_script(rng: random.Random) -> Frames:
    """The answers of a hostile server to a WANT."""
    match rng.randrange(7):
        case 0:  # an offer whose fields lie
            frames = _good(rng)
            k = rng.choice([k for k, (kind, _) in enumerate(frames) if kind is Kind.OFFER])
            frames[k] = (Kind.OFFER, _lying(Offer.unpack(frames[k][1], "test"), rng).pack())
        case 1:  # bytes that are not what the digest says
            frames = _good(rng)
            k = rng.randrange(len(frames))
            frames[k] = (frames[k][0], damage(frames[k][1], rng))
        case 2:  # code that is damaged, and announced as it is
            code = damage(CODE, rng)
            frames = offered(What.CODE, code, digest(code)) + offered(What.WEIGHTS, IMAGE.tobytes(), digest(code))
        case 3:  # weights that are damaged, and announced as they are
            image = damage(IMAGE.tobytes()[: rng.choice([500, IMAGE.nbytes])], rng)
            frames = offered(What.CODE, CODE) + offered(What.WEIGHTS, image)
        case 4:  # frames that are missing, repeated, exchanged
            frames = _good(rng)
            for _ in range(rng.randint(1, 3)):
                i, j = rng.randrange(len(frames)), rng.randrange(len(frames))
                frames[i] = frames[j]
            del frames[rng.randrange(len(frames)) :]
        case 5:  # frames of any kind with any body
            frames = [(rng.randrange(256), rng.randbytes(rng.choice([0, 1, 32, 97, 2000]))) for _ in range(4)]
        case _:  # a good transfer that ends early
            frames = _good(rng)
            del frames[rng.randrange(len(frames)) :]
    return frames


def hostile_server(sock: socket.socket, rng: random.Random) -> None:
    """Play one case to the node at the other end."""
    channel = Channel(sock, "the node", 5.0)
    with suppress(TransportError):
        authenticate(channel, secret_bytes(SECRET), lambda name: None)
        channel.receive({Kind.WANT: WANT_BYTES})
        for kind, body in server_script(rng):
            channel.send(kind, body)  # type: ignore[arg-type]
        if rng.random() < 0.2:  # a head that announces what no memory holds
            length = rng.choice([CHUNK + 1, 1 << 30, (1 << 32) - 1])
            sock.sendall(length.to_bytes(4, "little") + bytes([rng.randrange(9)]) + rng.randbytes(16))
    channel.close()


def hostile_node(port: int, rng: random.Random) -> None:
    """Play one case to the server at this port, and read what it says to it."""
    with socket.create_connection(("127.0.0.1", port), 5) as sock, suppress(TransportError, OSError):
        if rng.random() < 0.3:
            sock.sendall(rng.randbytes(rng.randrange(200)))
            sock.shutdown(socket.SHUT_WR)
            return
        channel = Channel(sock, "the server", 5.0)
        join(channel, secret_bytes(SECRET), rng.choice(["wide", "wide", "wide", "wild"]))
        none = (bytes(16), 0)
        want = Want(None, bytes(32), 0.0, none, none).pack()
        for _ in range(rng.randint(1, 4)):
            match rng.randrange(5):
                case 0:
                    channel.send(Kind.WANT, damage(want, rng))
                case 1:
                    channel.send(rng.randrange(256), rng.randbytes(rng.choice([0, 5, WANT_BYTES, 5000])))  # type: ignore[arg-type]
                case 2:  # an ordinary question with odd numbers
                    part = rng.randbytes(16), rng.getrandbits(32)
                    channel.send(Kind.WANT, Want(None, rng.randbytes(32), rng.random(), part, part).pack())
                case 3:
                    sock.sendall(rng.choice([b"\xff" * 21, bytes(21), rng.randbytes(30)]))
                case _:
                    channel.send(Kind.WANT, want)
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(5)
        if rng.random() < 0.5:  # else go without reading
            while sock.recv(1 << 16):
                pass


def _good(rng: random.Random) -> Frames:
    code = offered(What.CODE, CODE) if rng.random() < 0.8 else []
    return code + offered(What.WEIGHTS, IMAGE.tobytes())


def _lying(offer: Offer, rng: random.Random) -> Offer:
    match rng.randrange(7):
        case 0:
            return dataclasses.replace(offer, nbytes=rng.choice([0, 1, offer.nbytes + 1, 1 << 40, (1 << 64) - 1]))
        case 1:
            return dataclasses.replace(offer, start=rng.choice([1, 2, 3, (1 << 32) - 1]))
        case 2:
            return dataclasses.replace(offer, structure=rng.randbytes(32))
        case 3:
            return dataclasses.replace(offer, version=rng.choice([-1, -(1 << 63)]))
        case 4:
            return dataclasses.replace(offer, mark=Mark(bytes(16), 0))
        case 5:
            return dataclasses.replace(offer, what=rng.choice(list(What)))
        case _:
            return dataclasses.replace(offer, nbytes=offer.nbytes - 64)
