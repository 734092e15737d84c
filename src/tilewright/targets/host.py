"""The description of this machine, from the operating system, LLVM, and measurements of `tilewright doctor`."""

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
    """The target of this machine, or of the one that TILEWRIGHT_HOST names with this machine's instructions. Raises
    TargetError, which lists the known machines, for another name."""
    name = flags.HOST()
    return native() if name == "native" else pretended(name)


@cache
def native() -> Target:
    """The target of this machine: its family's description, with its own caches, features and ceilings."""
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
    """Whether the name of a machine's processor is missing, or contradicts its features, so that less is known about it
    than by its name."""
    family = family_of(machine.triple)
    if family is None or family.describe is None:
        return False
    return machine.cpu in UNNAMED or family.describe(machine.cpu, machine.features).cpu != machine.cpu


def measure_outer_levels() -> None:
    """Start to measure this machine's outer cache levels in the background, for later processes, if only its features
    are known and no measurement is stored."""
    machine = describe()
    if is_masked(machine):
        outer.begin(machine)


UNNAMED = ("", "generic", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
"""LLVM's names for unknown processors."""


L3_A_CORE = 64 << 20
"""The most bytes of the last-level cache assumed for a core. A virtual machine sees the size of a whole socket's cache,
which others share: of 300 MB, two cores get 80 to 110 (2-core Emerald Rapids, 2026-11-26, reading buffers of 1 to 260
MB again and again: 30 GB/s up to 77 MB, 23 of 115, 16 of 260)."""


@cache
def pretended(name: str) -> Target:
    """A machine of `machines.MACHINES`, with this machine's instructions."""
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
    """The target of this machine restricted to the instructions of `named`; `named` itself if this machine lacks some
    of them."""
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
    """The ceilings of the machine `native` when it runs code for `named`, with other instructions. The rates of
    multiply-adds and loads depend on the vector width, and were measured with the machine's own vectors."""
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
    """The machine that calls a target's code: the target itself, or for a GPU a baseline processor of this machine's
    architecture."""
    if target.gpu is None:
        return target
    here = native()
    family = family_of(here.triple)
    base = "x86-64" if architecture(here) == "x86_64" else "generic-aarch64"
    if family is None or base not in family.targets:
        raise TargetError("no host for a GPU", where=here.triple, expected="x86_64 or aarch64")
    return replace(family.targets[base], triple=here.triple)


def architecture(target: Target) -> str:
    """The architecture of `target`, the first part of its triple."""
    return target.triple.partition("-")[0]
