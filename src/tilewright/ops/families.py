"""Imports every operator family, which registers its operators."""

from __future__ import annotations

from tilewright.ops import (
    attention,
    conv,
    dots,
    index,
    matmul,
    norm,
    packed,
    packed_groups,
    packed_transposed,
    pointwise,
    pool,
    reduce,
    resize,
    rnn,
    sample,
    scan,
    scatter,
    shape,
    signal,
    winograd,
)

__all__ = [
    "attention",
    "conv",
    "dots",
    "index",
    "matmul",
    "norm",
    "packed",
    "packed_groups",
    "packed_transposed",
    "pointwise",
    "pool",
    "reduce",
    "resize",
    "rnn",
    "sample",
    "scan",
    "scatter",
    "shape",
    "signal",
    "winograd",
]
