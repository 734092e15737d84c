"""RISC-V, 64 bits, with the vector extension of at least 128 or 256 bits, which code uses as vectors of that width. No
times were measured on such a machine: results were checked in an emulator (`make targets`), costs and ceilings are
defaults."""

from __future__ import annotations

from tilewright.targets.isa import Isa
from tilewright.targets.registry import Family
from tilewright.targets.target import Target

TRIPLE = "riscv64-unknown-linux-gnu"

RV64GCV = ("a", "c", "d", "f", "m", "v", "zicsr", "zifencei")


def processor(cpu: str, features: tuple[str, ...]) -> Target:
    """The description of a processor of this name with these features. Its minimum and maximum instructions return the
    number if one operand is NaN. It has no streaming stores."""
    bits = 256 if "zvl256b" in features else 128
    isa = Isa(vector_bits=bits, scalable="v" in features, registers=32, fma="d" in features)
    return Target(TRIPLE, cpu, tuple(sorted(features)), isa=isa)


FAMILY = Family(
    "riscv",
    "riscv64",
    {
        "rv64gcv": processor("generic-rv64", RV64GCV),
        "rv64gcv-256": processor("generic-rv64", (*RV64GCV, "zvl128b", "zvl256b")),
    },
    describe=processor,
)

__all__ = ["FAMILY", "processor"]
