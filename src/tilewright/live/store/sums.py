"""Checksums of versions, taken after a publish: the learner does not wait while its weights are read once more."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from tilewright.live.store.epoch import Epoch
from tilewright.runtime.native import native
from tilewright.runtime.weights.control import SlotState

AT_ONCE = 1 << 20
"""Bytes up to which summing takes less than waking a thread."""
IDLE_SECONDS = 1.0
"""Seconds without a version after which the thread ends; the next version starts another."""
WAIT_SECONDS = 2.0
"""Seconds that a reader waits for the checksum of a version that was published just now."""


class Sums:
    """Takes the checksums of an owner's versions, those of large ones in a thread of its own.

    Where versions come faster than they can be read, older ones go without. The newest gets its checksum, unless the
    process dies within milliseconds of publishing it.

    Args:
        lock: which the owner holds while it writes to a slot.
    """

    def __init__(self, lock: contextlib.AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._changed = threading.Condition()
        self._next: tuple[Epoch, SlotState, Any] | None = None
        self._thread: threading.Thread | None = None
        self._busy = False

    def at_once(self, epoch: Epoch, slot: int) -> int:
        """The checksum of a slot that is small; 0 of others, which are to be added when they are sealed."""
        memory = epoch.segments
        return int(native().checksum(memory.slot_address(slot), memory.nbytes)) if memory.nbytes <= AT_ONCE else 0

    def add(self, epoch: Epoch, slot: int) -> None:
        """Sum up what was published in a slot just now. The caller holds the lock."""
        job = (epoch, epoch.control.slot(slot), epoch.segments.view(slot))
        with self._changed:
            self._next = job
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tilewright-checksums", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no thread is to be had: the version is published, and goes without
                    self._thread = self._next = None

    def wait(self) -> None:
        """Until nothing is left to do. The caller does not hold the lock."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is None and not self._busy)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._next is not None, IDLE_SECONDS):
                    self._thread = None
                    return
                job, self._next, self._busy = self._next, None, True
            assert job is not None
            with contextlib.suppress(Exception):  # it is a help for later, and no call waits for it
                self._sum(*job)

    def _sum(self, epoch: Epoch, slot: SlotState, memory: Any) -> None:
        checksum = native().checksum(memory.ctypes.data, epoch.segments.nbytes)
        with self._lock:
            epoch.control.set_checksum(slot, checksum)


def is_whole(epoch: Epoch, slot: int) -> bool | None:
    """Whether a sealed slot's bytes match its checksum; None if it has none, or does not get it soon."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (wanted := epoch.control.slot(slot).checksum):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)
    return bool(native().checksum(epoch.segments.slot_address(slot), epoch.segments.nbytes) == wanted)
