"""The record (`transform/algorithm.py`) of convolutions that are computed by the taps of their windows."""

from __future__ import annotations

from tilewright.algorithms.taps.selection import Taps
from tilewright.support.discover import imported_later
from tilewright.transform.algorithm import Record
from tilewright.transform.problems import is_one_group_of_floats

with_taps = imported_later("tilewright.algorithms.taps.estimate:with_taps")
lower = imported_later("tilewright.algorithms.taps.layout:lower")

RECORDS = (Record(Taps, "conv", with_taps, lower, turn=1, fits=is_one_group_of_floats),)
