"""Race detection: which threads have accessed which element since their last barrier, and whether another thread may.

Two threads race on an element if one of them writes it and no barrier of both is between. Threads of different blocks
share no barrier, so no other block of the kernel may access an element that a block writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.codegen.interpret.memory import Array, InterpretError
from tilewright.support.classes import dataclass

NO_THREAD = -1
"""The number that stands in for a thread where none has accessed an element."""


class Meetings:
    """Counts the barriers that each unit of threads (a block or a warp) has passed. `pending` is the number of further
    barriers during which an asynchronous copy may still run."""

    __slots__ = ("count", "pending", "threads", "unit")

    def __init__(self, threads: int, unit: int, pending: int = 0) -> None:
        self.unit = unit
        self.pending = pending
        self.threads = threads
        self.count: Array = np.zeros(max(1, threads // unit), np.int64)

    def of(self, who: Array) -> Array:
        """The unit of threads to which each accessor in `who` belongs. Numbers past those of threads are whole warps,
        then copies that threads have started."""
        first = np.where(who < self.threads, who, (who - self.threads) * WARP)
        first = np.where(who < 2 * self.threads, first, who - 2 * self.threads)
        units: Array = first // self.unit
        return units

    def until(self, who: Array, now: Array) -> Array:
        """The last interval between barriers in which an access that begins in interval `now` may still run. It is
        `now` itself for threads; copies may run through several."""
        return np.where(who >= 2 * self.threads, now + self.pending, now) if self.pending else now


WARP = 32
"""The number of threads in a warp."""


@dataclass(slots=True)
class _Seen:
    """The last access of each element: by which thread, in which interval between barriers, and in which statement."""

    who: Array
    when: Array
    what: Array

    def note(self, at: Array, who: Array, when: Array, what: int) -> None:
        self.who[at], self.when[at], self.what[at] = who, when, what

    def forget(self, at: Array) -> None:
        self.who[at] = NO_THREAD


def _seen(size: int) -> _Seen:
    return _Seen(np.full(size, NO_THREAD), np.zeros(size, np.int64), np.zeros(size, np.int64))


class Detector:
    """Detects races on the elements of one buffer.

    Args:
        size: the number of elements.
        meetings: the barriers of the units of threads that share the buffer.
        name: returns the name of an element, "S[3, 4]".
        thread: returns the name of a thread.
        statements: the texts of statements by their numbers.
    """

    def __init__(
        self,
        size: int,
        meetings: Meetings,
        name: Callable[[int], str],
        thread: Callable[[int], str],
        statements: Sequence[str],
    ) -> None:
        self.meetings = meetings
        self.name, self.thread, self.statements = name, thread, statements
        self.written, self.read, self.also_read = _seen(size), _seen(size), _seen(size)

    def reads(self, at: Array, who: Array, what: int) -> None:
        """Record that threads `who` read elements `at`, one each, in the statement with number `what`. Raises
        InterpretError for a race."""
        unit = self.meetings.of(who)
        now = self.meetings.count[unit]
        self._check(self.written, "writes", at, who, unit, now, what, "reads")
        known = self.read.who[at]
        old = (known == NO_THREAD) | ((self.meetings.of(known) == unit) & (self.read.when[at] < now))
        self.read.note(at[old], who[old], now[old], what)
        self.also_read.forget(at[old])
        others = self.read.who[at] != who
        self.also_read.note(at[others], who[others], now[others], what)

    def writes(self, at: Array, who: Array, what: int) -> None:
        """Record that threads `who` write elements `at`, one each, in the statement with number `what`. Raises
        InterpretError for a race."""
        unit = self.meetings.of(who)
        now = self.meetings.count[unit]
        self._check(self.written, "writes", at, who, unit, now, what, "writes")
        self._check(self.read, "reads", at, who, unit, now, what, "writes")
        self._check(self.also_read, "reads", at, who, unit, now, what, "writes")
        self.written.note(at, who, self.meetings.until(who, now), what)
        self._check(self.written, "writes", at, who, unit, now, what, "writes")

    def _check(
        self, seen: _Seen, did: str, at: Array, who: Array, unit: Array, now: Array, what: int, does: str
    ) -> None:
        other = seen.who[at]
        suspect = (other != NO_THREAD) & (other != who)
        if not suspect.any():
            return
        racing = suspect & ((self.meetings.of(other) != unit) | (seen.when[at] >= now))
        if racing.any():
            k = int(np.argmax(racing))
            place = int(at[k])
            raise InterpretError(
                f"a race on {self.name(place)}: {self.thread(int(other[k]))} {did} it in "
                f"`{self.statements[int(seen.what[place])]}` and {self.thread(int(who[k]))} {does} it in "
                f"`{self.statements[what]}`, with no barrier between"
            )


__all__ = ["WARP", "Detector", "Meetings"]
