"""VTA, the Versatile Tensor Accelerator: its instructions, simulator, order checker and cycle model (docs/vta.md).

The machine is Moreau et al., "A Hardware-Software Blueprint for Flexible Deep Learning Specialization" (IEEE Micro
2019); the semantics are those of its public functional simulator.
"""

from tilewright.targets.vta.config import DEFAULT, Config, Memory
from tilewright.targets.vta.isa import Alu, AluOp, Finish, Gemm, Instruction, Load, Store, Tokens, Uop, decode, encode

__all__ = [
    "DEFAULT",
    "Alu",
    "AluOp",
    "Config",
    "Finish",
    "Gemm",
    "Instruction",
    "Load",
    "Memory",
    "Store",
    "Tokens",
    "Uop",
    "decode",
    "encode",
]
