"""The note on a convolution that is computed by its taps."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Taps(Algorithm):
    """A convolution of few filters by one of many: every tap of the window becomes a separate filter, whose maps are
    then shifted and summed. `whole`: this holds for all taps, so that the convolution is 1x1; else for the columns of
    the window, whose lines remain a window of one column. `nchw`: the products are computed over NCHW maps, else over
    channel blocks."""

    name: ClassVar[str] = "taps"
    in_blocks: ClassVar[bool] = False

    whole: int
    nchw: int
