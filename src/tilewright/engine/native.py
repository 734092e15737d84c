"""The queues and workers of an engine in native code (`native_code.py`), and what Python has to do for them.

Workers are Python's threads inside a native loop, without the interpreter's lock, which they take for operations whose
functions are Python's alone. Native code knows an operation by the address of its record, and lists those that have
ended; Python reads the list now and then, as it pushes, waits and asks.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from struct import Struct as Layout
from time import monotonic

from tilewright.engine.native_code import (
    CLOSED,
    DELETED,
    ENGINE,
    ENGINE_SIZE,
    EXPORTS,
    NO_MEMORY,
    OPERATION,
    SIGNALS,
    STATUS_BITS,
    VARIABLE,
    VARIABLE_SIZE,
    engine_text,
)
from tilewright.engine.queues import Operation, Variable
from tilewright.engine.threads import named, nothing, refuse_deleted
from tilewright.engine.timeline import Recording
from tilewright.native.link import Library, compile_text
from tilewright.runtime.layout import Memory
from tilewright.runtime.threads import supported
from tilewright.support.classes import dataclass
from tilewright.support.errors import EngineError

_WORD = ctypes.c_int64
_AT_MAX_NS = 50_000_000
"""The longest time in nanoseconds that a thread waits in native code before Python may handle a signal."""
_SLAB = 256
"""The number of variables whose memory is allocated together."""
_READ_AT = 1024
"""The number of pushes after which the list of ended operations is read."""


@dataclass(frozen=True, slots=True)
class Code:
    """The functions of the linked native core; addresses and counts are integers. `push` and `drop` keep the
    interpreter's lock."""

    push: Callable[[int, bytes], int]
    work: Callable[[int, int, int, int, int, int], int]
    wait: Callable[[int, int, int], int]
    finished: Callable[[int], int]
    drop: Callable[[int, int, int], int]
    free: Callable[[int], int]
    stop: Callable[[int], int]
    push_address: int
    nothing: int
    model: int


@cache
def code() -> Code:
    """The native core's functions, linked once. They are never unloaded, as threads may be in them while the
    interpreter ends."""
    exports = [*(f"tw_engine_{name}" for name in EXPORTS), "tw_nothing", "tw_model"]
    library = Library({"engine": compile_text(engine_text)}, exports)
    library.keep_forever()

    def linked(kind: Callable[..., Callable[[int], Callable[..., int]]], name: str, *kinds: type) -> Callable[..., int]:
        return kind(_WORD, *kinds)(library[f"tw_engine_{name}"])

    quick, slow = ctypes.PYFUNCTYPE, ctypes.CFUNCTYPE
    return Code(
        linked(quick, "push", _WORD, ctypes.c_char_p),
        linked(slow, "work", *[_WORD] * 6),
        linked(slow, "wait", *[_WORD] * 3),
        linked(quick, "finished", _WORD),
        linked(quick, "drop", *[_WORD] * 3),
        linked(quick, "free", _WORD),
        linked(quick, "stop", _WORD),
        library["tw_engine_push"],
        library["tw_nothing"],
        library["tw_model"],
    )


def available() -> bool:
    """Whether this system has what the native core needs: Linux's futex."""
    return supported()


class _Record(ctypes.Structure):
    """The native record of an operation."""

    _fields_ = [(name, _WORD) for name in OPERATION.names]


class Handle:
    """Owns the native record of an operation as long as the Python operation exists."""

    __slots__ = ("_core", "address", "record")

    def __init__(self, core: Native, address: int) -> None:
        self._core = core
        self.address = address
        self.record = _Record.from_address(address)

    @property
    def number(self) -> int:
        return int(self.record.number)

    @property
    def ended(self) -> bool:
        if not self.record.done:
            return False
        self._core.collect()
        return True

    def __del__(self) -> None:
        self._core._dropped.append(self.address)


class VariablePlace:
    """Owns the native memory of a variable as long as the Python variable exists; afterwards another variable reuses
    it."""

    __slots__ = ("_core", "_words", "address")

    def __init__(self, core: Native, address: int) -> None:
        self._core = core
        self.address = address
        self._words = (_WORD * (VARIABLE_SIZE // 8)).from_address(address)

    def word(self, offset: int) -> int:
        return self._words[offset >> 3]

    @property
    def version(self) -> int:
        return self.word(VARIABLE.version)

    @property
    def failure(self) -> BaseException | None:
        return self._core.failure(self.word(VARIABLE.failure))

    @property
    def idle(self) -> bool:
        return not (self.word(VARIABLE.head) or self.word(VARIABLE.readers) or self.word(VARIABLE.writing))

    def __del__(self) -> None:
        self._core._places.discard(self.address)
        self._core._vacant.append(self.address)


class Native:
    """The core of an engine with the methods of `threads.Threads`."""

    def __init__(self, workers: int, call: Callable[[Operation], None]) -> None:
        self._workers = workers
        self._call = call
        self._code = code()
        self._memory = Memory(ENGINE_SIZE)
        self._address = self._memory.address
        self._live: dict[int, Operation] = {}
        self._failures: dict[int, BaseException] = {}
        self._guard = threading.RLock()
        self._slabs: list[Memory] = []
        self._vacant: list[int] = []
        self._places: set[int] = set()
        self._dropped: list[int] = []
        self._recording: Recording | None = None
        self._until_read = _READ_AT
        self._layouts: dict[int, Layout] = {}

    # -- pushing -------------------------------------------------------------------------------------------------------

    def push(self, operation: Operation, deletes: Variable | None) -> None:
        """Enqueue an operation. Raises EngineError if the engine was stopped or a variable is deleted."""
        variables = [self._place(v) for v in operation.reads]
        variables += [self._place(v) for v in operation.writes]
        layout = self._layouts.get(len(variables))
        if layout is None:
            layout = self._layouts[len(variables)] = Layout(f"{8 + len(variables)}q")
        address, argument = operation.native or (0, 0)
        if operation.function is nothing:
            address = self._code.nothing
        token, reads = id(operation), len(operation.reads)
        request = layout.pack(
            address,
            argument,
            token,
            operation.priority,
            operation.clears,
            reads,
            len(operation.writes),
            0 if deletes is None else self._place(deletes),
            *variables,
        )
        self._live[token] = operation
        record = self._code.push(self._address, request)
        if record <= DELETED:
            del self._live[token]
            self._refuse(record, operation)
        if deletes is not None:
            deletes.deleted = True
        operation._record = Handle(self, record)
        if not self._workers:
            self.work(0, sleeps=False)
        self._until_read -= 1
        if self._until_read <= 0:
            self.collect()

    def _refuse(self, reason: int, operation: Operation) -> None:
        if reason == NO_MEMORY:
            raise MemoryError("no memory for an operation")
        if reason == CLOSED:
            raise EngineError("the engine is closed", where=named(operation))
        refuse_deleted(operation)
        raise EngineError("a variable is deleted", where=named(operation))

    def _place(self, variable: Variable) -> int:
        """The address of a variable's native memory."""
        place = variable._place
        if isinstance(place, VariablePlace) and place._core is self:
            return place.address
        if not variable.idle:
            raise EngineError("the variable is in use by another engine", where="push", got=variable)
        with self._guard:
            if not self._vacant:
                slab = Memory(_SLAB * VARIABLE_SIZE)
                self._slabs.append(slab)
                self._vacant += range(slab.address, slab.address + _SLAB * VARIABLE_SIZE, VARIABLE_SIZE)
            address = self._vacant.pop()
        ctypes.memset(address, 0, VARIABLE_SIZE)
        new = VariablePlace(self, address)
        if variable.deleted:
            new._words[VARIABLE.deleted >> 3] = 1
        self._places.add(address)
        variable._place = new
        return address

    # -- workers -------------------------------------------------------------------------------------------------------

    def work(self, number: int, sleeps: bool = True) -> None:
        """Run operations, as worker `number`, until the engine is stopped, or, if it does not sleep, until none may
        run."""
        slot = (_WORD * 2)()
        where, ended, status = ctypes.addressof(slot), 0, 0
        run = self._code.work
        while run(self._address, ended, status, number, where, sleeps):
            ended, token = slot
            operation = self._live[token]
            self._call(operation)
            operation.function = nothing  # what the function holds on to may go
            status = 0
            if operation._failure is not None:
                self._failures[_Record.from_address(ended).number] = operation._failure
                status = -1
            del operation

    # -- what has ended ------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Read the list of ended operations, and release the memory of those that Python has dropped."""
        with self._guard:
            address = self._code.finished(self._address)
            ended = []
            while address:
                record = _Record.from_address(address)
                operation = self._live[record.token]
                if record.failure and operation._failure is None:
                    operation._failure = self._explained(record, operation)
                ended.append((operation, record.begin, record.end, record.worker))
                address = record.next
            for operation, begin, end, worker in reversed(ended):
                if self._recording is not None and begin and end:
                    self._recording.add(operation, worker, begin, end)
                operation._ended = True
                operation.function = nothing
                operation.native = None
                del self._live[id(operation)]
            del ended
            self._until_read = _READ_AT
            if len(self._failures) > _SLAB:
                self._forget_failures()
            self._drop()

    def _explained(self, record: _Record, operation: Operation) -> BaseException:
        number, status = (record.failure >> STATUS_BITS) - 1, record.failure & ((1 << STATUS_BITS) - 1)
        failure = self._failures.get(number)
        if failure is None:
            explain = operation.explain if number == record.number else None
            failure = explain(status) if explain is not None else _returned(number, status)
            self._failures[number] = failure
        return failure

    def failure(self, word: int) -> BaseException | None:
        """The exception that the failure word `word` of a variable stands for; None if it is 0."""
        if not word:
            return None
        self.collect()
        number = (word >> STATUS_BITS) - 1
        return self._failures.get(number) or _returned(number, word & ((1 << STATUS_BITS) - 1))

    def _forget_failures(self) -> None:
        """Drop stored exceptions that no longer can be raised: no variable carries them, and no operation that might
        pass them on."""
        at = VARIABLE.failure
        carried = {_WORD.from_address(place + at).value for place in list(self._places)}
        needed = {(word >> STATUS_BITS) - 1 for word in carried}
        for operation in list(self._live.values()):
            handle = operation._record
            if isinstance(handle, Handle):
                needed |= {(handle.record.failure >> STATUS_BITS) - 1, handle.record.number}
            else:
                return  # it is being pushed
        self._failures = {number: failure for number, failure in self._failures.items() if number in needed}

    def _drop(self) -> None:
        count = len(self._dropped)
        if count:
            addresses = (_WORD * count)(*[self._dropped.pop() for _ in range(count)])
            self._code.drop(self._address, ctypes.addressof(addresses), count)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait(self, operation: Operation | None, timeout: float | None) -> bool:
        """Wait for `operation`, or for all if it is None, at most `timeout` seconds; returns whether it has ended."""
        handle = None if operation is None else operation._record
        address = handle.address if isinstance(handle, Handle) else 0
        until = None if timeout is None else monotonic() + timeout
        while True:
            nanoseconds = _AT_MAX_NS
            if until is not None:
                nanoseconds = min(nanoseconds, max(0, int((until - monotonic()) * 1e9)))
            if self._code.wait(self._address, address, nanoseconds):
                self.collect()
                return True
            if until is not None and monotonic() >= until:
                return False

    def record(self, recording: Recording | None) -> None:
        self.collect()
        self._recording = recording
        self._memory[ENGINE.recording] = recording is not None

    @property
    def pending(self) -> int:
        return self._memory[ENGINE.pushed] - self._memory[SIGNALS.ended]

    def stop(self) -> None:
        """Let all calls of `work` return. No operation may be pending."""
        self.collect()
        self._code.stop(self._address)

    def __del__(self) -> None:
        if hasattr(self, "_until_read"):
            self._drop()
            self._code.free(self._address)


def _returned(number: int, status: int) -> EngineError:
    return EngineError("a native function failed", where=f"operation {number}", got=f"status {status}")
