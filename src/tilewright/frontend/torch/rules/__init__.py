"""The rules by theme; importing this package registers all of them."""

from __future__ import annotations

from tilewright.frontend.torch.rules import (
    activation,
    casts,
    contraction,
    create,
    fourier,
    index,
    linalg,
    norm,
    order,
    pointwise,
    pool,
    random,
    reduce,
    resize,
    rnn,
    selection,
    shape,
    signs,
    special,
    strided,
)

__all__ = [
    "activation",
    "casts",
    "contraction",
    "create",
    "fourier",
    "index",
    "linalg",
    "norm",
    "order",
    "pointwise",
    "pool",
    "random",
    "reduce",
    "resize",
    "rnn",
    "selection",
    "shape",
    "signs",
    "special",
    "strided",
]
