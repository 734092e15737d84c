"""PyTorch's fast path of an encoder layer, decomposed into ordinary operators."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = 1
"""The kind of a mask [batch, keys]; those of other kinds broadcast to the scores [batch, heads, rows, keys]."""


def encoder_layer(
    x: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> Any:
    """PyTorch's `aten._transformer_encoder_layer_fwd` in ordinary operators: attention of `heads` heads, then two
    linear layers with GELU (`use_gelu`) or ReLU between them. The result and `x` are [batch, rows, width]; norms, with
    `eps`, are before (`norm_first`) or after both. `rest`: weights and biases of both norms, then of both linear
    layers, then maybe a mask and its kind; keys where the mask is not zero are not attended to. NotImplemented for
    nested tensors."""
    if x.is_nested:
        return NotImplemented
    scale1, shift1, scale2, shift2, weight1, bias1, weight2, bias2, *masked = rest
    mask, kind = (*masked, None, None)[:2]
    hidden = None if mask is None else (mask[:, None, None] if kind == PADDING else mask) != 0

    def attended(y: Tensor) -> Tensor:
        parts = F.linear(y, qkv_weight, qkv_bias).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        return F.linear(_attention(q, k, v, hidden).transpose(1, 2).flatten(2), out_weight, out_bias)

    def forward(y: Tensor) -> Tensor:
        inner = F.linear(y, weight1, bias1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), weight2, bias2)

    def first(y: Tensor) -> Tensor:
        return F.layer_norm(y, (width,), scale1, shift1, eps)

    def second(y: Tensor) -> Tensor:
        return F.layer_norm(y, (width,), scale2, shift2, eps)

    if norm_first:
        x = x + attended(first(x))
        return x + forward(second(x))
    x = first(x + attended(x))
    return second(x + forward(x))


def _attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
    """Attention of [batch, heads, rows, depth]. A row to which `hidden` leaves no key is NaN, as in PyTorch's
    function."""
    if hidden is None:
        return F.scaled_dot_product_attention(q, k, v)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


DECOMPOSITIONS: dict[Any, Any] = {torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer}

__all__ = ["DECOMPOSITIONS"]
