"""The notes on convolutions and their gradients by their weights that are computed by Winograd's transforms."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Winograd(Algorithm):
    """A convolution by Winograd's or Fourier's transforms: `tile` outputs a side, panels of `width` filters, `panels`
    of them in a group."""

    name: ClassVar[str] = "winograd"

    tile: int
    width: int
    panels: int


@dataclass(frozen=True, slots=True)
class WinogradBySize(Algorithm):
    """A convolution over maps of any size that keeps its filters twice: for `tile` outputs a side and for `neartile`
    (0: as they are, for computing it directly), in panels as of `Winograd`. At each call it takes the one that is
    estimated to take less: `costs` are the cycles that each tile adds and those that any map takes, of the first and of
    the second; they follow from the rest, so that nothing is decided about them."""

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
    a side."""

    name: ClassVar[str] = "winograd_sums"

    tile: int
