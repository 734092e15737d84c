"""The process of one contender: orders come in as JSON lines, answers go out as JSON lines. See `paired.py`.

{"setup": "module:function", "arguments": {...}, "warmup_seconds": s, "turn_seconds": s}  -> info, setup_seconds
{"save": path}                                                                             -> {}
{"turn": true}                                                         -> seconds (per call), parts or latencies

Its one argument, JSON, may limit it: {"memory": bytes, "cpus": [...]}.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from tilewright.support.classes import dataclass
from tilewright.support.errors import Error


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of a contender's setup.

    Args:
        call: does the work once; this is what is timed.
        outputs: the work's results by name, as NumPy arrays (after at least one call); None if there are none to show.
        info: facts for the report (version, compile time ...), what JSON can carry.
        parts: does the work so many times and gives the seconds per call of each of its parts; where there is this, a
            turn is one call of it.
        timed: does the work so many times and gives the seconds of a call, and those of each single one.
    """

    call: Callable[[], object]
    outputs: Callable[[], Mapping[str, Any]] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    parts: Callable[[int], Sequence[float]] | None = None
    timed: Callable[[int], tuple[float, Sequence[float]]] | None = None


def save_arrays(path: str, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name to the file `path`; any name will do. Types that NumPy does not know (bfloat16) are written
    as float32."""
    import numpy as np

    ordinary = [np.asarray(array) for array in arrays.values()]
    ordinary = [array.astype(np.float32) if array.dtype.kind == "V" else array for array in ordinary]
    np.savez(path, np.array(list(arrays), dtype=np.str_), *ordinary)


def load_arrays(path: str) -> dict[str, Any]:
    """Read what `save_arrays` wrote."""
    import numpy as np

    with np.load(path) as file:
        names = file["arr_0"].tolist()
        return {name: file[f"arr_{number}"] for number, name in enumerate(names, 1)}


class _Worker:
    def __init__(self) -> None:
        self._prepared: Prepared | None = None
        self._calls = 1

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        match order:
            case {"setup": str(setup), "arguments": arguments}:
                return self._setup(setup, arguments, order["warmup_seconds"], order["turn_seconds"])
            case {"save": str(path)}:
                return self._save(path)
            case {"turn": True}:
                return self._turn()
        raise Error("unknown order", got=order)

    def _setup(self, name: str, arguments: dict[str, Any], warmup: float, turn: float) -> dict[str, Any]:
        self._prepared = None  # what an earlier race left in this process
        start = time.perf_counter()
        module, _, function = name.partition(":")
        prepared: Prepared = getattr(importlib.import_module(module), function)(**arguments)
        seconds = time.perf_counter() - start
        self._prepared = prepared
        self._calls = _calls_in(prepared.call, warmup, turn)
        return {"info": dict(prepared.info), "setup_seconds": seconds}

    def _save(self, path: str) -> dict[str, Any]:
        assert self._prepared is not None
        if self._prepared.outputs is not None:
            save_arrays(path, self._prepared.outputs())
        return {}

    def _turn(self) -> dict[str, Any]:
        assert self._prepared is not None
        if self._prepared.parts is not None:
            parts = list(self._prepared.parts(self._calls))
            return {"seconds": sum(parts), "parts": parts, "peak_memory": _peak_memory()}
        if self._prepared.timed is not None:
            seconds, latencies = self._prepared.timed(self._calls)
            return {"seconds": seconds, "latencies": list(latencies), "peak_memory": _peak_memory()}
        call = self._prepared.call
        calls = range(self._calls)
        start = time.perf_counter()
        for _ in calls:
            call()
        seconds = (time.perf_counter() - start) / self._calls
        return {"seconds": seconds, "peak_memory": _peak_memory()}


def _peak_memory() -> int:
    """The peak memory of this process in bytes. `getrusage` would include the parent process for as long as this one
    was its copy."""
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit(memory: int | None = None, cpus: Sequence[int] | None = None) -> None:
    """Bound this process: bytes of its own memory beyond what it has now, and the CPUs that it may run on."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        with open("/proc/self/statm") as file:
            own = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (own + memory, own + memory))
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


def _calls_in(call: Callable[[], object], warmup: float, turn: float) -> int:
    """The number of calls that take `turn` seconds together, found after calls of `warmup` seconds."""
    calls, spent, least = 0, 0.0, float("inf")
    start = time.perf_counter()
    while spent < warmup or calls < 2:
        call()
        calls += 1
        last, spent = spent, time.perf_counter() - start
        least = min(least, spent - last)  # any other call may have been disturbed
    if least >= turn:
        return 1
    # What the first calls took includes warming up; time some more to know the pace.
    pace = spent / calls
    probe = max(1, min(1000, int(turn / pace)))
    start = time.perf_counter()
    for _ in range(probe):
        call()
    pace = (time.perf_counter() - start) / probe
    return max(1, round(turn / pace))


def main() -> None:
    if len(sys.argv) > 1:
        limit(**json.loads(sys.argv[1]))
    # What libraries print must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = _Worker()
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as e:
            traceback.print_exc()
            answer = {"error": str(e) if isinstance(e, Error) else f"{type(e).__name__}: {e}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
