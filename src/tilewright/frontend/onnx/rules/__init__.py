"""The rules by theme; importing this package registers all of them."""

from __future__ import annotations

from tilewright.frontend.onnx.rules import constants, contraction, index, norm, pointwise, pool, reduce, rnn, shape

__all__ = ["constants", "contraction", "index", "norm", "pointwise", "pool", "reduce", "rnn", "shape"]
