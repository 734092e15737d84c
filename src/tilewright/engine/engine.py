"""`Engine`: threads that run pushed operations as soon as what they read and write allows.

    engine = tw.engine.Engine(workers=2)
    engine.push(lambda: gradients.fill(0), writes=[gradients])
    engine.push(lambda: group.all_reduce(gradients), writes=[gradients], priority=1)
    engine.wait(gradients)

The result is that of calling the functions one after another in the order in which they were pushed.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.engine import native as native_core
from tilewright.engine.native_code import STATUS_BITS
from tilewright.engine.queues import Operation, Variable, distinct
from tilewright.engine.threads import Threads, named, nothing
from tilewright.engine.timeline import Recording
from tilewright.runtime.bound import bound_call
from tilewright.runtime.layout import function as native_function
from tilewright.runtime.model import Model
from tilewright.support.errors import EngineError

Array = np.ndarray[Any, Any]
Target = Variable | Array
"""The type of what operations name as read or written: a variable, or an array, which stands for the variable of its
memory."""


class Random(Variable):
    """The state of a random number generator as a variable: operations that draw from it name it among their writes.

    Attributes:
        generator: NumPy's generator, for use by those operations.
    """

    __slots__ = ("generator",)

    def __init__(self, seed: int | Sequence[int] | None = None, name: str = "random") -> None:
        super().__init__(name)
        self.generator = np.random.default_rng(seed)


class Engine:
    """Worker threads and the operations pushed for them. Any thread may push, and operations may, too.

    Args:
        workers: the number of threads; with 0 each operation runs inside `push` (the reference for tests).
        cpus: the numbers of the CPUs on which the workers run; None: any.
        native: whether queues and workers are native code; None: where the system has what that needs (Linux).
    """

    def __init__(self, workers: int = 2, *, cpus: Sequence[int] | None = None, native: bool | None = None) -> None:
        if not 0 <= workers <= 256:
            raise EngineError("no such number of workers", where="engine", expected="0 to 256", got=workers)
        if native and not native_core.available():
            raise EngineError("there is no native engine for this system", where="engine", expected="Linux")
        self.workers = workers
        self.native = native_core.available() if native is None else native
        self._cpus = None if cpus is None else frozenset(cpus)
        self._lock = threading.Lock()
        self._core: Threads | native_core.Native | None = None
        self._threads: list[threading.Thread] = []
        self._here = threading.local()
        self._closed = False
        self._process = os.getpid()
        self._memory: dict[int, tuple[weakref.ref[Any], Variable]] = {}
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
        """Run a function once all conflicting operations pushed earlier have ended: those that write a variable which
        this one reads or writes, or read one which it writes.

        Args:
            function: called without arguments, by a worker.
            reads: the variables that it only reads.
            writes: the variables that it changes, whether or not it reads them, too.
            priority: among operations that may run, those with the highest go first.

        A function that raises fails: what it writes carries the exception, operations that read or write such a
        variable are not run and fail with it, and waiting for any of them raises it. `recover` ends that.

        Raises EngineError if a variable is deleted, or the engine is closed or belongs to the parent process.
        """
        variables, written = distinct([self._variable(r) for r in reads], [self._variable(w) for w in writes])
        return self._push(Operation(function, variables, written, priority, 0, name))

    def push_native(
        self,
        function: int,
        argument: int,
        reads: Sequence[Target] = (),
        writes: Sequence[Target] = (),
        priority: int = 0,
        *,
        name: str = "",
        keep: Any = None,
        explain: Callable[[int], BaseException] | None = None,
    ) -> Operation:
        """Push a native function in the way of `push`; a native engine runs it without the interpreter.

        Args:
            function: the address of an `i64 (ptr)`, which gives 0, or the low 16 bits of a status if it fails.
            argument: the address that it is called with.
            keep: an object to keep alive until the function has been called, such as the argument's memory.
            explain: makes an exception of a status; None: an EngineError that names it.
        """
        variables, written = distinct([self._variable(r) for r in reads], [self._variable(w) for w in writes])
        call = _Native(function, argument, keep, explain)
        operation = Operation(call, variables, written, priority, 0, name)
        if self.native:
            operation.native, operation.explain = (function, argument), explain
        return self._push(operation)

    def run(
        self, model: Model, inputs: Sequence[Array], outputs: Sequence[Array], priority: int = 0, *, name: str = ""
    ) -> Operation:
        """Call a compiled model as an operation named `name` (by default the model's name), which reads the arrays
        `inputs` and writes the arrays `outputs`, and return it. Models that do not need each other's results run side
        by side, without the interpreter where the engine is native; a larger `priority` runs earlier.

        If the arrays do not fit, CallError is raised here, or by waiting for the operation where the interpreter calls
        the model.
        """
        name = name or model.name
        call = bound_call(model, inputs, outputs) if self.native and isinstance(model, Model) else None
        if call is None:
            out = tuple(outputs) if len(outputs) != 1 else outputs[0]
            return self.push(lambda: model(*inputs, out=out), inputs, outputs, priority, name=name)
        function = native_core.code().model
        return self.push_native(
            function, call.address, inputs, outputs, priority, name=name, keep=call, explain=call.explain
        )

    def _push(self, operation: Operation, deletes: Variable | None = None) -> Operation:
        core = self._core
        if core is None or self._process != os.getpid():
            core = self._start()
        core.push(operation, deletes)
        return operation

    def variable(self, name: str = "") -> Variable:
        """A variable without a value, to which the caller's operations may give any meaning."""
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
    """The number of entries of `_memory` at which entries of arrays that no longer exist are removed."""

    def delete(self, target: Target) -> Operation:
        """Delete a variable by a write, after which no pushed operation may name it. Its array, if it has one, is not
        freed before the operations pushed earlier have ended."""
        variable = self._variable(target)
        operation = Operation(_Held(target), (), (variable,), name="delete", clears=True)
        return self._push(operation, variable)

    def recover(self, target: Target) -> Operation:
        """Push an operation that writes `target` and clears the failure it carries after an operation that raised;
        returns the operation. Operations pushed later run again on the variable."""
        return self._push(Operation(nothing, (), (self._variable(target),), name="recover", clears=True))

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
            if self._core is not None and not self._core.wait(None, timeout):
                raise TimeoutError(f"{self.pending} operations have not ended")
            return None
        if not isinstance(target, Operation):
            target = self._push(Operation(nothing, (self._variable(target),), (), name="wait"))
        if not target.done and self._core is not None and not self._core.wait(target, timeout):
            raise TimeoutError(f"{named(target)} has not ended")
        if target.failure is not None:
            raise target.failure
        return target.result

    # -- workers -------------------------------------------------------------------------------------------------------

    def _start(self) -> Threads | native_core.Native:
        if self._process != os.getpid():
            hint = "make one after the fork"
            raise EngineError("this engine belongs to the parent process", where="engine", hint=hint)
        with self._lock:
            if self._core is None:
                if self._closed:
                    raise EngineError("the engine is closed", where="engine")
                self._core = (native_core.Native if self.native else Threads)(self.workers, self._call)
                self._threads = [
                    threading.Thread(target=self._work, args=(k,), name=f"tilewright-engine-{k}", daemon=True)
                    for k in range(self.workers)
                ]
                for thread in self._threads:
                    thread.start()
            return self._core

    def _work(self, number: int) -> None:
        if self._cpus is not None:
            os.sched_setaffinity(0, self._cpus)
        if self._core is not None:
            self._core.work(number)

    def _call(self, operation: Operation) -> None:
        """Call an operation's function, and store its result or exception."""
        nested = getattr(self._here, "runs", False)
        self._here.runs = True
        try:
            operation.result = operation.function()
        except BaseException as error:
            operation._failure = error
        finally:
            self._here.runs = nested

    # -- what there is -------------------------------------------------------------------------------------------------

    def record(self) -> Recording:
        """Record from now on what workers do and when; `with engine.record() as recording` ends with its block."""
        core = self._core or self._start()
        recording = Recording(self.workers, lambda: core.record(None))
        core.record(recording)
        return recording

    @property
    def pending(self) -> int:
        """The number of operations that have not ended."""
        return 0 if self._core is None else self._core.pending

    def close(self) -> None:
        """Wait for all operations and end the workers."""
        if self._process != os.getpid():
            return
        self.wait()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._core is not None:
            self._core.stop()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Held:
    """The function of an operation that does nothing but keep an array alive until then."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def __call__(self) -> None:
        pass


class _Native:
    """A Python function that calls a native one, for engines without native workers."""

    def __init__(self, address: int, argument: int, keep: Any, explain: Callable[[int], BaseException] | None) -> None:
        self._address, self._argument, self._keep, self._explain = address, argument, keep, explain

    def __call__(self) -> None:
        status = native_function(self._address, ctypes.c_int64, ctypes.c_void_p)(self._argument) & (
            (1 << STATUS_BITS) - 1
        )
        if status:
            got = f"status {status}"
            raise self._explain(status) if self._explain else EngineError("a native function failed", got=got)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _close_all() -> None:
    for engine in list(_engines):
        engine.close()


atexit.register(_close_all)
