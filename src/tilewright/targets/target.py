"""`Target`: the machine that code is made for, as far as schedules and code generation need to know it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from tilewright.support import flags
from tilewright.support.errors import TargetError

_X86_BASE = ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_X86_V2 = (*_X86_BASE, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_X86_V3 = (*_X86_V2, "avx", "avx2", "bmi", "bmi2", "crc32", "f16c", "fma", "lzcnt", "movbe", "xsave")
_X86_V4 = (*_X86_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_ARM = ("fp-armv8", "neon")

_X86_TRIPLE = "x86_64-unknown-linux-gnu"
_ARM_TRIPLE = "aarch64-unknown-linux-gnu"

_KNOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "x86-64": (_X86_TRIPLE, _X86_BASE),
    "x86-64-v2": (_X86_TRIPLE, _X86_V2),
    "x86-64-v3": (_X86_TRIPLE, _X86_V3),
    "x86-64-v4": (_X86_TRIPLE, _X86_V4),
    "haswell": (_X86_TRIPLE, _X86_V3),
    "skylake-avx512": (_X86_TRIPLE, _X86_V4),
    "znver4": (_X86_TRIPLE, (*_X86_V4, "avx512bf16", "avx512vnni")),
    "neoverse-n1": (_ARM_TRIPLE, (*_ARM, "fullfp16", "dotprod")),
    "neoverse-v1": (_ARM_TRIPLE, (*_ARM, "fullfp16", "dotprod", "bf16", "i8mm")),  # its SVE is left to LLVM
    "generic-aarch64": (_ARM_TRIPLE, _ARM),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU.

    Args:
        triple: LLVM's name of architecture, system and ABI.
        cpu: LLVM's name of the processor, for its instruction costs.
        features: what the code may use, LLVM's names, sorted.
        missing: what the code must not use although `cpu` would have it (a virtual machine hides features).
        vector_bits: width of a vector register.
        registers: number of vector registers.
        l1, l2, l3: data cache of a core, second level of a core, last level (shared), in bytes.
        cores: physical cores; code does not depend on it.
        threads: of a call, for which times are estimated; code runs with any number of them.
        fma_per_cycle: multiply-adds of full vectors that a core starts in a cycle.
        l1_bandwidth, l2_bandwidth, l3_bandwidth, memory_bandwidth: bytes that a core reads in a cycle from each level.
        memory_total: bytes that all cores together read in a cycle from memory, 0 if it is not known: what several
            threads may ask for ahead. Estimates of kernels take `memory_bandwidth` with any number of threads: most of
            what they would wait for has been asked for.
        streams: in how many streams at once a core reads fastest from beyond the second level.
        barrier: cycles of a barrier among a few threads.
        frequency: GHz under load, to show cycles as time; code does not depend on it.

    The ceilings are those that `tilewright doctor` measured on this machine, otherwise what is known of its kind
    (`ceilings`). Estimates use them, so schedules depend on them.
    """

    triple: str
    cpu: str
    features: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    vector_bits: int = 128
    registers: int = 16
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20
    cores: int = 1
    threads: int = 1
    fma_per_cycle: float = 2.0
    l1_bandwidth: float = 32.0
    l2_bandwidth: float = 16.0
    l3_bandwidth: float = 12.0
    memory_bandwidth: float = 6.0
    memory_total: float = 0.0
    streams: int = 4
    barrier: float = 500.0
    frequency: float = 3.0

    def has(self, feature: str) -> bool:
        """Whether the code may use an instruction set extension ("avx512vnni")."""
        return feature in self.features

    def lanes(self, itemsize: int) -> int:
        """How many elements of `itemsize` bytes a vector register holds."""
        return max(1, self.vector_bits // (8 * itemsize))

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    @property
    def has_avx512(self) -> bool:
        """Whether vectors are AVX-512's: 512 bits, with tables in registers and factors that are powers of two."""
        return self.is_x86 and self.vector_bits == 512

    @property
    def llvm_features(self) -> str:
        """The features as LLVM's text: "+avx2,...,-avx512f"."""
        return ",".join([f"+{name}" for name in self.features] + [f"-{name}" for name in self.missing])

    @property
    def fingerprint(self) -> str:
        """A digest of all that generated code may depend on (not the number of cores, not the frequency)."""
        text = repr(replace(self, cores=1, frequency=1.0))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @classmethod
    def host(cls) -> Target:
        """This machine, for which code is made unless the caller says otherwise; TILEWRIGHT_TARGET may name another
        instruction set (`on_host`)."""
        return cls.on_host(flags.TARGET(), f"environment variable {flags.TARGET.name}")

    @classmethod
    def on_host(cls, name: str, where: str | None = None) -> Target:
        """This machine with the instruction set of the target that `name` stands for.

        Features, vectors, registers and instruction costs are those of the named target. Caches, cores and what was
        measured beyond the first level of cache are this machine's, so that the code is what a machine like this one
        without the other instructions would run. "host" is this machine with all that it has. A target that this
        machine cannot run is `parse(name)` as it stands: its code can be made and read, not called. `where` says who
        named it, for the error about a name that there is not.
        """
        return _host() if name in _HOST_NAMES else _on_host(_named(name, where))

    @classmethod
    def parse(cls, name: str) -> Target:
        """A target by name: "host", a level such as "x86-64-v3", or a processor that `known()` lists.

        All but "host" are the same on every machine, with the ceilings that are known of their kind.
        """
        return cls.host() if name in _HOST_NAMES else _named(name)


_HOST_NAMES = ("host", "llvm", "native")


def _named(name: str, where: str | None = None) -> Target:
    """The target of a name in `_KNOWN`."""
    if name not in _KNOWN:
        raise TargetError("no such target", where=where, expected=", ".join(("host", *_KNOWN)), got=repr(name))
    triple, features = _KNOWN[name]
    cpu = "generic" if name == "generic-aarch64" else name
    bits, registers = _vectors(triple, features)
    return Target(triple, cpu, tuple(sorted(features)), (), bits, registers, **ceilings(cpu, triple, bits))


def known() -> tuple[str, ...]:
    """The names that `Target.parse` takes besides "host"."""
    return tuple(_KNOWN)


_FMA_PER_CYCLE = {"znver4": {512: 1.0}}
"""Where it is not two: Zen 4 passes a 512-bit multiply-add through its pipes in two halves."""
_STREAMS = {"znver4": 2}
"""Where it is not four: Zen 4's prefetchers get the most from one or two, Zen 3's left a single one at 0.7 of four."""
_INTEL_SERVERS = ("skylake-avx512", "cascadelake", "cooperlake", "icelake-server", "sapphirerapids", "emeraldrapids")


def ceilings(cpu: str, triple: str, bits: int) -> dict[str, Any]:
    """What is known of a kind of CPU that was not measured: the ceilings' fields of `Target`, without the barrier."""
    vector = bits / 8
    # Loads of 512 bits: two a cycle on Intel's cores, one on Zen 4. Others load two vectors.
    l1 = vector if _FMA_PER_CYCLE.get(cpu, {}).get(bits) == 1.0 else 2 * vector
    server = cpu in _INTEL_SERVERS
    x86 = triple.startswith("x86_64")
    return {
        "fma_per_cycle": _FMA_PER_CYCLE.get(cpu, {}).get(bits, 2.0),
        "l1_bandwidth": l1,
        "l2_bandwidth": min(l1, 38.0 if server else 27.0 if x86 else 16.0),
        "l3_bandwidth": min(l1, 9.5 if server else 19.0 if x86 else 9.5),
        "memory_bandwidth": 4.8 if server else 6.7,
        "streams": _STREAMS.get(cpu, 4),
        "frequency": 3.0,
    }


def _vectors(triple: str, features: tuple[str, ...]) -> tuple[int, int]:
    """Width in bits and number of the vector registers."""
    if not triple.startswith("x86_64"):
        return 128, 32
    if "avx512f" in features and "avx512vl" in features:
        return 512, 32
    return (256 if "avx2" in features else 128), 16


@cache
def _on_host(named: Target) -> Target:
    """This machine with the instructions of `named`; `named` itself where this machine lacks some of them."""
    host = _host()
    if named.is_x86 != host.is_x86 or not set(named.features) <= set(host.features):
        return named
    # How many multiply-adds and loads start in a cycle depends on the width of the vectors; what was measured is of the
    # machine's own.
    known = ceilings(host.cpu, host.triple, named.vector_bits)
    native = named.vector_bits == host.vector_bits
    l1 = host.l1_bandwidth if native else min(host.l1_bandwidth, known["l1_bandwidth"])
    return replace(
        host,
        cpu=named.cpu,
        features=named.features,
        missing=tuple(name for name in host.missing if name not in named.features),
        vector_bits=named.vector_bits,
        registers=named.registers,
        fma_per_cycle=host.fma_per_cycle if native else known["fma_per_cycle"],
        l1_bandwidth=l1,
        l2_bandwidth=min(host.l2_bandwidth, l1),
        l3_bandwidth=min(host.l3_bandwidth, l1),
        memory_bandwidth=min(host.memory_bandwidth, l1),
    )


@cache
def _host() -> Target:
    import llvmlite.binding as llvm

    from tilewright.measure import calibration
    from tilewright.support.machine import describe

    machine = describe()
    flags = llvm.get_host_cpu_features()
    bits, registers = _vectors(machine.triple, machine.features)
    sizes = {c.level: c.bytes for c in machine.caches if c.kind != "Instruction"}
    measured = calibration.load(machine)
    limits = ceilings(machine.cpu, machine.triple, bits) | ({} if measured is None else asdict(measured))
    return Target(
        triple=machine.triple,
        cpu=machine.cpu,
        features=machine.features,
        missing=tuple(sorted(name for name, on in flags.items() if not on)),
        vector_bits=bits,
        registers=registers,
        l1=sizes.get(1, 32 << 10),
        l2=sizes.get(2, 512 << 10),
        l3=sizes.get(3, sizes.get(2, 8 << 20)),
        cores=machine.cores,
        **limits,
    )
