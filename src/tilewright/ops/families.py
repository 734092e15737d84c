"""Imports every operator family, which registers its operators."""

from __future__ import annotations

from tilewright.ops import (
    conv,
    index,
    matmul,
    norm,
    packed,
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
)

__all__ = [
    "conv",
    "index",
    "matmul",
    "norm",
    "packed",
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
]
