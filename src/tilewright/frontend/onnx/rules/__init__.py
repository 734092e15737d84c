"""The rules by theme; importing this package registers all of them."""

from __future__ import annotations

from tilewright.frontend.onnx.rules import (
    constants,
    contraction,
    einsum,
    index,
    legacy,
    ml,
    norm,
    pointwise,
    pool,
    quant,
    reduce,
    resize,
    rnn,
    scan,
    shape,
    signal,
    trees,
)

__all__ = [
    "constants",
    "contraction",
    "einsum",
    "index",
    "legacy",
    "ml",
    "norm",
    "pointwise",
    "pool",
    "quant",
    "reduce",
    "resize",
    "rnn",
    "scan",
    "shape",
    "signal",
    "trees",
]
