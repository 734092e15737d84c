"""The choice of attention whose products are computed in matrix registers, as a note on its node."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class AttentionTiles(Algorithm):
    """Attention with its products in matrix registers. `scores` and `outputs` (scores times values) are the numbers of
    products of bf16 pieces whose sum each product is (3: x3, 6: x6); 1 is one product of factors rounded to bf16 or
    f16."""

    name: ClassVar[str] = "attention_tiles"
    in_blocks: ClassVar[bool] = False

    scores: int
    outputs: int
