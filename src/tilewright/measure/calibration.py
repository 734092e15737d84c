"""A machine's measured ceilings on disk: `tilewright doctor` writes them, compiles read them.

One small JSON file a machine lies in the cache folder; its name is a digest of what the machine is (CPU, features,
caches), so that machines may share a home. A file that is absent, damaged, foreign or implausible reads as None, and
estimates use what is known of the CPU's kind.

What is read decides about schedules, hence about code: values are rounded to a coarse scale and kept while new ones
are near, so that measuring again changes nothing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path

from tilewright.measure.peak import Ceilings
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.files import write_whole
from tilewright.support.machine import Machine

BARRIER = 500.0
"""The assumed cycles of a barrier if none was measured."""
HANDOVER = 1600.0
"""The assumed cycles of handing a call to other threads if that was not measured: those of a 2-core Sapphire Rapids,
2026-11-23."""
_VERSION = 1
"""The version of the file format of ceilings; files of other versions are ignored."""
_AGREEMENT = 1.15
"""The factor within which a new measurement does not replace the stored value."""
_PLAUSIBLE = {
    "frequency": (0.2, 10.0),
    "fma_per_cycle": (0.5, 8.0),
    "l1_bandwidth": (1.0, 1024.0),
    "l2_bandwidth": (1.0, 1024.0),
    "l3_bandwidth": (0.5, 1024.0),
    "memory_bandwidth": (0.1, 512.0),
    "memory_total": (0.0, 1e5),
    "barrier": (10.0, 1e6),
    "handover": (10.0, 1e6),
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Rounded ceilings, of one core if no more is said.

    frequency: GHz under load.
    fma_per_cycle: multiply-adds of full vectors that start in a cycle.
    l1_bandwidth, l2_bandwidth, l3_bandwidth, memory_bandwidth: bytes read a cycle from each level.
    barrier: cycles of a barrier among a few threads.
    memory_total: bytes that all cores together read a cycle from memory; 0 if it was not measured, as in the files of
        earlier versions.
    handover: cycles by which a call of nothing is longer with a few threads than with one; the default in such files.
    """

    frequency: float
    fma_per_cycle: float
    l1_bandwidth: float
    l2_bandwidth: float
    l3_bandwidth: float
    memory_bandwidth: float
    barrier: float
    memory_total: float = 0.0
    handover: float = HANDOVER


def rounded(value: float, steps: int = 4) -> float:
    """The nearest of `steps` values an octave, to two significant digits, so coarse that noise rarely changes it."""
    if value <= 0:
        return 0.0
    nearest = 2.0 ** (round(math.log2(value) * steps) / steps)
    return float(f"{nearest:.2g}")


LATENCIES = {"barrier": BARRIER, "handover": HANDOVER}
"""The measurements for which the least value is the best, with their values if none was measured."""


def updated(
    measured: Ceilings, barrier_seconds: float, before: Calibration | None, handover_seconds: float = 0.0
) -> Calibration:
    """The calibration to store: the measured values rounded, but what was stored `before` where that is near enough or
    better. `barrier_seconds` is the time of a barrier, and `handover_seconds` the time by which an empty call is longer
    with several threads than with one; 0, for a time that was not measured, stands for a typical one.

    A busy machine reaches less and waits longer than it can; nothing makes it faster than it is. So the best that was
    ever seen is the ceiling.
    """
    hz = measured.frequency_ghz
    per_cycle = {
        "l1_bandwidth": measured.l1_gbs / hz,
        "l2_bandwidth": measured.l2_gbs / hz,
        "l3_bandwidth": measured.l3_gbs / hz,
        "memory_bandwidth": measured.memory_gbs / hz,
        "memory_total": measured.memory_gbs_all / hz,
        # Without threads there is nothing to measure, and programs may yet be moved to where there are.
        "barrier": min(max(barrier_seconds * hz * 1e9, 100.0), 1e5) if barrier_seconds else BARRIER,
        "handover": min(max(handover_seconds * hz * 1e9, 100.0), 1e5) if handover_seconds else HANDOVER,
    }
    fma = rounded(measured.fma_per_cycle, 1)
    values = {"frequency": round(hz, 1), "fma_per_cycle": max(fma, before.fma_per_cycle) if before else fma}
    for name, value in per_cycle.items():
        old = getattr(before, name) if before else 0.0
        agrees = old and 1 / _AGREEMENT < value / old < _AGREEMENT
        worse = old and (value > old if name in LATENCIES else value < old)
        values[name] = old if agrees or worse else value if value == LATENCIES.get(name) else rounded(value)
    return Calibration(**values)


def identity(machine: Machine) -> str:
    """A digest of the machine's properties that determine its ceilings, not of the number of CPUs this process may
    use."""
    what = (machine.model, machine.cpu, machine.triple, machine.features, machine.caches, machine.cpus)
    return blake2b(repr(what).encode(), digest_size=12).hexdigest()


def path(machine: Machine, folder: Path | None = None) -> Path:
    """The path of the file with this machine's ceilings."""
    return (folder or flags.CACHE_DIR()) / f"ceilings-{identity(machine)}.json"


def load(machine: Machine, folder: Path | None = None) -> Calibration | None:
    """The calibration that was stored for this machine, or None."""
    try:
        data = json.loads(path(machine, folder).read_bytes())
        if data["version"] != _VERSION or data["machine"] != identity(machine):
            return None
        result = {"memory_total": 0.0, "handover": HANDOVER} | data["ceilings"]
        values = {f.name: float(result[f.name]) for f in fields(Calibration)}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if any(not low <= values[name] <= high for name, (low, high) in _PLAUSIBLE.items()):
        return None
    return Calibration(**values)


def doubts(measured: Ceilings, known: Mapping[str, float]) -> list[str]:
    """The doubts about a measurement, a sentence for each: less than a fourth of what a core of this kind is `known` to
    read of a level in bytes a cycle, or a level that is slower than the next one."""
    rates = {f"{n}_bandwidth": getattr(measured, f"{n}_gbs") / measured.frequency_ghz for n in _LEVELS}
    texts = [
        f"{name.partition('_')[0]}: {rates[name]:.2g} bytes a cycle, where this kind of CPU reads about {usual:.2g}"
        for name, usual in known.items()
        if name in rates and rates[name] < _MIN_SHARE * usual
    ]
    for a, b in pairwise(_LEVELS):
        if rates[f"{a}_bandwidth"] < rates[f"{b}_bandwidth"] / _AGREEMENT:
            texts.append(f"{a} is read more slowly than {b}")
    return texts


_LEVELS = ("l1", "l2", "l3", "memory")
_MIN_SHARE = 0.25
"""The least plausible share of the known bandwidth of a kind of CPU: its machines differ by a factor of two or three (a
Granite Rapids reads 8 bytes a cycle of 19, 4 of 6.7, 2026-11-29), one with a busy core or cache by ten."""


def age(machine: Machine, folder: Path | None = None) -> float | None:
    """Seconds since this machine's file was written; None if there is no file."""
    try:
        return max(0.0, time.time() - path(machine, folder).stat().st_mtime)
    except OSError:
        return None


def store(calibration: Calibration, machine: Machine, folder: Path | None = None) -> Path | None:
    """Write the file with this machine's ceilings, all of it or nothing; returns its path, or None if the folder cannot
    be used."""
    where = path(machine, folder)
    report = {
        "version": _VERSION,
        "machine": identity(machine),
        "model": machine.model,
        "ceilings": asdict(calibration),
    }
    try:
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(where, json.dumps(report, indent=2).encode())
    except OSError:
        return None
    return where
