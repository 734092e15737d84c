"""`Target`: the machine that code is compiled for, as far as schedules and code generation depend on it."""

from __future__ import annotations

from dataclasses import field, fields, replace
from functools import lru_cache
from typing import Any

from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import TargetError
from tilewright.targets.costs import Costs
from tilewright.targets.gpu import Gpu
from tilewright.targets.isa import Isa
from tilewright.targets.memory import Caches, Ceilings

_PARTS = ("isa", "caches", "ceilings")


@dataclass(frozen=True, slots=True)
class Target:
    """A machine that code is compiled for: a CPU, or a GPU.

    Args:
        triple: LLVM's name of architecture, system and ABI.
        cpu: LLVM's name of the processor, for its instruction costs.
        features: what the code may use, LLVM's names, sorted.
        missing: what the code must not use although `cpu` would have it (a virtual machine hides features).
        isa: the capabilities of its instructions.
        caches: sizes of caches, lines, pages.
        ceilings: the highest rates of a core; for this machine as measured.
        costs: fitted constants that estimates use.
        cores: physical cores; code does not depend on it.
        threads: of a call, for estimates of times; code runs with any number of threads.
        accelerator: the name of a device beside the CPU, to which graph passes assign layers; "" for none.
        gpu: the description of a GPU, whose name is `cpu`; None for a CPU.

    The fields of the parts that many ask for are properties too: `target.l1` is `target.caches.l1`.
    """

    triple: str
    cpu: str
    features: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    isa: Isa = field(default_factory=Isa)
    caches: Caches = field(default_factory=Caches)
    ceilings: Ceilings = field(default_factory=Ceilings)
    costs: Costs = field(default_factory=Costs)
    cores: int = 1
    threads: int = 1
    accelerator: str = ""
    gpu: Gpu | None = field(default=None, repr=False)

    def __hash__(self) -> int:
        # Estimates are remembered by target: what differs between most targets is enough, and quick.
        return hash((self.cpu, self.isa.vector_bits, self.caches.l2, self.caches.l3, self.threads))

    def has(self, feature: str) -> bool:
        """Whether the code may use an instruction set extension ("avx512vnni")."""
        return feature in self.features

    def lanes(self, itemsize: int) -> int:
        """How many elements of `itemsize` bytes a vector register holds."""
        return max(1, self.isa.vector_bits // (8 * itemsize))

    def adjusted(self, **values: Any) -> Target:
        """A copy of this target with other values, its own or its parts': `adjusted(l2=1 << 20, memory_bandwidth=5.0)`.

        Raises TargetError, which lists the valid names, for an unknown one.
        """
        changes: dict[str, Any] = {}
        parts = {name: {f.name for f in fields(getattr(self, name))} for name in _PARTS}
        for name, own in parts.items():
            mine = {key: values.pop(key) for key in own & values.keys()}
            if mine:
                changes[name] = replace(getattr(self, name), **mine)
        own = {f.name for f in fields(self)}
        unknown = sorted(values.keys() - own)
        if unknown:
            expected = f"some of {', '.join(sorted(own.union(*parts.values())))}"
            raise TargetError("a target has no such value", expected=expected, got=", ".join(unknown))
        return replace(self, **changes, **values)

    @property
    def vector_bits(self) -> int:
        return self.isa.vector_bits

    @property
    def registers(self) -> int:
        return self.isa.registers

    @property
    def l1(self) -> int:
        return self.caches.l1

    @property
    def l2(self) -> int:
        return self.caches.l2

    @property
    def l3(self) -> int:
        return self.caches.l3

    @property
    def fma_per_cycle(self) -> float:
        return self.ceilings.fma_per_cycle

    @property
    def l1_bandwidth(self) -> float:
        return self.ceilings.l1_bandwidth

    @property
    def l2_bandwidth(self) -> float:
        return self.ceilings.l2_bandwidth

    @property
    def l3_bandwidth(self) -> float:
        return self.ceilings.l3_bandwidth

    @property
    def memory_bandwidth(self) -> float:
        return self.ceilings.memory_bandwidth

    @property
    def memory_total(self) -> float:
        return self.ceilings.memory_total

    @property
    def streams(self) -> int:
        return self.ceilings.streams

    @property
    def barrier(self) -> float:
        return self.ceilings.barrier

    @property
    def handover(self) -> float:
        return self.ceilings.handover

    @property
    def frequency(self) -> float:
        return self.ceilings.frequency

    @property
    def llvm_features(self) -> str:
        """The features as LLVM's text: "+avx2,...,-avx512f"."""
        return ",".join([f"+{name}" for name in self.features] + [f"-{name}" for name in self.missing])

    @property
    def fingerprint(self) -> str:
        """A digest of everything that generated code may depend on (not the number of cores, nor the frequency)."""
        return _fingerprint(self)

    @property
    def kind(self) -> str:
        """The class of machines that this one belongs to, over which tuning records may be shared: same processor, same
        instructions, same caches of a core. Last level, ceilings, cores and threads may differ: records name threads
        themselves, and an estimate that is corrected by a record is one of this machine."""
        return _kind(self)

    @classmethod
    def host(cls) -> Target:
        """The target of this machine, for which code is made unless the caller says otherwise; TILEWRIGHT_TARGET may
        name another instruction set (`on_host`)."""
        return cls.on_host(flags.TARGET(), f"environment variable {flags.TARGET.name}")

    @classmethod
    def on_host(cls, name: str, where: str | None = None) -> Target:
        """This machine with the instruction set of the target that `name` stands for.

        Features, what instructions offer and their costs are those of the named target. Caches, cores and what was
        measured beyond the first level of cache are this machine's, so that the code is what a machine like this one
        without the other instructions would run. "host" is this machine with all its instructions. For a target that
        this machine cannot run, the result is `parse(name)`: its code can be made and read, not called. `where` says
        who gave the name, for the error about an unknown one.
        """
        from tilewright.targets.host import host, narrowed  # which make targets
        from tilewright.targets.registry import find

        return host() if name in _HOST_NAMES else narrowed(find(name, where))

    @classmethod
    def parse(cls, name: str) -> Target:
        """A target by name: "host", a level such as "x86-64-v3", or a processor that `known()` lists.

        All but "host" are the same on every machine, with the known ceilings of their kind.
        """
        from tilewright.targets.registry import find  # whose families make targets

        return cls.host() if name in _HOST_NAMES else find(name)


_HOST_NAMES = ("host", "llvm", "native")


@lru_cache(maxsize=64)
def _fingerprint(target: Target) -> str:
    same = replace(target, cores=1, ceilings=replace(target.ceilings, frequency=1.0))
    gpu = "" if target.gpu is None else repr(target.gpu)  # of CPUs, the text that it was before there were others
    return blake2b(f"{same!r}{gpu}".encode(), digest_size=16).hexdigest()


LATER = frozenset(("byte_tables", "elements", "compact", "reads_first", "single_steps"))
"""Capabilities that were added when tuning records existed already: a machine without them stays in its class of
machines."""


@lru_cache(maxsize=64)
def _kind(target: Target) -> str:
    isa, caches = target.isa, target.caches
    # What the compiler uses of the instructions, not all that LLVM knows: hypervisors mask some that no kernel has, and
    # a dot's cost is a constant that is fitted again. Records would never match for either.
    values = {f.name: getattr(replace(isa, dots=()), f.name) for f in fields(isa)}
    # The first two follow from the width of vectors, the third from an instruction set that engines choose.
    del values["half_tables"], values["scalar_lookups"], values["loose_extrema"]
    own = ", ".join(f"{name}={value!r}" for name, value in values.items() if value or name not in LATER)
    used = f"(Isa({own}), {tuple(dot.name for dot in isa.dots)!r})"
    digest = blake2b(used.encode(), digest_size=4).hexdigest()
    architecture, _, _ = target.triple.partition("-")
    return f"{architecture} {target.cpu} {isa.vector_bits}x{isa.registers} {caches.l1}+{caches.l2} {digest}"


def known() -> tuple[str, ...]:
    """The names that `Target.parse` accepts besides "host"."""
    from tilewright.targets.registry import names

    return names()


__all__ = ["Target", "known"]
