"""The records of Strassen's method for products and 1x1 convolutions."""

from __future__ import annotations

from tilewright.algorithms.strassen.layout import strassen, strassen_conv
from tilewright.algorithms.strassen.offers import with_quarters, with_strips
from tilewright.algorithms.strassen.selection import Strassen, StrassenStrips
from tilewright.transform.algorithm import Record

RECORDS = (
    Record(StrassenStrips, "conv", with_strips, strassen_conv),
    Record(Strassen, "matmul", with_quarters, strassen),
)
