"""Arm's microcontrollers with single-precision floating-point units, for bundles: Tilewright itself does not run there.

There are no vectors; each register holds one element. As code shall be small, tiles use six of the 32 registers: more
sums would mean more instructions in the loop and after it. All memory is described as first-level cache. No times were
measured; results were checked in an emulator (`make targets`).
"""

from __future__ import annotations

from tilewright.targets.isa import Isa
from tilewright.targets.memory import Caches, Ceilings
from tilewright.targets.registry import Family
from tilewright.targets.target import Target

TRIPLE = "thumbv7em-none-unknown-eabihf"


def controller(cpu: str, *features: str, ram: int, fma_per_cycle: float) -> Target:
    """A microcontroller with the processor `cpu`, `ram` bytes of memory and `fma_per_cycle` multiply-adds a cycle."""
    return Target(
        TRIPLE,
        cpu,
        tuple(sorted(features)),
        isa=Isa(vector_bits=32, registers=6, fma=True, compact=True),
        caches=Caches(l1=ram, l2=ram, l3=ram),
        ceilings=Ceilings(fma_per_cycle, 4.0, 4.0, 4.0, 4.0),
    )


FAMILY = Family(
    "cortex",
    "thumbv7em",
    {
        "cortex-m4": controller("cortex-m4", "vfp4d16sp", ram=256 << 10, fma_per_cycle=0.3),
        "cortex-m7": controller("cortex-m7", "fp-armv8d16", ram=512 << 10, fma_per_cycle=0.5),
    },
)

__all__ = ["FAMILY", "controller"]
