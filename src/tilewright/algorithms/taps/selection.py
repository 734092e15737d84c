"""The note on a convolution that is computed by its taps."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Taps(Algorithm):
    """A convolution of few filters computed as one of many: each tap of the window becomes a filter of its own, whose
    maps are shifted and summed. With `whole` the new filters are 1x1; else only the columns of the window become
    filters, of one column each. `nchw`: the products are computed on NCHW maps, else on channel blocks."""

    name: ClassVar[str] = "taps"
    in_blocks: ClassVar[bool] = False

    whole: int
    nchw: int
