"""Checksums of versions, computed after publishing, so that the learner does not wait while its weights are read
again."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from tilewright.live.store.epoch import Epoch
from tilewright.runtime.native import native
from tilewright.runtime.weights.control import SlotState

AT_ONCE = 1 << 20
"""Up to this many bytes, computing the checksum takes less time than waking a thread."""
IDLE_SECONDS = 1.0
"""Seconds without a version after which the thread ends; the next version starts a new one."""
WAIT_SECONDS = 2.0
"""Seconds that a reader waits for the checksum of a version that was just published."""


class Sums:
    """Computes the checksums of published versions, those of large ones in a thread.

    If versions are published faster than they can be read, older ones get no checksum. The newest always gets one,
    unless the process dies within milliseconds of publishing it.

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
        """The checksum of slot `slot` if its memory is small; 0 for a large one, whose checksum the caller requests by
        `add`."""
        memory = epoch.segments
        return int(native().checksum(memory.slot_address(slot), memory.nbytes)) if memory.nbytes <= AT_ONCE else 0

    def add(self, epoch: Epoch, slot: int) -> None:
        """Queue the checksum of the version that was just published in slot number `slot`; it replaces one that is
        queued but not begun. The caller holds the lock."""
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
        """Wait until no checksum is queued or being computed. The caller must not hold the lock, which storing a
        checksum needs."""
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
