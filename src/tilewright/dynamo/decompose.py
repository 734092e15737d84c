"""PyTorch's own decompositions of operators that have no rule into operators that have one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import getitem
from types import MappingProxyType
from typing import Any

import torch
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.utils import detect_fake_mode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from tilewright.dynamo.encoder import DECOMPOSITIONS
from tilewright.frontend.torch import registry
from tilewright.frontend.torch.export import decomposition

_FIRST_RESULT = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default}
"""Operators whose decomposition returns the first result only; the others, which PyTorch stores for the backward pass,
are not equivalent."""


@functools.cache
def decompositions() -> Mapping[Any, Any]:
    """The operators that AOTAutograd decomposes while it traces: PyTorch's core table, without those that have rules,
    and PyTorch's fast path of an encoder layer. Read it, or copy it: it is computed once."""
    table = dict(torch._decomp.core_aten_decompositions()) | DECOMPOSITIONS
    for operator in (*registry.operators(), *_FIRST_RESULT):
        table.pop(operator, None)
    return MappingProxyType(table)


_RESIZED = tuple(
    getattr(getattr(torch.ops.aten, name), overload)
    for name in ("upsample_bilinear2d", "upsample_bicubic2d")
    for overload in ("default", "vec")
)
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def bytes_resized_whole(gm: GraphModule) -> Iterator[None]:
    """Within the context, PyTorch does not decompose resizing, if the graph resizes bytes: its kernels use weights of
    16 bits for bytes, and the decomposition rounds otherwise."""
    if not any(map(_resizes_bytes, gm.graph.nodes)):
        yield
        return
    removed = [(op, key, op.py_kernels.pop(key)) for op in _RESIZED for key in _KEYS if key in op.py_kernels]
    for op in _RESIZED:
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, kernel in removed:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


def _resizes_bytes(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    name = getattr(node.target, "__name__", "")
    return getattr(value, "dtype", None) is torch.uint8 and ("interpolate" in name or "upsample" in name)


def separable(gm: GraphModule, operators: Collection[Any]) -> frozenset[Any]:
    """`operators`, without those of which the graph `gm` uses a result that their decompositions do not compute."""
    whole = {
        n.args[0].target
        for n in gm.graph.nodes
        if n.target is getitem and n.args[1] and n.args[0].target in _FIRST_RESULT
    }
    return frozenset(operators) - whole


def decomposed(gm: GraphModule, examples: Sequence[Any], operators: Collection[Any]) -> GraphModule | None:
    """`gm`, traced with the inputs `examples`, with `operators` decomposed; None if that fails, or changes types or
    strides of results."""
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
    """The type, sizes and strides of each result of a graph."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    results: list[Any] = []
    for node in torch.utils._pytree.tree_leaves(output.args[0]):
        held = node.meta.get("val") if isinstance(node, torch.fx.Node) else node
        if isinstance(held, torch.Tensor):
            results.append((held.dtype, [*map(str, held.shape)], [*map(str, held.stride())]))
        else:
            results.append(str(held))
    return results


__all__ = ["bytes_resized_whole", "decompositions", "separable", "decomposed"]
