"""Machines that a run can pretend to be (TILEWRIGHT_HOST): their caches, cores, ceilings and fitted constants.

Code for a pretended machine has this machine's instructions, so that it runs here; its schedules are those that the
other machine would choose with these instructions. Tests that pass under each do not depend on the machine.
"""

from __future__ import annotations

from tilewright.support.classes import dataclass
from tilewright.targets.memory import Caches


@dataclass(frozen=True, slots=True)
class Machine:
    """A known machine.

    Args:
        cpu: LLVM's name of its processor, by which its family knows ceilings and costs.
        caches: as its operating system states them, with `l3` as large as its cores can use.
        cores: physical cores.
    """

    cpu: str
    caches: Caches
    cores: int = 2


MACHINES = {
    "zen3": Machine("znver3", Caches(l1=32 << 10, l2=512 << 10, l3=32 << 20)),
    "zen4": Machine("znver4", Caches(l1=32 << 10, l2=1 << 20, l3=32 << 20)),
    "zen5": Machine("znver5", Caches(l1=48 << 10, l2=1 << 20, l3=32 << 20, l1_ways=12, l2_ways=16)),
    # A Xeon Gold 6148 and a Xeon Platinum 8358.
    "skylake": Machine("skylake-avx512", Caches(l1=32 << 10, l2=1 << 20, l3=27 << 20, l2_ways=16)),
    "icelake": Machine("icelake-server", Caches(l1=48 << 10, l2=1280 << 10, l3=48 << 20, l1_ways=12, l2_ways=20)),
    # Two cores of a Xeon Platinum 8580 and of a Xeon 6972P, whose last levels are 300 and 480 MB (`host.L3_A_CORE`).
    "emeraldrapids": Machine("emeraldrapids", Caches(l1=48 << 10, l2=2 << 20, l3=128 << 20, l1_ways=12, l2_ways=16)),
    "graniterapids": Machine("graniterapids", Caches(l1=48 << 10, l2=2 << 20, l3=128 << 20, l1_ways=12, l2_ways=16)),
    "raptorlake": Machine("raptorlake", Caches(l1=48 << 10, l2=2 << 20, l3=36 << 20, l1_ways=12, l2_ways=16), cores=8),
    # QEMU's default processor: the caches that it states are those of no real machine.
    "qemu": Machine("x86-64", Caches(l1=32 << 10, l2=4 << 20, l3=16 << 20, l2_ways=16), cores=1),
}
"""Known machines by name, with makers' figures; for virtual machines, the figures that they report."""

__all__ = ["MACHINES", "Machine"]
