"""Taps as an algorithm of convolutions."""

from __future__ import annotations

from tilewright.algorithms.taps.estimate import with_taps
from tilewright.algorithms.taps.layout import lower
from tilewright.algorithms.taps.selection import Taps
from tilewright.transform.algorithm import Record

RECORDS = (Record(Taps, "conv", with_taps, lower, turn=1),)
