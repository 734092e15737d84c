"""The messages of nodes and servers: the bytes of each, and which bytes are none of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.live.transport.hostile import IMAGE, SMALL
from tests.live.transport.hostile import STRUCTURE as STRUCTURE_OF_IMAGE
from tests.live.transport.lab import wide_weights
from tilewright.live.transport.messages import MAX_WAIT, OFFER_BYTES, WANT_BYTES, Mark, Offer, Want, What
from tilewright.live.transport.wire import HostileError

RUN, STRUCTURE, CODE, WEIGHTS = (bytes([k]) * n for k, n in ((1, 16), (2, 32), (3, 16), (4, 16)))
WANT = Want(Mark(RUN, 513), STRUCTURE, 2.5, (CODE, 6), (WEIGHTS, 7))
OFFER = Offer(What.WEIGHTS, Mark(RUN, 513), 9, STRUCTURE, CODE, 1 << 40, 5, True)


def little(value: int, nbytes: int) -> bytes:
    return value.to_bytes(nbytes, "little", signed=True)


def test_the_bytes_of_a_want() -> None:
    rest = STRUCTURE + little(2500, 4) + CODE + little(6, 4) + WEIGHTS + little(7, 4)
    first = dataclasses.replace(WANT, after=None)
    for want, after in ((WANT, RUN + little(513, 8)), (first, bytes(24))):
        assert want.pack() == after + rest and len(after + rest) == WANT_BYTES
        assert Want.unpack(after + rest, "peer") == want


@pytest.mark.parametrize(("asked", "meant"), [(-1.0, 0.0), (0.001, 0.001), (MAX_WAIT, MAX_WAIT), (1e9, MAX_WAIT)])
def test_a_want_waits_no_longer_than_it_may(asked: float, meant: float) -> None:
    assert Want.unpack(dataclasses.replace(WANT, wait=asked).pack(), "peer").wait == meant


def test_a_wait_is_cut_by_who_reads_it_too() -> None:
    body = bytearray(WANT.pack())
    body[56:60] = b"\xff" * 4
    assert Want.unpack(bytes(body), "peer").wait == MAX_WAIT


def test_the_bytes_of_an_offer() -> None:
    mark = RUN + little(513, 8)
    body = b"\x02" + mark + little(9, 8) + STRUCTURE + CODE + little(1 << 40, 8) + little(5, 4) + b"\x01"
    assert OFFER.pack() == body and len(body) == OFFER_BYTES
    assert Offer.unpack(body, "peer") == OFFER
    other = dataclasses.replace(OFFER, what=What.CODE, finite=False, version=0, start=0)
    assert Offer.unpack(other.pack(), "peer") == other


@pytest.mark.parametrize(
    "change", [{"version": -1}, {"mark": Mark(bytes(16), 1)}, {"what": 0}, {"what": 3}, {"finite": 2}]
)
def test_offers_with_impossible_fields(change: dict[str, object]) -> None:
    with pytest.raises(HostileError, match="impossible"):
        Offer.unpack(dataclasses.replace(OFFER, **change).pack(), "peer")  # type: ignore[arg-type]


def test_wrong_lengths() -> None:
    for kind, body in ((Want, WANT.pack()), (Offer, OFFER.pack())):
        for wrong in (body[:-1], body + b"x", b""):
            with pytest.raises(HostileError, match="wrong length"):
                kind.unpack(wrong, "peer")


def test_weights_are_those_of_the_program_to_the_byte() -> None:
    """An image of another size or of another head is none."""
    image = IMAGE.tobytes()
    for name, array in STRUCTURE_OF_IMAGE.weights(memoryview(image), "peer").items():
        np.testing.assert_array_equal(array, wide_weights(1, SMALL)[name])
    head = len(STRUCTURE_OF_IMAGE.layout.head)
    for wrong in (image[:-1], image + b"x", b"", b"x" + image[1:], image[: head - 1] + b"x" + image[head:]):
        with pytest.raises(HostileError, match="not those that the program wants"):
            STRUCTURE_OF_IMAGE.weights(memoryview(wrong), "peer")


def test_which_mark_is_newer() -> None:
    mark = Mark(RUN, 5)
    assert mark.newer_than(None) and mark.newer_than(Mark(RUN, 4))
    assert not mark.newer_than(mark) and not mark.newer_than(Mark(RUN, 6))
    assert mark.newer_than(Mark(CODE, 6)), "another run of the source"
