"""Operators that rules refuse, said in others by PyTorch's own decompositions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import getitem
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.utils import detect_fake_mode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from tilewright.dynamo.encoder import DECOMPOSITIONS
from tilewright.frontend.torch import registry
from tilewright.frontend.torch.export import decomposition

_FIRST_RESULT = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default}
"""Operators whose decomposition gives the first result alone: what PyTorch keeps for the backward is another thing."""


def decompositions() -> dict[Any, Any]:
    """What AOTAutograd decomposes while it traces: PyTorch's core table, without the operators that have rules, and
    PyTorch's fast path of an encoder layer."""
    table = dict(torch._decomp.core_aten_decompositions()) | DECOMPOSITIONS
    for operator in (*registry.operators(), *_FIRST_RESULT):
        table.pop(operator, None)
    return table


def separable(gm: GraphModule, operators: Collection[Any]) -> frozenset[Any]:
    """Those of the operators that may be decomposed in this graph."""
    whole = {
        n.args[0].target
        for n in gm.graph.nodes
        if n.target is getitem and n.args[1] and n.args[0].target in _FIRST_RESULT
    }
    return frozenset(operators) - whole


def decomposed(gm: GraphModule, examples: Sequence[Any], operators: Collection[Any]) -> GraphModule | None:
    """The graph with these operators decomposed; None where that fails, or changes how results lie in memory."""
    table = {op: decomposition(op) for op in operators}
    mode = detect_fake_mode(list(examples))
    if mode is None:
        return None
    try:
        with mode, preserve_node_meta(), enable_python_dispatcher(), torch.no_grad():
            traced = make_fx(torch.fx.Interpreter(gm).run, decomposition_table=table)(*examples)
    except Exception:  # a decomposition that cannot be traced: the operator stays as it is
        return None
    traced.graph.eliminate_dead_code()
    return traced if _results(traced) == _results(gm) else None


def _results(gm: GraphModule) -> list[Any]:
    """Types, sizes and strides of what a graph gives."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    results: list[Any] = []
    for node in torch.utils._pytree.tree_leaves(output.args[0]):
        held = node.meta.get("val") if isinstance(node, torch.fx.Node) else node
        if isinstance(held, torch.Tensor):
            results.append((held.dtype, [*map(str, held.shape)], [*map(str, held.stride())]))
        else:
            results.append(str(held))
    return results


__all__ = ["decompositions", "separable", "decomposed"]
