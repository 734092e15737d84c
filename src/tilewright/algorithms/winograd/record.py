"""The records (`transform/algorithm.py`) of Winograd's and Fourier's transforms, for convolutions and their gradients
by their weights."""

from __future__ import annotations

from tilewright.algorithms.winograd.selection import Winograd, WinogradBySize, WinogradSums
from tilewright.support.discover import imported_later
from tilewright.transform.algorithm import Record
from tilewright.transform.problems import is_one_group

_HERE = "tilewright.algorithms.winograd"
with_transforms = imported_later(f"{_HERE}.offers:with_transforms")
with_sums = imported_later(f"{_HERE}.gradient_offers:with_sums")
winograd = imported_later(f"{_HERE}.layout:winograd")
winograd_by_size = imported_later(f"{_HERE}.layout:winograd_by_size")
winograd_sums = imported_later(f"{_HERE}.layout:winograd_sums")

RECORDS = (
    Record(Winograd, "conv", with_transforms, winograd, fits=is_one_group),
    Record(WinogradBySize, "conv", lambda enclosing, node, options: options, winograd_by_size),  # by `with_transforms`
    Record(WinogradSums, "conv_weight_gradient", with_sums, winograd_sums),
)
