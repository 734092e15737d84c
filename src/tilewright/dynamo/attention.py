"""Attention's backward pass in a joint graph, without the intermediate results that PyTorch's operator stores for it.

    y, sums = flash(q, k, v)                           y, _ = flash(q, k, v)
    dq, dk, dv = flash_backward(g, q, k, v, y, sums)   dq, dk, dv = attention_backward(g, q, k, v)

Ours computes the scores once more and reads neither result nor sums. So the compiled forward pass need not compute the
sums, and attention is compiled forward and backward. If PyTorch runs the operator, it computes result and sums again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from functorch.compile import default_partition
from torch.fx import GraphModule, Node

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _backward(
    g: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of attention without dropout with respect to q, k and v, [batch, heads, sequence, depth], from the
    result's gradient `g`. `mask`, `causal` and `scale` are arguments of the forward pass, which is computed once
    more."""
    y, sums = FORWARD(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = BACKWARD(
        g, q, k, v, y, sums, 0.0, causal, attn_mask=mask, scale=scale
    )
    return result


torch.library.define(
    "tilewright::attention_backward",
    "(Tensor g, Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale) -> (Tensor, Tensor, Tensor)",
)
torch.library.impl("tilewright::attention_backward", "CompositeExplicitAutograd", _backward)
torch.library.register_fake("tilewright::attention_backward", _backward)


def partitioned(joint: GraphModule, inputs: Sequence[Any], **rest: Any) -> tuple[GraphModule, GraphModule]:
    """(the forward graph, the backward graph) that AOTAutograd's partitioner makes of a joint graph with `inputs`."""
    for node in joint.graph.find_nodes(op="call_function", target=BACKWARD):
        _replace(joint, node)
    joint.graph.eliminate_dead_code()
    joint.recompile()
    result: tuple[GraphModule, GraphModule] = default_partition(joint, inputs, **rest)
    return result


def _replace(joint: GraphModule, node: Node) -> None:
    g, q, k, v, _, _, dropout, causal = node.args
    if dropout:
        return
    with joint.graph.inserting_before(node):
        arguments = (g, q, k, v, node.kwargs.get("attn_mask"), causal, node.kwargs.get("scale"))
        new_node = joint.graph.call_function(torch.ops.tilewright.attention_backward.default, arguments)
    new_node.meta = dict(node.meta)
    node.replace_all_uses_with(new_node)
    joint.graph.erase_node(node)


__all__ = ["partitioned"]
