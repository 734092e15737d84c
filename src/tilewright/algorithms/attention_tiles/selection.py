"""The note on attention whose products are made in registers of matrices."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class AttentionTiles(Algorithm):
    """Attention in registers of matrices: its scores and its outputs (scores times values) by so many products of bf16
    pieces (3: x3, 6: x6) each, or by one of factors that are rounded to bf16 or f16 (1)."""

    name: ClassVar[str] = "attention_tiles"
    in_blocks: ClassVar[bool] = False

    scores: int
    outputs: int
