"""Imports all rules, which registers them."""

from __future__ import annotations

from tilewright.frontend.onnx.rules import (
    deform,
    einsum,
    extent,
    index,
    legacy,
    microsoft,
    microsoft_attention,
    microsoft_quant,
    ml,
    optimizers,
    quant,
    resize,
    rnn,
    scan,
    signal,
    trees,
    usual,
)

__all__ = [
    "deform",
    "einsum",
    "extent",
    "index",
    "legacy",
    "microsoft",
    "microsoft_attention",
    "microsoft_quant",
    "ml",
    "optimizers",
    "quant",
    "resize",
    "rnn",
    "scan",
    "signal",
    "trees",
    "usual",
]
