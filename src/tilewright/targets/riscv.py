"""RISC-V, 64 bits, with the vector extension of at least 128 bits, which code takes as vectors of 128 bits.

Nothing was measured on such a machine; costs and ceilings are defaults.
"""

from __future__ import annotations

from tilewright.targets.isa import Isa
from tilewright.targets.registry import Family
from tilewright.targets.target import Target

TRIPLE = "riscv64-unknown-linux-gnu"

RV64GCV = ("a", "c", "d", "f", "m", "v", "zicsr", "zifencei")


def processor(cpu: str, features: tuple[str, ...]) -> Target:
    """What is known of a processor of this name with these features. Its minimum and maximum of a number and NaN are
    the number. Nothing is written past its caches."""
    isa = Isa(vector_bits=128, scalable="v" in features, registers=32, fma="d" in features)
    return Target(TRIPLE, cpu, tuple(sorted(features)), isa=isa)


FAMILY = Family("riscv", "riscv64", {"rv64gcv": processor("generic-rv64", RV64GCV)}, describe=processor)

__all__ = ["FAMILY", "processor"]
