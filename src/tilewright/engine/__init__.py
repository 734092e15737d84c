"""A dependency engine: functions run in parallel, ordered by what they read and write (docs/course/scheduling.md).

    tw.engine.push(function, reads=[a], writes=[b], priority=0)
    tw.engine.wait(b)

`Engine` has workers of its own; the functions here use one for the process, which the first push starts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.engine.engine import Array, Engine, Random, Target
from tilewright.engine.load import loading
from tilewright.engine.queues import Operation, Variable
from tilewright.engine.timeline import Recording
from tilewright.runtime.model import Model

_making = threading.Lock()
_of_process: dict[int, Engine] = {}


def default() -> Engine:
    """The engine of this process: two workers, or as many as there are CPUs for it, if that is one."""
    process = os.getpid()
    engine = _of_process.get(process)
    if engine is None:
        with _making:
            engine = _of_process.get(process)
            if engine is None:
                _of_process.clear()
                engine = _of_process[process] = Engine(min(2, len(os.sched_getaffinity(0))))
    return engine


def push(
    function: Callable[[], Any],
    reads: Sequence[Target] = (),
    writes: Sequence[Target] = (),
    priority: int = 0,
    *,
    name: str = "",
) -> Operation:
    """Run `function` on the process's engine once all conflicting operations pushed earlier have ended, and return the
    operation; arguments are as in `Engine.push`."""
    return default().push(function, reads, writes, priority, name=name)


def wait(target: Target | Operation | None = None, timeout: float | None = None) -> Any:
    """Wait for an operation of the process's engine, for the writes of a variable, or for everything; see
    `Engine.wait`."""
    return default().wait(target, timeout)


def delete(target: Target) -> Operation:
    """Delete a variable of the process's engine by a write; see `Engine.delete`."""
    return default().delete(target)


def run(
    model: Model, inputs: Sequence[Array], outputs: Sequence[Array], priority: int = 0, *, name: str = ""
) -> Operation:
    """Call a compiled model on arrays on the process's engine, and return the operation, which reads `inputs` and
    writes `outputs`; arguments are as in `Engine.run`."""
    return default().run(model, inputs, outputs, priority, name=name)


__all__ = [
    "Engine",
    "Operation",
    "Random",
    "Recording",
    "Variable",
    "default",
    "delete",
    "loading",
    "push",
    "run",
    "wait",
]
