"""The records of Winograd's and Fourier's transforms, for convolutions and their gradients by their weights."""

from __future__ import annotations

from tilewright.algorithms.winograd.gradient_offers import with_sums
from tilewright.algorithms.winograd.layout import winograd, winograd_by_size, winograd_sums
from tilewright.algorithms.winograd.offers import with_transforms
from tilewright.algorithms.winograd.selection import Winograd, WinogradBySize, WinogradSums
from tilewright.transform.algorithm import Record, unchanged

RECORDS = (
    Record(Winograd, "conv", with_transforms, winograd, integers=True),
    Record(WinogradBySize, "conv", unchanged, winograd_by_size),
    Record(WinogradSums, "conv_weight_gradient", with_sums, winograd_sums),
)
