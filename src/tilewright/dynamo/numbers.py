"""Integers that a function gets as arguments, which TorchDynamo traces as symbols though no tensor has them as a size.

A program learns its symbols from the sizes of tensors. Where an operator takes such a number in place of a tensor, as
in `x * k`, PyTorch makes a tensor of it first, which enters the program; other operators that read it stay in PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._dynamo.utils import detect_fake_mode
from torch.fx import GraphModule, Node

from tilewright.frontend.torch.aten import is_size
from tilewright.frontend.torch.walk import operator_name, place
from tilewright.support.errors import Error, UnsupportedError

_TENSOR = torch.ops.aten.scalar_tensor.default


def as_tensors(gm: GraphModule, examples: Sequence[Any]) -> None:
    """Replace numbers that are no sizes by tensors, wherever operators of the graph `gm` take tensors."""
    mode = detect_fake_mode(list(examples))
    alone, tensors = _arguments(gm), dict[Node, Node]()
    if mode is None or not alone:
        return
    for node in [n for n in gm.graph.nodes if isinstance(n.target, torch._ops.OpOverload) and not _is_narrow(n)]:
        for k, number in enumerate(node.args):
            if not (isinstance(number, Node) and is_size(number) and _symbols(number) & alone):
                continue
            operator = _of_tensors_at(node.target, k)
            if operator is None:
                continue
            if number not in tensors:
                tensors[number] = _tensor(gm, node, number, mode)
            node.target = operator
            node.update_arg(k, tensors[number])
    if tensors:
        gm.recompile()


def tensors_of_numbers(gm: GraphModule) -> list[Node]:
    """The nodes of the graph `gm` that make tensors of numbers which are no sizes; PyTorch runs them."""
    alone = _arguments(gm)
    return [n for n in gm.graph.nodes if n.target is _TENSOR and any(_symbols(k) & alone for k in n.all_input_nodes)]


def _is_narrow(node: Node) -> bool:
    """Whether an operator reads 16-bit floats: to these a tensor of one number would be rounded, a number is not."""
    read = (n.meta.get("val") for n in node.all_input_nodes)
    return any(isinstance(v, torch.Tensor) and v.dtype in (torch.float16, torch.bfloat16) for v in read)


def _of_tensors_at(target: Any, k: int) -> Any:
    """The operator `target`, or its overload for tensors, if that takes a tensor as argument `k`; else None."""
    for operator in (
        target,
        getattr(target.overloadpacket, "Tensor", None) if target._overloadname == "Scalar" else None,
    ):
        arguments = [] if operator is None else operator._schema.arguments
        if k < len(arguments) and isinstance(arguments[k].type, torch.TensorType):
            return operator
    return None


def _tensor(gm: GraphModule, before: Node, number: Node, mode: Any) -> Node:
    dtype = torch.int64 if isinstance(number.meta["val"], torch.SymInt) else torch.float64
    with gm.graph.inserting_before(before):
        result = gm.graph.call_function(_TENSOR, (number,), {"dtype": dtype})
    with mode:
        result.meta["val"] = torch.empty((), dtype=dtype)
    return result


def unsized(gm: GraphModule, label: str) -> dict[Node, Error]:
    """The operators of the graph `gm`, called `label` in errors, that read a number which is no size, each with the
    reason for its refusal."""
    alone = _arguments(gm)
    result: dict[Node, Error] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is _TENSOR or is_size(node):
            continue
        read = {s for n in node.all_input_nodes if is_size(n) for s in _symbols(n)}
        lacking = (read & alone) - _of_tensors(node.all_input_nodes)
        if lacking:
            names = ", ".join(sorted(map(str, lacking)))
            what = f"{operator_name(node.target)} reads the argument {names}, an integer that is no size of a tensor"
            result[node] = UnsupportedError(what, where=place(label, node), hint="pass it as a tensor of one integer")
    return result


def _arguments(gm: GraphModule) -> set[Any]:
    """The symbols of integers among the placeholders that no size of a tensor among them has."""
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return {s for n in placeholders if is_size(n) for s in _symbols(n)} - _of_tensors(placeholders)


def _symbols(number: Any) -> set[Any]:
    held = number.meta["val"]
    return set(held.node.expr.free_symbols) if isinstance(held, torch.SymInt | torch.SymFloat) else set()


def _of_tensors(nodes: Iterable[Node]) -> set[Any]:
    """The symbols in the sizes of those of `nodes` that are tensors."""
    tensors = [n.meta["val"] for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    sizes = (d for v in tensors for d in v.shape if isinstance(d, torch.SymInt))
    return {s for d in sizes for s in d.node.expr.free_symbols}


__all__ = ["as_tensors", "tensors_of_numbers", "unsized"]
