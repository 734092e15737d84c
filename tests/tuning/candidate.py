"""A candidate of a race that does what it is told, in a file that imports little: a process is started for each."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence

import numpy as np

from tilewright.measure.contender import Prepared


def candidate(code: str, weights: str, inputs: str, threads: int) -> Prepared:
    """The candidate that `code` says."""
    result = np.arange(1.0, 5.0, dtype=np.float32)

    def call() -> None:
        match code:
            case "segfault":
                ctypes.string_at(0)
            case "abort":
                os.abort()
            case "endless":
                while True:
                    time.sleep(0.01)
            case "greedy":
                np.ones(1 << 30, np.float64)
            case "refuses":
                raise ValueError("no such kernel")

    def parts(runs: int) -> Sequence[float]:
        call()
        return [1e-6, 2e-6]

    facts = {"cpus": sorted(os.sched_getaffinity(0)), "pid": os.getpid()}
    off = {"wrong": 1e-3, "rounded": 2e-6}.get(code, 0.0)
    return Prepared(call, lambda: {"y": result * np.float32(1 + off)}, facts, parts)
