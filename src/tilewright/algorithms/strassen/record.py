"""The records (`transform/algorithm.py`) of Strassen's method for products and 1x1 convolutions."""

from __future__ import annotations

from tilewright.algorithms.strassen.selection import Strassen, StrassenStrips
from tilewright.support.discover import imported_later
from tilewright.transform.algorithm import Record
from tilewright.transform.problems import is_one_group_of_floats

_HERE = "tilewright.algorithms.strassen"
with_quarters = imported_later(f"{_HERE}.offers:with_quarters")
with_strips = imported_later(f"{_HERE}.offers:with_strips")
strassen = imported_later(f"{_HERE}.layout:strassen")
strassen_conv = imported_later(f"{_HERE}.layout:strassen_conv")

RECORDS = (
    Record(StrassenStrips, "conv", with_strips, strassen_conv, fits=is_one_group_of_floats),
    Record(Strassen, "matmul", with_quarters, strassen),
)
