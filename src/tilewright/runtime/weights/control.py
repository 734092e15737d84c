"""The control page: which slot is current, what each slot holds, and who is reading.

It is the same in the private memory of one `Model` and in a file that the processes of a node map. Words are 64 bits:

    0      magic, ABI, bytes of a slot, slots, readers, program (two words of a digest)
    64     current        the slot that calls use; NONE before the first version, SUPERSEDED when there is a newer epoch
    128    slots          64 each: state, version, monotonic and wall time of publication, checksum, seconds spent
    640    readers        128 each: process, since, pins of each slot, version last used, calls

A slot goes FREE -> WRITING -> SEALED, becomes current, and is free again when it is neither current nor pinned. A
reader pins the current slot in its own line, then looks again whether the slot still is current; a writer takes a slot
that is not current, and looks for pins after that. All of this is sequentially consistent, so one of the two sees the
other (Michael, "Hazard Pointers", 2004). A reader that finds its slot replaced has read nothing yet.

There is one writer at a time; its lock is not in this page (`live/store/files.py`).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.layout import Memory, Struct
from tilewright.support.classes import dataclass
from tilewright.support.errors import StoreError

Array = np.ndarray[Any, Any]

ABI_VERSION = 1
"""Version of the control page's layout: all processes of a store must agree."""
SLOTS = 8
"""The number of slots: versions of the weights that can exist at once."""
MAX_READERS = 1024
"""The most processes that can read a store at once."""
NONE, SUPERSEDED = -1, -2
FREE, WRITING, SEALED = 0, 1, 2

_SLOT_LINE, _READER_LINE = 64, 128
_SLOTS_AT, _READERS_AT = 128, 640
_MAGIC = int.from_bytes(b"TWSTORE\x1a", "little")
HEAD = Struct("magic", "abi", "nbytes", "slots", "readers", "program0", "program1")
CURRENT = 64
"""Offset, in bytes, of the number of the slot that calls use."""
SLOT = Struct("state", "version", "published", "wall", "checksum", "spent")
READER = Struct("process", "since", "pins", *(f"pins{k}" for k in range(1, SLOTS)), "version", "calls")

assert READER.size <= _READER_LINE and SLOT.size <= _SLOT_LINE and _SLOTS_AT + SLOTS * _SLOT_LINE <= _READERS_AT


@dataclass(frozen=True, slots=True)
class SlotState:
    """The state of a slot. `published` is monotonic seconds, `wall` seconds since 1970, `spent` seconds of publishing;
    a `checksum` of 0 means none."""

    index: int
    state: int
    version: int
    published: float
    wall: float
    checksum: int
    spent: float


@dataclass(frozen=True, slots=True)
class ReaderState:
    """A reader that is attached: its process, since when (monotonic seconds), the version of its last call, calls made,
    and the slots that it pins now."""

    index: int
    process: int
    since: float
    version: int
    calls: int
    pins: tuple[int, ...]


def control_nbytes(readers: int = MAX_READERS) -> int:
    """Bytes of a control page for this many readers."""
    return _READERS_AT + readers * _READER_LINE


class Control:
    """A control page, which says which slot of weights is current and who reads it, in existing memory: `words` are
    int64 and stay in place while this object lives. `readers`: how many the page has lines for."""

    def __init__(self, words: Array, readers: int) -> None:
        from tilewright.runtime.native import native  # which is built on call.py, which reads this file

        self.words = words
        self.address: int = words.ctypes.data
        self.readers = readers
        self._native = native()

    @classmethod
    def private(cls) -> Control:
        """A control page in the memory of this process, with a single reader."""
        memory = Memory(control_nbytes(1))
        control = cls(memory.words, 1)
        control.initialize(0, bytes(16))
        return control

    def initialize(self, nbytes: int, program: bytes) -> None:
        """Initialise a page without a version, for slots of `nbytes` bytes and the program with this 16-byte digest."""
        head = [ABI_VERSION, nbytes, SLOTS, self.readers, *struct.unpack("<qq", program)]
        self.words[1 : 1 + len(head)] = head
        self.words[CURRENT >> 3] = NONE
        self.words[0] = _MAGIC

    def check(self, nbytes: int, program: bytes, where: str) -> None:
        """Raise StoreError unless this is a control page of this version for slots of `nbytes` and the program of this
        digest.

        `where` names the store in the error.
        """
        words = [int(w) for w in self.words[: HEAD.size >> 3]]
        if words[0] != _MAGIC:
            raise StoreError("its control page is damaged or not one", where=where)
        if words[1] != ABI_VERSION:
            hint = "publisher and actors must use the same version of tilewright"
            raise StoreError(
                "made by another version", where=where, expected=f"ABI {ABI_VERSION}", got=words[1], hint=hint
            )
        if words[2:5] != [nbytes, SLOTS, self.readers] or struct.pack("<qq", *words[5:7]) != program:
            raise StoreError("its control page does not belong to its program", where=where)

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int | None:
        """The version of the weights that calls use now; None if there is none."""
        while True:
            index = self.current
            if not 0 <= index < SLOTS:
                return None
            version = int(self.words[(self._slot(index) + SLOT.version) >> 3])
            if self.current == index:
                return version

    @property
    def current(self) -> int:
        """The number of the current slot, or NONE or SUPERSEDED; a damaged page may contain any number."""
        return int(self.words[CURRENT >> 3])

    def newest(self) -> SlotState | None:
        """The current slot's contents; None if there is none."""
        while True:
            index = self.current
            if not 0 <= index < SLOTS:
                return None
            state = self.slot(index)
            if self.current == index and self.slot(index) == state:
                return state

    def _slot_words(self, index: int) -> list[int]:
        at = self._slot(index) >> 3
        words: list[int] = self.words[at : at + (SLOT.size >> 3)].tolist()
        return words

    def slot(self, index: int) -> SlotState:
        state, version, published, wall, checksum, spent = self._slot_words(index)
        return SlotState(index, state, version, published * 1e-9, wall * 1e-9, checksum, spent * 1e-9)

    def reader(self, index: int) -> ReaderState:
        at = (self.reader_address(index) - self.address) >> 3
        process, since, *pins, version, calls = (int(w) for w in self.words[at : at + (READER.size >> 3)])
        return ReaderState(index, process, since * 1e-9, version, calls, tuple(k for k in range(SLOTS) if pins[k]))

    def version_address(self, slot: int) -> int:
        return self.address + self._slot(slot) + SLOT.version

    def reader_address(self, index: int) -> int:
        return self.address + _READERS_AT + index * _READER_LINE

    @property
    def current_address(self) -> int:
        return self.address + CURRENT

    def _slot(self, index: int) -> int:
        return _SLOTS_AT + index * _SLOT_LINE

    # -- the reader's side -------------------------------------------------------------------------------------------

    def enter(self, index: int, process: int) -> None:
        """Register as reader `index`, whose entry may contain data of a dead process."""
        at = (self.reader_address(index) - self.address) >> 3
        self.words[at : at + (READER.size >> 3)] = [process, time.monotonic_ns(), *[0] * SLOTS, 0, 0]

    def forget_pins(self, index: int) -> None:
        """Clear reader `index`'s counts of pins, in the child of a fork, where the calls of other threads do not
        exist."""
        at = (self.reader_address(index) - self.address + READER.pins) >> 3
        self.words[at : at + SLOTS] = 0

    # -- the writer's side -------------------------------------------------------------------------------------------

    def take(self, preferred: Sequence[int], is_alive: Callable[[int], bool], timeout: float) -> int:
        """Reserve a slot for writing: the first of `preferred` that is neither current nor in use by a live reader.
        Waits up to `timeout` seconds for calls to end, then raises StoreError naming the processes that make them."""
        deadline = time.monotonic() + timeout
        while True:
            for slot in preferred:
                if self.seize(slot, is_alive):
                    return slot
            if time.monotonic() > deadline:
                current = self.current
                holders = {self._pinned_by(slot, is_alive) for slot in preferred if slot != current} - {None}
                pids = sorted({self.reader(k).process for k in holders if k is not None})
                raise StoreError(f"calls on all older versions do not end; they are made by processes {pids}")
            time.sleep(0.0002)

    def seize(self, slot: int, is_alive: Callable[[int], bool]) -> bool:
        """Reserve `slot` for writing, unless it is current or in use by a live reader. Returns whether it was
        reserved."""
        if slot == self.current or self._pinned_by(slot, is_alive) is not None:
            return False
        self.words[self._slot(slot) >> 3] = WRITING
        return True

    def _pinned_by(self, slot: int, is_alive: Callable[[int], bool]) -> int | None:
        pins = self.reader_address(0) + READER.pins + 8 * slot
        first = 0
        while (index := self._native.scan(pins, _READER_LINE, first, self.readers)) < self.readers:
            if is_alive(index):
                return int(index)
            first = index + 1
        return None

    def seal(self, slot: int, version: int, spent: float = 0.0, checksum: int = 0) -> None:
        """Mark a reserved slot as holding `version`; its checksum may be stored later."""
        at = self._slot(slot) >> 3
        self.words[at + 1 : at + 6] = [version, time.monotonic_ns(), time.time_ns(), checksum, int(spent * 1e9)]
        self.words[at] = SEALED

    def set_checksum(self, state: SlotState, checksum: int) -> None:
        """Store the checksum of a slot, if it still holds the version of `state`."""
        if self.slot(state.index) == state:
            self.words[(self._slot(state.index) + SLOT.checksum) >> 3] = checksum

    def flip(self, slot: int) -> None:
        """Make a sealed slot (or NONE, SUPERSEDED) the current one, which calls that begin afterwards use; they see all
        earlier stores."""
        self._native.set(self.current_address, slot)

    def release(self, slot: int) -> None:
        """Release a slot that was reserved but not sealed."""
        self.words[self._slot(slot) >> 3] = FREE
