"""Variables as queues of operations that read and write them, and what may run when: a state machine without threads.

An operation enters the queues of all variables that it reads or writes, in one step. It is granted a variable when
every operation that conflicts with it there has left: readers together, a writer alone, all in the order in which they
entered. It is ready when all its variables are granted. As all queues have one order, no two operations wait for each
other.
The method is that of MXNet's dependency engine (Chen et al., 2015).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Place(Protocol):
    """The native memory of a variable."""

    @property
    def version(self) -> int: ...

    @property
    def failure(self) -> BaseException | None: ...

    @property
    def idle(self) -> bool: ...


class Record(Protocol):
    """The native record of an operation."""

    @property
    def number(self) -> int: ...

    @property
    def ended(self) -> bool:
        """Whether the operation has ended; if so, the operation's own attributes have its result."""
        ...


class Variable:
    """Something that operations read and write, such as a buffer, a file or the state of a random number generator.

    Attributes:
        name: for errors and timelines.
        version: how many writes of it have ended.
        failure: the failure of the operation that should have written it last; None if that one succeeded.
        deleted: whether its deletion has been pushed.
    """

    __slots__ = ("__weakref__", "_failure", "_place", "_queue", "_readers", "_version", "_writing", "deleted", "name")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.deleted = False
        self._version = 0
        self._failure: BaseException | None = None
        self._place: Place | None = None
        self._queue: deque[tuple[Operation, bool]] = deque()
        self._readers = 0
        self._writing = False

    @property
    def version(self) -> int:
        return self._version if self._place is None else self._place.version

    @property
    def failure(self) -> BaseException | None:
        return self._failure if self._place is None else self._place.failure

    @property
    def idle(self) -> bool:
        """Whether no operation uses the variable or waits for it."""
        return not (self._queue or self._readers or self._writing) if self._place is None else self._place.idle

    def __repr__(self) -> str:
        return f"<Variable {self.name or hex(id(self))}, version {self.version}>"


class Operation:
    """A function that was pushed.

    Attributes:
        number: its place in the order of pushes.
        done: whether it has ended.
        result: what the function returned.
        failure: what it raised, or what a variable of it carried; None if it has not failed.
        clears: whether it runs whatever its variables carry, and ends that.
        native: the address of a native function and its argument; None if the function is Python's.
        explain: makes the exception of what a native function gives that failed.
    """

    __slots__ = (
        "_ended",
        "_failure",
        "_finished",
        "_number",
        "_record",
        "_waiting",
        "clears",
        "explain",
        "function",
        "name",
        "native",
        "priority",
        "reads",
        "result",
        "writes",
    )

    def __init__(
        self,
        function: Callable[[], Any],
        reads: Sequence[Variable],
        writes: Sequence[Variable],
        priority: int = 0,
        number: int = 0,
        name: str = "",
        clears: bool = False,
    ) -> None:
        self.function = function
        self.reads = reads
        self.writes = writes
        self.priority = priority
        self.name = name
        self.clears = clears
        self.native: tuple[int, int] | None = None
        self.explain: Callable[[int], BaseException] | None = None
        self.result: Any = None
        self._number = number
        self._ended = False
        self._failure: BaseException | None = None
        self._record: Record | None = None
        self._finished: threading.Event | None = None
        self._waiting = 0

    @property
    def number(self) -> int:
        return self._number if self._record is None else self._record.number

    @property
    def done(self) -> bool:
        return self._ended or (self._record is not None and self._record.ended)

    @property
    def failure(self) -> BaseException | None:
        return self._failure if self.done else None

    def __lt__(self, other: Operation) -> bool:
        """Whether this operation runs before `other` when both are ready: by higher priority, then earlier push."""
        if self.priority != other.priority:
            return self.priority > other.priority
        return self._number < other._number

    @property
    def inherited(self) -> BaseException | None:
        """The failure that a variable of the operation carries, None if none does; of several the first in the order of
        its arguments."""
        if self.clears:
            return None
        for variable in (*self.reads, *self.writes):
            if variable._failure is not None:
                return variable._failure
        return None


def distinct(reads: Sequence[Variable], writes: Sequence[Variable]) -> tuple[Sequence[Variable], Sequence[Variable]]:
    """The variables of an operation, each once; one that is both read and written counts as written."""
    if len(writes) > 1:
        writes = tuple(dict.fromkeys(writes))
    if reads:
        reads = tuple(v for v in dict.fromkeys(reads) if v not in writes)
    return reads, writes


def enter(operation: Operation) -> bool:
    """Put an operation into the queues of its variables, which are `distinct`; returns whether it is ready."""
    waiting = 0
    for v in operation.reads:
        if v._writing or v._queue:
            v._queue.append((operation, False))
            waiting += 1
        else:
            v._readers += 1
    for v in operation.writes:
        if v._writing or v._readers or v._queue:
            v._queue.append((operation, True))
            waiting += 1
        else:
            v._writing = True
    operation._waiting = waiting
    return not waiting


def leave(operation: Operation) -> list[Operation]:
    """End an operation that was ready; returns the operations that become ready. Its failure is passed to the variables
    that it writes."""
    ready: list[Operation] = []
    for v in operation.reads:
        v._readers -= 1
        if v._queue:
            _advance(v, ready)
    for v in operation.writes:
        v._writing = False
        v._version += 1
        v._failure = operation._failure
        if v._queue:
            _advance(v, ready)
    return ready


def _advance(v: Variable, ready: list[Operation]) -> None:
    """Grant a variable to the operations at the head of its queue that may hold it together."""
    queue = v._queue
    while queue and not v._writing:
        operation, writes = queue[0]
        if writes:
            if v._readers:
                return
            v._writing = True
        else:
            v._readers += 1
        queue.popleft()
        operation._waiting -= 1
        if not operation._waiting:
            ready.append(operation)
