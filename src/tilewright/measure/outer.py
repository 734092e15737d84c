"""Measures the bandwidth of the last cache and of memory in the background, in the first process that compiles on a
machine of which no more is known than its instructions.

A hypervisor may call a processor what it likes. Its family is then known by its features (`targets/x86.py`), not how
much of the last level and of the memory's bandwidth this machine gives a core; `tilewright doctor` would measure all
ceilings, but few ask for it. So a thread reads the last level and memory for two seconds at most, while others go on.
If the thread was interrupted, or its passes differ, nothing is stored. Stored values apply to later processes only: one
process uses the same ceilings from its first compile to its last.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tilewright.measure import calibration, peak
from tilewright.measure.probes import Probes
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.files import write_whole
from tilewright.support.machine import Machine

SECONDS = 2.0
"""The longest time of all measurements together, in seconds."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Outer:
    """The bandwidths of a core from the last level of cache and from memory, in bytes a cycle."""

    l3_bandwidth: float
    memory_bandwidth: float


Pass = Callable[[Machine], Outer]
"""The type of a function that measures the bandwidths once."""


def _once(machine: Machine) -> Outer:
    return Outer(*peak.outer_rates(Probes(machine), machine))


def _waited(machine: Machine) -> float:
    return peak.waited_share(Probes(machine))


def measured(machine: Machine, once: Pass = _once, waited: Callable[[Machine], float] = _waited) -> Outer | None:
    """The best of several passes of the measurement `once`. None if they are not representative: this thread was
    interrupted, a pass is a fourth lower than another one, or memory is faster than the last level."""
    end, passes = time.monotonic() + SECONDS, list[Outer]()
    while len(passes) < PASSES and (not passes or time.monotonic() < end - SECONDS / PASSES):
        if waited(machine) > peak.WAITED:
            return None
        passes.append(once(machine))
    columns = [(p.l3_bandwidth, p.memory_bandwidth) for p in passes]
    best = [max(column) for column in zip(*columns, strict=True)]
    spread = max(1 - min(column) / max(column) for column in zip(*columns, strict=True))
    if len(passes) < 2 or spread > peak.SPREAD or best[0] < best[1]:
        return None
    return Outer(*(calibration.rounded(value) for value in best))


PASSES = 3
"""The number of passes that are made, of which the best counts."""


def path(machine: Machine, folder: Path | None = None) -> Path:
    """The path of the file with this machine's outer bandwidths."""
    return (folder or flags.CACHE_DIR()) / f"outer-{calibration.identity(machine)}.json"


def load(machine: Machine, folder: Path | None = None) -> Outer | None:
    """The bandwidths in this machine's file; None if there is no file, or its numbers are impossible."""
    try:
        data = json.loads(path(machine, folder).read_bytes())
        if data["version"] != _VERSION or data["machine"] != calibration.identity(machine):
            return None
        result = Outer(float(data["l3_bandwidth"]), float(data["memory_bandwidth"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if 0.1 <= result.memory_bandwidth <= result.l3_bandwidth <= 1024.0 else None


def store(outer: Outer, machine: Machine, folder: Path | None = None) -> None:
    """Write the file with this machine's outer bandwidths, all of it or nothing; nothing if the folder cannot be
    used."""
    where = path(machine, folder)
    report = {"version": _VERSION, "machine": calibration.identity(machine), "model": machine.model}
    report |= {"l3_bandwidth": outer.l3_bandwidth, "memory_bandwidth": outer.memory_bandwidth}
    try:
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(where, json.dumps(report, indent=2).encode())
    except OSError:
        return


_begun: list[threading.Thread] = []


def begin(
    machine: Machine, folder: Path | None = None, measure: Callable[[Machine], Outer | None] = measured
) -> threading.Thread | None:
    """Start a thread that measures the outer levels of memory and stores the result in `folder` (None: the cache
    folder), once in a process. Returns None if one was started before, if a result is stored already, or if the process
    may use only one core."""
    known = calibration.load(machine, folder) is not None or path(machine, folder).exists()
    if _begun or known or machine.usable < 2:
        return None

    def run() -> None:
        result = measure(machine)
        if result is not None:
            store(result, machine, folder)

    thread = threading.Thread(target=run, name="tilewright measures the outer levels", daemon=True)
    _begun.append(thread)
    thread.start()
    return thread


__all__ = ["Outer", "begin", "load", "measured", "store"]
