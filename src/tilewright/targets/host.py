"""This machine: what the operating system and LLVM say of it, and what `tilewright doctor` measured."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache

from tilewright.measure import calibration, outer
from tilewright.support import flags
from tilewright.support.errors import TargetError
from tilewright.support.machine import Machine, describe
from tilewright.targets.machines import MACHINES
from tilewright.targets.memory import Ceilings
from tilewright.targets.registry import family_of
from tilewright.targets.target import Target


def host() -> Target:
    """This machine, or the one that TILEWRIGHT_HOST names with this machine's instructions. Raises TargetError, which
    lists the known machines, for another name."""
    name = flags.HOST()
    return native() if name == "native" else pretended(name)


@cache
def native() -> Target:
    """This machine: its family's description, with its own caches, features and ceilings."""
    import llvmlite.binding as llvm

    machine = describe()
    features = llvm.get_host_cpu_features()
    family = family_of(machine.triple)
    if family is None or family.describe is None:
        base = Target(machine.triple, machine.cpu, machine.features)
    else:
        base = family.describe(machine.cpu, machine.features)
    data = [c for c in machine.caches if c.kind != "Instruction"]
    sizes, ways = {c.level: c.bytes for c in data}, {c.level: c.ways for c in data if c.ways}
    caches = replace(
        base.caches,
        l1=sizes.get(1, 32 << 10),
        l2=sizes.get(2, 512 << 10),
        l3=min(sizes.get(3, sizes.get(2, 8 << 20)), machine.cores * L3_A_CORE),
        l1_ways=ways.get(1, base.caches.l1_ways),
        l2_ways=ways.get(2, base.caches.l2_ways),
    )
    measured = calibration.load(machine)
    levels = outer.load(machine) if measured is None and is_masked(machine) else None
    known = measured or levels
    return replace(
        base,
        triple=machine.triple,
        missing=tuple(sorted(name for name, on in features.items() if not on or name not in machine.features)),
        caches=caches,
        ceilings=base.ceilings if known is None else replace(base.ceilings, **asdict(known)),
        cores=machine.cores,
    )


def is_masked(machine: Machine) -> bool:
    """Whether a machine's processor is called something else than its features say, or nothing: what is known of its
    kind is then less than what a name would tell."""
    family = family_of(machine.triple)
    if family is None or family.describe is None:
        return False
    return machine.cpu in UNNAMED or family.describe(machine.cpu, machine.features).cpu != machine.cpu


def measure_outer_levels() -> None:
    """Begin to measure the outer levels of this machine in the background, where no more is known of it than its
    features and nothing is stored; for later processes."""
    machine = describe()
    if is_masked(machine):
        outer.begin(machine)


UNNAMED = ("", "generic", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
"""Names that LLVM has for processors that it does not know."""


L3_A_CORE = 64 << 20
"""Bytes of the last level that a core has at most. A virtual machine is told of all of a socket's, which the others on
it fill as well: of 300 MB two cores keep 80 to 110 (2-core Emerald Rapids, 2026-11-26, reading buffers of 1 to 260 MB
again and again: 30 GB/s up to 77 MB, 23 of 115, 16 of 260)."""


@cache
def pretended(name: str) -> Target:
    """A machine of `machines.MACHINES` with this machine's instructions."""
    if name not in MACHINES:
        raise TargetError(
            "no such machine",
            where=f"environment variable {flags.HOST.name}",
            expected=", ".join(("native", *MACHINES)),
            got=repr(name),
        )
    here, machine = native(), MACHINES[name]
    family = family_of(here.triple)
    known = here if family is None or family.describe is None else family.describe(machine.cpu, here.features)
    return replace(
        here, caches=machine.caches, ceilings=known.ceilings, costs=known.costs, cores=machine.cores, threads=1
    )


def narrowed(named: Target) -> Target:
    """This machine with the instructions of `named`; `named` itself where this machine lacks some of them."""
    return _narrowed(host(), named)


@cache
def _narrowed(native: Target, named: Target) -> Target:
    if architecture(named) != architecture(native) or not set(named.features) <= set(native.features):
        return named
    return replace(
        native,
        cpu=named.cpu,
        features=named.features,
        missing=tuple(name for name in native.missing if name not in named.features),
        isa=named.isa,
        ceilings=ceilings(native, named),
        costs=named.costs,
    )


def ceilings(native: Target, named: Target) -> Ceilings:
    """The ceilings of a machine with other instructions than its own. How many multiply-adds and loads start in a cycle
    depends on the width of the vectors; what was measured is of the machine's own."""
    if named.vector_bits == native.vector_bits:
        return native.ceilings
    family = family_of(native.triple)
    like = named if family is None or family.describe is None else family.describe(native.cpu, named.features)
    known = (like if like.vector_bits == named.vector_bits else named).ceilings
    l1 = min(native.l1_bandwidth, known.l1_bandwidth)
    return replace(
        native.ceilings,
        fma_per_cycle=known.fma_per_cycle,
        l1_bandwidth=l1,
        l2_bandwidth=min(native.l2_bandwidth, l1),
        l3_bandwidth=min(native.l3_bandwidth, l1),
        memory_bandwidth=min(native.memory_bandwidth, l1),
    )


@cache
def host_of(target: Target) -> Target:
    """The machine that calls the code of a target: itself, or for a GPU a processor of this one's architecture with no
    more than its baseline."""
    if target.gpu is None:
        return target
    here = native()
    family = family_of(here.triple)
    base = "x86-64" if architecture(here) == "x86_64" else "generic-aarch64"
    if family is None or base not in family.targets:
        raise TargetError("no host for a GPU", where=here.triple, expected="x86_64 or aarch64")
    return replace(family.targets[base], triple=here.triple)


def architecture(target: Target) -> str:
    """The first part of its triple."""
    return target.triple.partition("-")[0]
