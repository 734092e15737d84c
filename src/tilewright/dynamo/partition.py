"""The partition of an ATen graph: which nodes are compiled, in which parts, and in which order these and PyTorch's run.

The graph is cut into phases: PyTorch's operators of phase 0, part 1, PyTorch's operators of phase 1, part 2, ... Every
node stands in the first phase that its operands allow, so that there are as few parts as the longest chain of changes
between the two demands, and no two parts can wait for each other.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tilewright.frontend.torch import registry
from tilewright.frontend.torch.aten import Port, dense_order, expression, is_size, sizes_read
from tilewright.frontend.torch.control import is_control
from tilewright.support.classes import dataclass

_VIEWS = set(
    """alias as_strided detach diagonal expand narrow permute reshape select slice squeeze t transpose unfold unsqueeze
    view _unsafe_view unbind split split_with_sizes chunk lift_fresh movedim swapaxes
    """.split()
)
"""Operators whose result is a view of their operand, so that PyTorch runs them at the cost of a call."""
_HEAVY = set(
    """mm addmm bmm baddbmm convolution linear matmul einsum scaled_dot_product_attention
    _scaled_dot_product_flash_attention_for_cpu tilewright::attention_backward conv1d conv2d conv3d convolution_backward
    """.split()
)
"""Operators that are worth a part of their own, whatever its size."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a PyTorch graph: nodes that are compiled together.

    inputs    tensors that change from call to call
    weights   those that mostly stay, and from which the part makes packed weights
    outputs   what others read
    carriers  how many of the last inputs are there for their sizes only
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Port, ...]
    weights: tuple[Port, ...]
    outputs: tuple[Port, ...]
    carriers: int = 0

    @property
    def operators(self) -> list[Node]:
        """The nodes of the part that are operators, without views."""
        return [n for n in self.nodes if is_operator(n) and packet(n) not in _VIEWS]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of a graph in order: each is a node that PyTorch runs, or a compiled part."""

    steps: tuple[Node | Cut, ...]
    small: tuple[Node, ...]
    """Nodes that could be compiled, but in parts too small to pay."""
    borders: tuple[Node, ...] = ()
    """Nodes that could be compiled if complex tensors entered or left parts."""

    @property
    def parts(self) -> list[Cut]:
        return [s for s in self.steps if isinstance(s, Cut)]


def packet(node: Node) -> str:
    target: Any = node.target
    return target._schema.name.removeprefix("aten::") if isinstance(target, torch._ops.OpOverload) else ""


def is_operator(node: Node) -> bool:
    """Whether a node is an operator on tensors, rather than a size or the selection of one of several results."""
    return node.op == "call_function" and node.target is not operator.getitem and not is_size(node)


def partition(gm: GraphModule, refused: Iterable[Node], weights: frozenset[Node], least: int) -> Schedule:
    """Cut the graph `gm` into parts, to be compiled, and the nodes that PyTorch runs; returns both in the order in
    which they run.

    Args:
        refused: nodes that PyTorch must run.
        weights: placeholders that mostly stay as they are.
        least: operators that a part has at least, unless one of them is a product or a convolution.
    """
    eager = set(refused)
    small: list[Node] = []
    borders: list[Node] = []
    while True:
        steady = _steady(gm, eager, weights)
        cuts = _cuts(gm, _phases(gm, eager, steady), weights, steady)
        peeled = {n for cut in cuts.values() for n in _better_as_views(cut)}
        crossing = {n for cut in cuts.values() for n in _complex_borders(cut)}
        if peeled or crossing:
            eager |= peeled | crossing
            borders += crossing
            continue
        poor = [cut for cut in cuts.values() if not _pays(cut, least)]
        if not poor:
            steps = _needed(gm, list(_steps(gm, eager, steady, cuts)))
            return Schedule(steps, *(tuple(n for n in nodes if is_operator(n)) for nodes in (small, borders)))
        for cut in poor:
            eager.update(cut.nodes)
            small += cut.nodes


def _pays(cut: Cut, least: int) -> bool:
    operators = cut.operators
    heavy = any(packet(n) in _HEAVY or is_control(n.target) for n in operators)
    return bool(cut.inputs and cut.outputs) and (len(operators) >= least or heavy)


def _steady(gm: GraphModule, eager: set[Node], weights: frozenset[Node]) -> set[Node]:
    """The nodes that depend on weights only and can be compiled: every part that reads one computes it itself, once,
    with its packed weights."""
    members: set[Node] = set()
    for node in gm.graph.nodes:
        operands = node.all_input_nodes
        known = node.op == "call_function" and operands and all(n in members or n in weights for n in operands)
        if known and node not in eager and not is_size(node):
            members.add(node)
    return members


def _phases(gm: GraphModule, eager: set[Node], steady: set[Node]) -> dict[Node, tuple[int, bool]]:
    """Node -> (phase, whether it is compiled in it): parts are numbered so that each reads from earlier phases only.
    Weight-only nodes that PyTorch's nodes read run in PyTorch."""
    result: dict[Node, tuple[int, bool]] = {}
    last = 0  # the phase of PyTorch's last operator whose order matters
    for node in gm.graph.nodes:
        if node.op == "output":
            continue
        if node.target is operator.getitem:
            result[node] = result[node.args[0]]
            continue
        native = node.op == "call_function" and node not in eager and node not in steady and not is_size(node)
        phase = 1 if native else 0
        for operand in node.all_input_nodes:
            before, compiled = result[operand]
            phase = max(phase, before + 1 if native and not compiled else before)
        if not native and not is_size(node) and _is_ordered(node):
            phase = last = max(phase, last)
        result[node] = phase, native
    return result


def _is_ordered(node: Node) -> bool:
    """Whether a node draws random numbers or has side effects, so that its order among such nodes must stay."""
    target: Any = node.target
    if node.op != "call_function":
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return isinstance(target, torch._ops.HigherOrderOperator)
    random = packet(node) in registry.RANDOM or torch.Tag.nondeterministic_seeded in target.tags
    return random or target._schema.is_mutable or target.namespace != "aten"


def _cuts(
    gm: GraphModule, phases: Mapping[Node, tuple[int, bool]], weights: frozenset[Node], steady: set[Node]
) -> dict[int, Cut]:
    """For each phase the part that consists of the compiled nodes of that phase, and of the nodes in `steady` that they
    need."""
    members: dict[int, list[Node]] = {}
    for node, (phase, native) in phases.items():
        if native:
            members.setdefault(phase, []).append(node)
    return {phase: _cut(gm, _with_steady(nodes, steady), weights, steady) for phase, nodes in members.items()}


def _with_steady(nodes: list[Node], steady: set[Node]) -> list[Node]:
    """`nodes` of a part, after the weight-only nodes that they need."""
    result: dict[Node, None] = {}

    def add(node: Node) -> None:
        for operand in node.all_input_nodes:
            if operand in steady and operand not in result:
                add(operand)
                result[operand] = None

    for node in nodes:
        add(node)
    order = {n: k for k, n in enumerate(nodes[0].graph.nodes)} if result else {}
    return [*sorted(result, key=order.__getitem__), *nodes]


def _cut(gm: GraphModule, nodes: list[Node], weights: frozenset[Node], steady: set[Node]) -> Cut:
    inside = set(nodes)
    read = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside and not is_size(n))
    attributes = [n for n in read if n.op == "get_attr"]
    entering = [n for n in read if n.op != "get_attr"]
    tensors = [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor) and n not in steady]
    left = [n for n in tensors if not inside.issuperset(n.users)]
    held = [n for n in entering if n in weights and dense_order(n.meta["val"]) is not None and _is_fixed(n)]
    moving = [n for n in entering if n not in held]
    carriers = _carriers(gm, nodes, moving)
    return Cut(
        (*attributes, *nodes),
        tuple(_port(n) for n in (*moving, *carriers)),
        tuple(_port(n) for n in held),
        tuple(_port(n) for n in left),
        len(carriers),
    )


def _port(node: Node) -> Port:
    fake = node.meta["val"]
    return Port(node, dense_order(fake) or tuple(range(fake.ndim)))


def _is_fixed(node: Node) -> bool:
    return all(isinstance(d, int) for d in node.meta["val"].shape)


def _carriers(gm: GraphModule, nodes: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """Further placeholders to pass to a part, from whose sizes it learns symbols that no input of it has as a size."""

    def alone(node: Node) -> set[Any]:
        held = node.meta.get("val")
        if not isinstance(held, torch.Tensor):
            return set()
        return {e for e in map(expression, held.shape) if getattr(e, "is_Symbol", False)}

    used: set[Any] = set()
    for node in (*nodes, *inputs, *sizes_read(nodes)):
        held = node.meta.get("val")
        for value in held if isinstance(held, tuple | list) else (held,):
            sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
            symbolic = [d for d in sizes if isinstance(d, torch.SymInt | torch.SymBool)]
            used.update(s for d in symbolic for s in d.node.expr.free_symbols)
    lacking = used.difference(*map(alone, inputs))
    results: list[Node] = []
    for node in gm.graph.nodes:
        if node.op == "placeholder" and lacking & alone(node):
            lacking -= alone(node)
            results.append(node)
    return results


def _better_as_views(cut: Cut) -> list[Node]:
    """The outputs of a part that PyTorch computes better as views, without copying: views of tensors that enter or
    leave the part anyway, and results whose elements are not dense. (AOTAutograd needs the offset of a view in its
    base, which a result in the part's own memory lacks.)"""
    outputs = {p.node for p in cut.outputs}
    inside = set(cut.nodes)
    results = []
    for node in outputs:
        view = _view(node)
        if view is None:
            continue
        base: Any = view.args[0]
        while base in inside and base not in outputs and (before := _view(base)) is not None:
            base = before.args[0]
        if base not in inside or base in outputs or dense_order(node.meta["val"]) is None:
            results.append(view)
    return results


def _view(node: Any) -> Any:
    """The operator of `node` if it returns a view of its operand; else None."""
    producer = node.args[0] if node.target is operator.getitem else node
    return producer if packet(producer) in _VIEWS else None


def _complex_borders(cut: Cut) -> list[Node]:
    """The nodes of a part that have a complex tensor as operand from outside, or as result for outside."""
    outside = {p.node for p in (*cut.inputs, *cut.weights) if p.node.meta["val"].is_complex()}
    created = [p.node for p in cut.outputs if p.node.meta["val"].is_complex()]
    return [*created, *(n for n in cut.nodes if not outside.isdisjoint(n.all_input_nodes))]


def _steps(gm: GraphModule, eager: set[Node], steady: set[Node], cuts: Mapping[int, Cut]) -> Iterable[Node | Cut]:
    phases = _phases(gm, eager, steady)
    compiled = {n for cut in cuts.values() for n in cut.nodes if n.op != "get_attr" and n not in steady}
    for phase in range(max((p for p, _ in phases.values()), default=0) + 1):
        if phase in cuts:
            yield cuts[phase]
        for node, (at, _) in phases.items():
            if at == phase and node not in compiled and node.op in ("call_function", "get_attr"):
                yield node


def _needed(gm: GraphModule, steps: Sequence[Node | Cut]) -> tuple[Node | Cut, ...]:
    """The steps, without PyTorch's nodes whose results nothing reads any more."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    read = set(output.all_input_nodes)
    retained: list[Node | Cut] = []
    for step in reversed(steps):
        if isinstance(step, Cut):
            read.update(p.node for p in (*step.inputs, *step.weights))
        elif step in read or step.is_impure():
            read.update(step.all_input_nodes)
        else:
            continue
        retained.append(step)
    return tuple(reversed(retained))


__all__ = ["Cut", "Schedule", "is_operator", "packet", "partition"]
