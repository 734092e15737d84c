"""The notes on products and convolutions that are computed by Strassen's method."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class StrassenStrips(Algorithm):
    """A 1x1 convolution by Strassen's method: panels of `width` filters, `panels` of them in a group."""

    name: ClassVar[str] = "strassen_strips"

    width: int
    panels: int


@dataclass(frozen=True, slots=True)
class Strassen(Algorithm):
    """A matrix product by Strassen's method: seven products of quarters."""

    name: ClassVar[str] = "strassen"
