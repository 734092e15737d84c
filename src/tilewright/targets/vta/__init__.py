"""VTA, the Versatile Tensor Accelerator: its instructions, simulator, order checker and cycle model (docs/vta.md).

The machine is Moreau et al., "A Hardware-Software Blueprint for Flexible Deep Learning Specialization" (IEEE Micro
2019); the semantics are those of its public functional simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.targets.vta.config import DEFAULT, Config, Memory
    from tilewright.targets.vta.isa import (
        Alu,
        AluOp,
        Finish,
        Gemm,
        Instruction,
        Load,
        Store,
        Tokens,
        Uop,
        decode,
        encode,
    )

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


def __getattr__(name: str) -> Any:
    """The public names above, imported lazily: every compile loads the family, but few need its instructions."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tilewright.targets.vta import config, isa

    return getattr(config if hasattr(config, name) else isa, name)
