"""The bodies of WANT and OFFER: little-endian structs of fixed fields, without inner lengths that could be wrong."""

from __future__ import annotations

import struct
from enum import IntEnum

from tilewright.live.transport.wire import HostileError
from tilewright.support.classes import dataclass

NO_STRUCTURE = bytes(32)
MAX_WAIT = 60.0
"""Seconds that a node may ask a server to wait for a newer version."""

_WANT = struct.Struct("<16sQ32sI16sI16sI")
_OFFER = struct.Struct("<B16sQq32s16sQIB")
WANT_BYTES = _WANT.size
OFFER_BYTES = _OFFER.size


@dataclass(frozen=True, slots=True)
class Mark:
    """The order of publications: `run` identifies the source's run, `number` the publication in it. Versions are labels
    only, and may decrease.

    A restarted source is a new run, all publications of which are newer.
    """

    run: bytes
    number: int

    def newer_than(self, other: Mark | None) -> bool:
        """Whether this mark is newer than `other`; any mark is newer than None."""
        return other is None or self.run != other.run or self.number > other.number


class What(IntEnum):
    """The kind of blob that an offer announces: a program's code, or weights."""

    CODE = 1
    WEIGHTS = 2


@dataclass(frozen=True, slots=True)
class Want:
    """A request for the newest weights after `after`, within `wait` seconds.

    Args:
        structure: the program that the node has; code is sent if the newest weights are for another one.
        code, weights: a blob of which the node has a part, and the number of chunks that it has.
    """

    after: Mark | None
    structure: bytes
    wait: float
    code: tuple[bytes, int]
    weights: tuple[bytes, int]

    def pack(self) -> bytes:
        run, number = (self.after.run, self.after.number) if self.after else (bytes(16), 0)
        wait = int(min(max(self.wait, 0.0), MAX_WAIT) * 1000)
        return _WANT.pack(run, number, self.structure, wait, *self.code, *self.weights)

    @classmethod
    def unpack(cls, body: bytes, where: str) -> Want:
        if len(body) != _WANT.size:
            raise HostileError("a WANT of the wrong length", where=where, expected=_WANT.size, got=len(body))
        run, number, structure, wait, code, code_done, weights, weights_done = _WANT.unpack(body)
        after = Mark(run, number) if any(run) else None
        seconds = min(wait / 1000, MAX_WAIT)
        return cls(after, structure, seconds, (code, code_done), (weights, weights_done))


@dataclass(frozen=True, slots=True)
class Offer:
    """The announcement of a blob, a program or weights, which follows in chunks.

    Args:
        structure: the program itself, or the one that the weights are for.
        blob: its id, and `nbytes` its size.
        start: the first chunk that is sent; the node has those before it.
        finite: the weights are known to hold no NaN and no infinity.
    """

    what: What
    mark: Mark
    version: int
    structure: bytes
    blob: bytes
    nbytes: int
    start: int
    finite: bool

    def pack(self) -> bytes:
        return _OFFER.pack(
            self.what, self.mark.run, self.mark.number, self.version, self.structure, self.blob, self.nbytes,
            self.start, self.finite,
        )  # fmt: skip

    @classmethod
    def unpack(cls, body: bytes, where: str) -> Offer:
        if len(body) != _OFFER.size:
            raise HostileError("an OFFER of the wrong length", where=where, expected=_OFFER.size, got=len(body))
        what, run, number, version, structure, blob, nbytes, start, finite = _OFFER.unpack(body)
        if what not in (What.CODE, What.WEIGHTS) or version < 0 or finite > 1 or not any(run):
            raise HostileError("an OFFER with impossible fields", where=where)
        return cls(What(what), Mark(run, number), version, structure, blob, nbytes, start, bool(finite))
