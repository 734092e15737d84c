"""Frames: what is sent arrives; what is not exactly that ends the connection before it costs memory."""

from __future__ import annotations

import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator

import pytest

from tilewright.live.transport.wire import CHUNK, Channel, HostileError, Kind, LostError, digest

KEYS = b"k" * 64, b"l" * 64
HEAD = struct.Struct("<IB16s")


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    a, b = socket.socketpair()
    left, right = Channel(a, "left", 1.0), Channel(b, "right", 1.0)
    left.secure(*KEYS)
    right.secure(*KEYS[::-1])
    yield left, right
    left.close()
    right.close()


def test_frames_arrive(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    bodies = [b"", b"x", bytes(range(256)) * 40]
    for body in bodies:
        left.send(Kind.DATA, body)
    assert [right.receive({Kind.DATA: 20_000})[1] for _ in bodies] == bodies
    right.send(Kind.END, b"back")
    assert left.receive({Kind.END: 4, Kind.DATA: 0}) == (Kind.END, b"back")


def test_into_memory(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    body = b"abc" * (CHUNK // 3)
    threading.Thread(target=left.send, args=(Kind.DATA, body)).start()
    memory = bytearray(len(body))
    accept = right.read_into(Kind.DATA, memoryview(memory))
    accept(digest(memory))
    assert memory == body
    with pytest.raises(HostileError, match="forged"):
        accept(digest(b"something else"))
    left.send(Kind.DATA, b"short")
    with pytest.raises(HostileError, match="wrong length"):
        right.read_into(Kind.DATA, memoryview(memory))


@pytest.mark.parametrize("damaged", [0, 3, 4, 5, 20, 21, 30])
def test_each_bit_counts(damaged: int) -> None:
    """One flipped bit of length, kind, tag or body."""
    a, b = socket.socketpair()
    left, right = Channel(a, "left", 0.2), Channel(b, "right", 0.2)
    frames = _recorded([(Kind.END, b"0123456789")])
    wrong = bytearray(frames[0])
    wrong[damaged] ^= 1
    right.secure(*KEYS[::-1])
    a.sendall(wrong)
    with pytest.raises((HostileError, LostError)):
        right.receive({Kind.END: 10, Kind.DATA: 10})
    left.close()
    right.close()


def test_repeated_reordered_or_left_out() -> None:
    first, second, third = _recorded([(Kind.END, b"1"), (Kind.END, b"2"), (Kind.END, b"3")])
    for order, good in (((first, first), 1), ((second, first), 0), ((first, third), 1), ((first, second, third), 3)):
        a, b = socket.socketpair()
        right = Channel(b, "right", 1.0)
        right.secure(*KEYS[::-1])
        a.sendall(b"".join(order))
        for _ in range(good):
            right.receive({Kind.END: 1})
        if good < len(order):
            with pytest.raises(HostileError, match="forged, damaged or out of turn"):
                right.receive({Kind.END: 1})
        a.close()
        right.close()


def test_a_frame_of_the_other_direction() -> None:
    """A frame that this side sent itself does not come back as the peer's."""
    frame = _recorded([(Kind.END, b"1")])[0]
    a, b = socket.socketpair()
    mirror = Channel(b, "mirror", 1.0)
    mirror.secure(*KEYS)
    a.sendall(frame)
    with pytest.raises(HostileError):
        mirror.receive({Kind.END: 1})
    a.close()
    mirror.close()


@pytest.mark.parametrize("length", [11, 1 << 20, (1 << 32) - 1])
def test_lengths_are_looked_at_before_memory(length: int) -> None:
    a, b = socket.socketpair()
    right = Channel(b, "the peer", 1.0)
    right.secure(*KEYS[::-1])
    a.sendall(HEAD.pack(length, Kind.END, bytes(16)))
    tracemalloc.start()
    with pytest.raises(HostileError, match=r"the peer: a frame is too long: expected END <= 10, got \d+"):
        right.receive({Kind.END: 10})
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    a.close()
    right.close()


def test_kinds_out_of_turn(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    left.send(Kind.DATA, b"x")
    with pytest.raises(HostileError, match="expected OFFER or NOTHING, got 7"):
        right.receive({Kind.OFFER: 100, Kind.NOTHING: 0})


def test_silence_and_trickles_end() -> None:
    a, b = socket.socketpair()
    right = Channel(b, "right", 0.15)
    with pytest.raises(LostError, match="silent or too slow"):
        right.receive({Kind.END: 10})
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.05):
            a.send(b"\x00")

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(LostError, match="silent or too slow"):
        right.receive({Kind.DATA: 0, Kind.END: 10})
    stop.set()
    thread.join()
    a.close()
    with pytest.raises(LostError, match="closed the connection"):
        while True:
            right.read(memoryview(bytearray(1)))
    right.close()


def test_who_does_not_read_is_left() -> None:
    a, b = socket.socketpair()
    left = Channel(a, "left", 0.2)
    left.secure(*KEYS)
    with pytest.raises(LostError, match="silent or too slow"):
        for _ in range(100):
            left.send(Kind.DATA, bytes(CHUNK))
    left.close()
    b.close()


def _recorded(frames: list[tuple[Kind, bytes]]) -> list[bytes]:
    """The bytes of frames as the left side sends them."""
    a, b = socket.socketpair()
    left = Channel(a, "left", 1.0)
    left.secure(*KEYS)
    recorded = []
    for kind, body in frames:
        left.send(kind, body)
        recorded.append(b.recv(1 << 16))
    left.close()
    b.close()
    return recorded
