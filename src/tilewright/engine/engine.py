"""`Engine`: threads that run pushed operations as soon as what they read and write allows.

    engine = tw.engine.Engine(workers=2)
    engine.push(lambda: gradients.fill(0), writes=[gradients])
    engine.push(lambda: group.all_reduce(gradients), writes=[gradients], priority=1)
    engine.wait(gradients)

The result is that of calling the functions one after another in the order in which they were pushed.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from queue import SimpleQueue
from typing import Any

import numpy as np

from tilewright.engine.queues import Operation, Variable, distinct, enter, leave
from tilewright.engine.timeline import Recording
from tilewright.support.errors import EngineError

Target = Variable | np.ndarray[Any, Any]
"""A thing that operations read and write: a variable, or an array, which stands for the variable of its memory."""


class Random(Variable):
    """The state of a random number generator as a variable: operations that draw from it name it among their writes.

    Attributes:
        generator: NumPy's, for those operations.
    """

    __slots__ = ("generator",)

    def __init__(self, seed: int | Sequence[int] | None = None, name: str = "random") -> None:
        super().__init__(name)
        self.generator = np.random.default_rng(seed)


class Engine:
    """Workers and what they have to do. Any thread may push, operations too.

    Args:
        workers: threads; 0: each operation runs in `push`, which is what the others are compared with.
        cpus: where the workers run, numbers of CPUs; None: anywhere.
    """

    def __init__(self, workers: int = 2, *, cpus: Sequence[int] | None = None) -> None:
        if not 0 <= workers <= 256:
            raise EngineError("no such number of workers", where="engine", expected="0 to 256", got=workers)
        self.workers = workers
        self._cpus = None if cpus is None else frozenset(cpus)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._heap: list[Operation] = []
        self._tickets: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._here = threading.local()
        self._pushed = 0
        self._left = 0
        self._closed = False
        self._process = os.getpid()
        self._memory: dict[int, tuple[weakref.ref[Any], Variable]] = {}
        self._recording: Recording | None = None
        _engines.add(self)

    # -- pushing -------------------------------------------------------------------------------------------------------

    def push(
        self,
        function: Callable[[], Any],
        reads: Sequence[Target] = (),
        writes: Sequence[Target] = (),
        priority: int = 0,
        *,
        name: str = "",
    ) -> Operation:
        """Run a function when every operation pushed before has ended that writes what this one reads or writes, or
        reads what this one writes.

        Args:
            function: called without arguments, by a worker.
            reads: what it reads only.
            writes: what it changes, whether it reads it as well or not.
            priority: among operations that may run, those with the highest go first.

        A function that raises fails: what it writes carries the exception, operations that read or write such a
        variable are not run and fail with it, and waiting for any of them raises it. `recover` ends that.

        Raises EngineError if a variable is deleted, or the engine is closed or belongs to the parent process.
        """
        variables, written = distinct([self._variable(r) for r in reads], [self._variable(w) for w in writes])
        return self._push(Operation(function, variables, written, priority, 0, name))

    def _push(self, operation: Operation, *, deletes: Variable | None = None) -> Operation:
        if not self._threads or self._process != os.getpid():
            self._start()
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed", where=_where(operation))
            for v in (*operation.reads, *operation.writes):
                if v.deleted:
                    raise EngineError("the variable is deleted", where=_where(operation), got=v)
            if deletes is not None:
                deletes.deleted = True
            operation.number = self._pushed
            self._pushed += 1
            ready = enter(operation)
            if ready and self.workers:
                heappush(self._heap, operation)
        if ready:
            if self.workers:
                self._tickets.put(True)
            else:
                self._run(operation)
        return operation

    def variable(self, name: str = "") -> Variable:
        """A variable without a value, which stands for whatever its operations agree on."""
        return Variable(name)

    def _variable(self, target: Target) -> Variable:
        return target if isinstance(target, Variable) else self.variable_of(target)

    def variable_of(self, array: np.ndarray[Any, Any]) -> Variable:
        """The variable of an array's memory: one for all views of it, so that operations on parts of an array are
        ordered like those on the whole. Memory that arrays share without being views of one is several variables."""
        if not isinstance(array, np.ndarray):
            raise EngineError(
                "this can be neither read nor written", where="push", expected="a Variable or an array", got=type(array)
            )
        while isinstance(array.base, np.ndarray):
            array = array.base
        with self._lock:
            entry = self._memory.get(id(array))
            if entry is not None and entry[0]() is array:
                return entry[1]
            if len(self._memory) >= self._sweep_at:
                self._memory = {k: e for k, e in self._memory.items() if e[0]() is not None}
                self._sweep_at = max(64, 2 * len(self._memory))
            variable = Variable(f"{array.dtype}{list(array.shape)}")
            self._memory[id(array)] = (weakref.ref(array), variable)
            return variable

    _sweep_at = 64
    """Entries of `_memory` at which those of arrays that are gone are removed."""

    def delete(self, target: Target) -> Operation:
        """End a variable: a write, after which nothing may be pushed that names it. Its array, if it is one's, is
        not freed before the operations pushed earlier have ended."""
        variable = self._variable(target)
        operation = Operation(_Held(target), (), (variable,), name="delete", clears=True)
        return self._push(operation, deletes=variable)

    def recover(self, target: Target) -> Operation:
        """Let a variable carry no failure from here on: a write."""
        return self._push(Operation(_nothing, (), (self._variable(target),), name="recover", clears=True))

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait(self, target: Target | Operation | None = None, timeout: float | None = None) -> Any:
        """Wait for an operation, for all writes of a variable that were pushed, or for everything.

        Returns the operation's result. Raises its failure or the variable's, TimeoutError after `timeout` seconds, and
        EngineError in an operation, which would wait for itself.
        """
        if getattr(self._here, "runs", False):
            hint = "name what it waits for among its reads, and push it"
            raise EngineError("an operation may not wait for others", where="wait", hint=hint)
        if target is None:
            with self._idle:
                if not self._idle.wait_for(lambda: self._left == self._pushed, timeout):
                    raise TimeoutError(f"{self._pushed - self._left} operations have not ended")
            return None
        if not isinstance(target, Operation):
            target = self._push(Operation(_nothing, (self._variable(target),), (), name="wait"))
        with self._lock:
            finished = None
            if not target.done:
                finished = target._finished = target._finished or threading.Event()
        if finished is not None and not finished.wait(timeout):
            raise TimeoutError(f"{_where(target)} has not ended")
        if target.failure is not None:
            raise target.failure
        return target.result

    # -- workers -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._process != os.getpid():
            hint = "make one after the fork"
            raise EngineError("this engine belongs to the parent process", where="engine", hint=hint)
        with self._lock:
            if self._threads or self._closed:
                return
            self._threads = [
                threading.Thread(target=self._work, args=(k,), name=f"tilewright-engine-{k}", daemon=True)
                for k in range(self.workers)
            ]
            for thread in self._threads:
                thread.start()

    def _work(self, number: int) -> None:
        self._here.number = number
        if self._cpus is not None:
            os.sched_setaffinity(0, self._cpus)
        while self._tickets.get():
            with self._lock:
                operation = heappop(self._heap)
            self._run(operation)

    def _run(self, operation: Operation) -> None:
        """Call the function of a ready operation, and let those begin that waited for it."""
        recording = self._recording
        begin = time.perf_counter_ns() if recording else 0
        operation.failure = operation.inherited
        if operation.failure is None:
            nested = getattr(self._here, "runs", False)
            self._here.runs = True
            try:
                operation.result = operation.function()
            except BaseException as error:
                operation.failure = error
            finally:
                self._here.runs = nested
        if recording:
            recording.add(operation, getattr(self._here, "number", 0), begin, time.perf_counter_ns())
        operation.function = _nothing  # what the function holds on to may go
        with self._lock:
            ready = leave(operation)
            operation.done = True
            self._left += 1
            if operation._finished is not None:
                operation._finished.set()
            if self._left == self._pushed:
                self._idle.notify_all()
            if self.workers:
                for one in ready:
                    heappush(self._heap, one)
        for one in ready:
            if self.workers:
                self._tickets.put(True)
            else:
                self._run(one)

    # -- what there is -------------------------------------------------------------------------------------------------

    def record(self) -> Recording:
        """Record from now on what workers do and when; `with engine.record() as recording` ends with its block."""
        self._recording = recording = Recording(self.workers, self._end_recording)
        return recording

    def _end_recording(self) -> None:
        self._recording = None

    @property
    def pending(self) -> int:
        """Operations that have not ended."""
        return self._pushed - self._left

    def close(self) -> None:
        """Wait for all operations and end the workers."""
        if self._process != os.getpid():
            return
        self.wait()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for _ in self._threads:
            self._tickets.put(False)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nothing() -> None:
    pass


class _Held:
    """Nothing to do with an array, which is there until that has been done."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def __call__(self) -> None:
        pass


def _where(operation: Operation) -> str:
    return f"operation {operation.number}" + (f" ({operation.name})" if operation.name else "")


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _close_all() -> None:
    for engine in list(_engines):
        engine.close()


atexit.register(_close_all)
