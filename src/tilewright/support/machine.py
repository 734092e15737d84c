"""The machine: CPU, features, caches, cores, read from the operating system and LLVM.

Facts that the system does not provide (another operating system, a container that hides /sys) are empty or None; no
function here raises.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import field
from functools import cache
from pathlib import Path

from tilewright.support.classes import dataclass
from tilewright.support.permission import NEEDED, forbidden

_SYS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache as CPU 0 sees it: level, kind ("Data", "Instruction", "Unified"), bytes, CPUs that share it, ways of
    associativity (0 if unknown; not printed, as the keys of stored ceilings do not contain them)."""

    level: int
    kind: str
    bytes: int
    shared_by: int
    ways: int = field(default=0, repr=False)

    @property
    def name(self) -> str:
        suffix = {"Data": "d", "Instruction": "i"}.get(self.kind, "")
        return f"L{self.level}{suffix}"


@dataclass(frozen=True, slots=True)
class Machine:
    """A description of the host.

    `cpu`: LLVM's name of it (such as "znver4"); `features`: LLVM's names of its features; `cores`: physical cores;
    `cpus`: hardware threads; `usable`: how many of these this process may use at once (affinity and the container's
    quota).
    """

    model: str
    cpu: str
    triple: str
    features: tuple[str, ...]
    caches: tuple[Cache, ...]
    cores: int
    cpus: int
    usable: float
    memory: int | None

    @property
    def vector_lanes(self) -> int:
        """The number of f32 lanes of the widest vector."""
        if "avx512f" in self.features:
            return 16
        return 8 if "avx2" in self.features else 4

    @property
    def vector_registers(self) -> int:
        return 32 if "avx512f" in self.features or not self.triple.startswith("x86_64") else 16


def describe() -> Machine:
    """The host's description, as far as it can be determined."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    denied = forbidden() if any(features.get(name) for name in NEEDED) else frozenset()
    usable = usable_cpus()
    model, caches, cores, memory = _built_in()
    return Machine(
        model=model,
        cpu=llvm.get_host_cpu_name(),
        triple=llvm.get_process_triple(),
        features=tuple(sorted(name for name, on in features.items() if on and name not in denied)),
        caches=caches,
        cores=cores,
        cpus=os.cpu_count() or 1,
        usable=usable,
        memory=memory,
    )


@cache
def _built_in() -> tuple[str, tuple[Cache, ...], int, int | None]:
    """The facts that are read once in a process: the CPU's name, caches, physical cores and bytes of memory."""
    return _model_name(), caches(), _physical_cores(), _memory()


def caches(folder: Path = _SYS / "cpu0" / "cache") -> tuple[Cache, ...]:
    """The caches of CPU 0, innermost first."""
    results = []
    for entry in sorted(folder.glob("index*")):
        level, kind, size = (_read(entry / name) for name in ("level", "type", "size"))
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if level.isdigit() and match:
            scale = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match[2]]
            shared = _count_cpus(_read(entry / "shared_cpu_list"))
            ways = _read(entry / "ways_of_associativity")
            results.append(Cache(int(level), kind, int(match[1]) * scale, shared, int(ways) if ways.isdigit() else 0))
    return tuple(results)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _count_cpus(text: str) -> int:
    """The number of CPUs in a list such as "0-3,8"."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            count += int(last) - int(first) + 1 if last.isdigit() else 1
    return max(count, 1)


def _model_name() -> str:
    match = re.search(r"^(?:model name|Processor|Hardware)\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def _physical_cores() -> int:
    pairs = {
        (_read(cpu / "topology/physical_package_id"), _read(cpu / "topology/core_id"))
        for cpu in _SYS.glob("cpu[0-9]*")
        if (cpu / "topology").exists()
    }
    return len(pairs) or os.cpu_count() or 1


def usable_cpus() -> float:
    """The number of CPUs that the process may use, by its affinity and the quota of its control group."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = _read(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
        count = min(count, int(quota[0]) / int(quota[1]))
    return count


def _memory() -> int | None:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    return int(match[1]) << 10 if match else None
