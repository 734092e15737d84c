"""Arm's microcontrollers with a unit for single floats, for bundles: nothing of Tilewright itself runs there.

There are no vectors: an element a register. Code shall be small, so six of the 32 registers are for sums and operands:
loops that add to more have as many more instructions, and so has the function after them. Memory counts as caches: all
of it is as near as the first level. Nothing was measured; results were checked in an emulator (`make targets`).
"""

from __future__ import annotations

from tilewright.targets.isa import Isa
from tilewright.targets.memory import Caches, Ceilings
from tilewright.targets.registry import Family
from tilewright.targets.target import Target

TRIPLE = "thumbv7em-none-unknown-eabihf"


def controller(cpu: str, *features: str, ram: int, fma_per_cycle: float) -> Target:
    """A microcontroller with so many bytes of memory."""
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
