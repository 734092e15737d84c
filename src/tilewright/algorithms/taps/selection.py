"""The note on a convolution that is computed by its taps."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Taps(Algorithm):
    """A convolution of few filters by one of many: every tap of the window is a filter of its own, whose maps are then
    shifted and summed. `whole`: the taps of all lines are, and pixels are multiplied one by one; else those of a line,
    and a window of one column is left. `nchw`: the products are computed over NCHW maps, else over channel
    blocks."""

    name: ClassVar[str] = "taps"
    in_blocks: ClassVar[bool] = False

    whole: int
    nchw: int
