"""`Pending`: a call that another thread makes, whose result can be awaited.

    y = await model.call_async(x)                    in a coroutine: the event loop goes on meanwhile
    y = asyncio.run(model.call_async(x))             where no event loop runs yet
    pending = model.call_async(x)                    anywhere else
    y = pending.result(timeout=1.0)

All calls of a process share these threads, one for each core that it may use, started at first use. Calls wait for a
free thread in the order in which they were submitted. A call that has not begun can be cancelled.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tilewright.support.machine import usable_cpus


class Pending(Future[Any], Coroutine[Any, Any, Any]):
    """A `concurrent.futures.Future` that coroutines can await as well, several of them and more than once; and a
    coroutine, so that `asyncio.run(model.call_async(x))` and `asyncio.create_task` take it as it is."""

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()

    def send(self, value: Any) -> Any:
        """Go on until the next wait, as a coroutine does. Raises StopIteration with the result, or the call's error."""
        return self._go_on(lambda wait: wait.send(value))

    def throw(self, *error: Any) -> Any:
        """Raise an error where the task waits. A cancelled task cancels a call that has not begun."""
        return self._go_on(lambda wait: wait.throw(*error))

    def close(self) -> None:
        """Forget the tasks that wait. The call goes on."""
        self.__dict__.pop("_tasks", None)

    def _go_on(self, step: Callable[[Generator[Any, None, Any]], Any]) -> Any:
        # Each task has its own wait: several may have been created of this call. One that has ended is forgotten: a
        # task refers to its call, and with a reference back the results would last until a garbage collection.
        tasks: dict[Any, Generator[Any, None, Any]] = self.__dict__.setdefault("_tasks", {})
        task = asyncio.current_task()
        if task not in tasks:
            tasks[task] = self.__await__()
        try:
            return step(tasks[task])
        except BaseException:
            tasks.pop(task, None)
            raise


_live: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """Threads that make calls one after another, each as soon as one of the threads is idle.

    Args:
        threads: how many; with one, calls run in order.
    """

    def __init__(self, threads: int) -> None:
        self._count = threads
        self._process = -1
        self._lock = threading.Lock()
        _live.add(self)

    def submit(self, call: Callable[..., Any], inputs: Sequence[Any], out: Any, named: Mapping[str, Any]) -> Pending:
        """Submit the call `call(*inputs, out=out, **named)`, without `out` if it is None; the returned `Pending` has
        its result or raises its error."""
        pending = Pending()
        self._started().submit(_make, pending, call, inputs, {**named, **({} if out is None else {"out": out})})
        return pending

    def _started(self) -> ThreadPoolExecutor:
        """The executor of this process; after a fork the child creates a new one."""
        process = os.getpid()
        if self._process != process:
            with self._lock:
                if self._process != process:
                    self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="tilewright")
                    self._process = process
        return self._threads

    def close(self) -> None:
        """Finish the submitted calls, and end the threads."""
        if self._process == os.getpid():
            self._threads.shutdown()

    def forget(self) -> None:
        """In the child of a fork: drop the parent's threads, which do not exist here."""
        self._lock = threading.Lock()


def in_background(call: Callable[..., Any], inputs: Sequence[Any], out: Any, named: Mapping[str, Any]) -> Pending:
    """Submit `call(*inputs, out=out, **named)`, without `out` if it is None, to the shared threads of the process; the
    returned `Pending` has its result or raises its error."""
    return _background.submit(call, inputs, out, named)


def _make(pending: Pending, call: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any]) -> None:
    if not pending.set_running_or_notify_cancel():
        return
    try:
        result = call(*inputs, **named)
    except BaseException as error:
        pending.set_exception(error)
    else:
        pending.set_result(result)


_background = Background(max(1, math.ceil(usable_cpus())))


def _after_fork() -> None:
    for background in list(_live):
        background.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

__all__ = ["Background", "Pending", "in_background"]
