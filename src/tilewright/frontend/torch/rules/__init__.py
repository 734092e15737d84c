"""The rules by theme; importing this package registers all of them."""

from __future__ import annotations

from tilewright.frontend.torch.rules import (
    activation,
    contraction,
    create,
    index,
    norm,
    pointwise,
    pool,
    reduce,
    rnn,
    shape,
)

__all__ = ["activation", "contraction", "create", "index", "norm", "pointwise", "pool", "reduce", "rnn", "shape"]
