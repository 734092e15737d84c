"""The note on attention whose products are computed in matrix registers."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class AttentionTiles(Algorithm):
    """Attention in matrix registers: the numbers of terms of its scores and of its outputs (scores times values), which
    are products of bf16 pieces (3: x3, 6: x6), or one product of factors rounded to bf16 or f16 (1)."""

    name: ClassVar[str] = "attention_tiles"
    in_blocks: ClassVar[bool] = False

    scores: int
    outputs: int
