"""Arm, 64 bits: NEON of 128 bits; SVE is left to LLVM.

Nothing was measured on such a machine: costs are those of x86 but for what follows from 32 registers, ceilings are what
is known of servers of about 2020 (21 November 2026, commit 08c0715; machines not recorded).
"""

from __future__ import annotations

from tilewright.targets.costs import Costs, Origin
from tilewright.targets.isa import Isa
from tilewright.targets.memory import Ceilings
from tilewright.targets.registry import Family
from tilewright.targets.target import Target

TRIPLE = "aarch64-unknown-linux-gnu"

NEON = ("fp-armv8", "neon")

ISA = Isa(vector_bits=128, registers=32, fma=True, extrema_keep_nan=True)

CEILINGS = Ceilings(
    fma_per_cycle=2.0, l1_bandwidth=32.0, l2_bandwidth=16.0, l3_bandwidth=9.5, memory_bandwidth=6.7, streams=4
)

COSTS = Costs().fitted(Origin("2026-11-21", commit="92de22e"), constant_registers=6)


def processor(cpu: str, features: tuple[str, ...]) -> Target:
    """What is known of a processor of this name with these features."""
    return Target(TRIPLE, cpu, tuple(sorted(features)), isa=ISA, ceilings=CEILINGS, costs=COSTS)


FAMILY = Family(
    "arm",
    "aarch64",
    {
        "neoverse-n1": processor("neoverse-n1", (*NEON, "fullfp16", "dotprod")),
        "neoverse-v1": processor("neoverse-v1", (*NEON, "fullfp16", "dotprod", "bf16", "i8mm")),
        "generic-aarch64": processor("generic", NEON),
    },
    describe=processor,
)

__all__ = ["FAMILY", "processor"]
