"""ATen graphs from AOTAutograd: find which of their nodes have import rules, and import parts of them as Graphs.

Such a graph is functional, and each node's `meta["val"]` is a fake tensor: it has a type, sizes and strides, but no
numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import sympy
import torch
from torch.fx import GraphModule, Node

from tilewright.frontend.common.emitter import check_size
from tilewright.frontend.common.finish import finished, reason
from tilewright.frontend.torch import registry
from tilewright.frontend.torch.control import truth
from tilewright.frontend.torch.dtypes import element_type
from tilewright.frontend.torch.symbols import Sizes
from tilewright.frontend.torch.walk import Walk, operator_name, place
from tilewright.ir.expr import as_int
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ir.interface import Imported, Interface
from tilewright.ops.registry import emit1
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, Problems, UnsupportedError

MIN_SIZE = 2
"""The smallest size that a symbol of TorchDynamo stands for: Dynamo traces separate graphs for sizes 0 and 1."""

COMPLEX = "complex"
"""The reason why a complex tensor cannot enter or leave a part; inside a part it is represented by two real tensors."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The outcome of trying to import each node of a graph. `refused`: each node that cannot be imported, with the
    reason; `composite`: operators among these that PyTorch can decompose."""

    refused: Mapping[Node, Error]
    composite: frozenset[Any]


def survey(gm: GraphModule, label: str) -> Survey:
    """Try to import every operator of the graph `gm`, called `label` in errors, and return which are refused. The
    result of a refused one counts as an input for nodes that read it."""
    sizes = graph_sizes(gm)
    walk = Walk(label, GraphBuilder(), {}, sizes, lambda node: _entered(walk, node))
    values: dict[Node, Any] = {}
    refused: dict[Node, Error] = {}
    for node in gm.graph.nodes:
        if node.op == "output":
            continue
        if is_body(gm, node):
            values[node] = None
            continue
        error = _why_not(walk, gm, node, values)
        if error is None:
            continue
        parts: tuple[Any, ...] = node.args if node.target is operator.getitem else ()
        if len(parts) == 2 and isinstance(parts[0], Node):  # a result that the rule does not give: it is refused
            node, error = node.args[0], error if is_size(node) else _half(walk, node)
        if node.op == "call_function":
            refused.setdefault(node, error)
        try:
            values[node] = _entered(walk, node)
            walk.failed.discard(node)
        except Error:
            walk.failed.add(node)  # and so are all that read it
    return Survey(refused, frozenset(op for op in walk.refused if _name(op).split(".")[0] not in registry.RANDOM))


def is_body(gm: GraphModule, node: Node) -> bool:
    """Whether a node refers to a graph that is the body of a control flow operator."""
    return node.op == "get_attr" and isinstance(getattr(gm, str(node.target), None), GraphModule)


def _why_not(walk: Walk, gm: GraphModule, node: Node, values: dict[Node, Any]) -> Error | None:
    """Import `node` into the walk, and return None; or the error that refuses it."""
    target: Any = node.target
    where = place(walk.label, node)
    if registry.is_mutable(target):
        return UnsupportedError(f"the operator {_name(target)} changes memory in place", where=where)
    misfit = next((m for m in map(_misfit, _tensors(node)) if m), None)
    if misfit not in (None, COMPLEX) and node.op == "call_function":
        return UnsupportedError(f"the result of {_name(target)} is {misfit}", where=where)
    read = next((n for n in node.all_input_nodes if n in walk.failed), None)
    if read is not None:
        return UnsupportedError(f"{_name(target)} reads a value of a type that is not supported", where=where)
    try:
        walk.attempt(gm, node, values)
    except Exception as error:  # a defect of a rule is a refusal here: PyTorch runs the operator
        walk.failed.add(node)
        return UnsupportedError(f"this use of {_name(target)} is not supported ({reason(error)})", where=where)
    if not walk.problems and is_size(node) and isinstance(values[node], Value):
        walk.numbers.clear()
        walk.failed.add(node)
        hint = "carry a tensor of one integer"
        return UnsupportedError(f"a result of {_name(target)} is an integer that data decides", where=where, hint=hint)
    if not walk.problems:
        return None if values[node] is not None else UnsupportedError("it has no value", where=where)
    result = Error.combined(list(walk.problems.errors))
    walk.problems.errors.clear()
    return result


def _half(walk: Walk, result: Node) -> Error:
    """An error for the operator of which `result` is one of several results, since its rule does not compute that one;
    the operator is refused."""
    base: Any = result.args[0]
    walk.refuse(base)
    what = f"result {result.args[1]} of {_name(base.target)} is not computed"
    return UnsupportedError(what, where=place(walk.label, base))


def _entered(walk: Walk, node: Node) -> Any:
    """The result of a refused node as new inputs of the graph, or as size or number."""
    held = node.meta.get("val")
    if isinstance(held, int | float | bool):
        return held
    if isinstance(held, torch.SymInt):
        return walk.sizes.expr(held)
    if isinstance(held, torch.SymBool):
        return truth(walk, held, node.name)
    if isinstance(held, torch.Tensor):
        return walk.builder.input(node.name, stated_type(walk.sizes, held))
    if isinstance(held, tuple | list):
        types = [stated_type(walk.sizes, x) if isinstance(x, torch.Tensor) else None for x in held]
        return [None if t is None else walk.builder.input(node.name, t) for t in types]
    raise UnsupportedError("not a tensor", got=type(held).__name__)


def stated_type(sizes: Sizes, fake: torch.Tensor) -> TensorType:
    """The type of a tensor of PyTorch's graph, with its sizes as expressions. Raises UnsupportedError for tensors that
    rules do not support."""
    misfit = _misfit(fake)
    if misfit:
        raise UnsupportedError(f"the tensor is {misfit}")
    result = TensorType(element_type(fake.dtype), tuple(sizes.expr(d) for d in fake.shape))
    check_size(result)
    return result


def _misfit(fake: torch.Tensor) -> str | None:
    """The property, in words, that keeps rules from reading a tensor, such as "not dense"; None if they can."""
    if fake.device.type != "cpu":
        return f"on the device {fake.device}"
    if fake.is_complex():
        return COMPLEX
    if fake.layout is not torch.strided or fake.is_quantized:
        return "not dense"
    if fake.is_conj() or fake.is_neg():
        return "a lazy conjugate or negative"
    return None


def _tensors(node: Node) -> list[torch.Tensor]:
    held = node.meta.get("val")
    return [x for x in (held if isinstance(held, tuple | list) else (held,)) if isinstance(x, torch.Tensor)]


def _name(target: Any) -> str:
    return operator_name(target).removeprefix("aten.")


# --- sizes ----------------------------------------------------------------------------------------------------------


def is_size(node: Node) -> bool:
    """Whether a node computes a Python number rather than a tensor."""
    return isinstance(node.meta.get("val"), int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def sizes_read(nodes: Iterable[Node]) -> list[Node]:
    """The nodes that compute sizes or numbers which `nodes` read, each once."""
    return list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes if is_size(n)))


def graph_sizes(gm: GraphModule) -> Sizes:
    """The symbols that occur in a graph's placeholders."""
    placeholders = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
    dims = [d for v in placeholders for d in (v.shape if isinstance(v, torch.Tensor) else (v,))]
    symbolic = [d for d in dims if isinstance(d, torch.SymInt)]
    ranges = symbolic[0].node.shape_env.var_to_range if symbolic else {}
    sizes = Sizes(ranges, {}, MIN_SIZE)
    for d in symbolic:
        for symbol in sorted(d.node.expr.free_symbols, key=str):
            sizes.declare(symbol, str(symbol))
    return sizes


def expression(size: Any) -> Any:
    """A size as SymPy expression or as number."""
    return size.node.expr if isinstance(size, torch.SymInt) else int(size)


def dense_order(fake: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions of a tensor in the order of their strides, largest first, if its elements fill memory without
    gaps; else None."""
    shape, strides = [expression(d) for d in fake.shape], [expression(s) for s in fake.stride()]
    ordinary = tuple(range(len(shape)))
    if _fills(shape, strides, ordinary):
        return ordinary
    hints = [_hint(s) for s in fake.stride()]
    if any(h is None for h in hints):
        return None
    order = tuple(sorted(ordinary, key=lambda d: (-(hints[d] or 0), d)))
    return order if _fills(shape, strides, order) else None


def _fills(shape: Sequence[Any], strides: Sequence[Any], order: Sequence[int]) -> bool:
    if any(d == 0 for d in shape):
        return True
    expected: Any = 1
    for d in reversed(order):
        if shape[d] != 1 and sympy.simplify(strides[d] - expected) != 0:
            return False
        expected = expected * shape[d]
    return True


def _hint(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return None if hint is None else int(hint)


# --- parts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor that enters or leaves a part of a PyTorch graph. `order` has its dimensions as they lie in memory,
    largest stride first, which is their order in the part's Graph."""

    node: Node
    order: tuple[int, ...]

    @property
    def in_order(self) -> bool:
        return self.order == tuple(range(len(self.order)))


@dataclass(slots=True)
class PartImporter:
    """Imports some nodes of the PyTorch graph `gm` as a Graph of their own. `label` names it in messages."""

    gm: GraphModule
    label: str
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    sizes: Sizes = field(init=False)

    def run(
        self, nodes: Iterable[Node], inputs: Sequence[Port], weights: Sequence[Port], outputs: Sequence[Port]
    ) -> Imported:
        """Import `nodes` as a graph with inputs x0, x1, ..., weights w0, w1, ... and outputs y0, y1, ...; the arrays of
        weights only have the right types, and no numbers."""
        self.sizes = graph_sizes(self.gm)
        self.builder.name = "part"  # for all, as the name belongs to what a kept program is found by
        values: dict[Node, Any] = {}
        for k, port in enumerate(inputs):
            values[port.node] = self.entered(port, self.builder.input(f"x{k}", self.type(port)))
        arrays: dict[str, Any] = {}
        for k, port in enumerate(weights):
            type = self.type(port)
            arrays[f"w{k}"] = stand_in(type)
            values[port.node] = self.entered(port, self.builder.param(f"w{k}", type))
        problems = Problems()
        walk = Walk(self.label, self.builder, arrays, self.sizes, lambda node: values[node], problems)
        nodes = list(nodes)
        for node in sizes_read(nodes):
            values[node] = _entered(walk, node)
        for node in nodes:
            walk.attempt(self.gm, node, values)
        problems.raise_if_any(f"{len(problems)} problems", where=self.label, kind=UnsupportedError)
        results = [(f"y{k}", self.left(port, values[port.node])) for k, port in enumerate(outputs)]
        names = tuple(name for name, _ in results)
        imported = finished(self.builder, results, arrays)
        return Imported(imported.graph, imported.weights, Interface(outputs=names))

    def type(self, port: Port) -> TensorType:
        result = stated_type(self.sizes, port.node.meta["val"])
        return TensorType(result.dtype, tuple(result.shape[d] for d in port.order))

    def entered(self, port: Port, value: Value) -> Value:
        if port.in_order:
            return value
        perm = tuple(sorted(range(len(port.order)), key=port.order.__getitem__))
        return emit1(self.builder, "transpose", value, perm=perm)

    def left(self, port: Port, value: Value) -> Value:
        return value if port.in_order else emit1(self.builder, "transpose", value, perm=port.order)


def stand_in(type: TensorType) -> Any:
    """An array of a type and shape that takes no memory."""
    shape = tuple(as_int(d) or 0 for d in type.shape)
    return np.broadcast_to(np.zeros((), type.dtype.numpy), shape)


__all__ = ["PartImporter", "Port", "Survey", "dense_order", "expression", "is_size", "sizes_read", "survey"]
