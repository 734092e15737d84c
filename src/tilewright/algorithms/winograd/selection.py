"""The notes on convolutions and their gradients by their weights that are computed by Winograd's transforms."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Winograd(Algorithm):
    """A convolution by Winograd's or Fourier's transforms: `tile` outputs per side, panels of `width` filters, `panels`
    of them in a group."""

    name: ClassVar[str] = "winograd"

    tile: int
    width: int
    panels: int


@dataclass(frozen=True, slots=True)
class WinogradBySize(Algorithm):
    """A convolution over maps of any size with two layouts of its filters: for `tile` and for `neartile` outputs per
    side (0: untransformed, for the direct algorithm), in panels as for `Winograd`. Each call uses the layout that is
    estimated to be faster: `costs` are the cycles per tile and per map, of the first and of the second layout. They
    follow from the other fields, and are no choice."""

    name: ClassVar[str] = "winograd_by_size"

    tile: int
    width: int
    panels: int
    neartile: int
    nearwidth: int
    nearpanels: int
    costs: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class WinogradSums(Algorithm):
    """A convolution's gradient by its weight by Winograd's transforms: tiles of `tile` pixels of the result's gradient
    per side."""

    name: ClassVar[str] = "winograd_sums"

    tile: int
