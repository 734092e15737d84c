"""`tw.differentiable`: a PyTorch module whose forward and backward are compiled, for autograd.

    fast = tw.differentiable(module, (x,))
    fast(x).square().mean().backward()          # the gradients are in module's own parameters

The forward program returns, after the module's outputs, the values that the backward program reads; autograd stores
them. Parameters are inputs of both programs, so that an optimiser may update them in place between two calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilewright.compiler import compile_program
from tilewright.frontend.torch import import_training
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ir.interface import Imported
from tilewright.ops.gradients.control import needed
from tilewright.ops.gradients.reverse import backward
from tilewright.runtime.model import Model
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, Error, ModelError
from tilewright.targets.target import Target
from tilewright.train import hooks
from tilewright.train.rewritten import rewritten
from tilewright.train.torch_loss import check_backward, ran, refuse_control, tensors

REPEATED = frozenset({"constant", "range", "broadcast", "reshape", "eye"})
"""Operators whose results the backward pass recomputes rather than stores."""


@dataclass(frozen=True, slots=True)
class Ways:
    """The forward and the backward graph of a module, and which values they exchange.

    forward   from the inputs and parameters to the outputs and the stored values
    back      from inputs, parameters and stored values, and the gradients of floating-point outputs, to the gradients
              of the `moved`
    reads     the positions of the forward pass's values, inputs first, that the backward pass reads
    moved     the inputs and parameters that have a gradient, by their number
    """

    forward: Graph
    back: Graph
    reads: tuple[int, ...]
    moved: tuple[int, ...]


def divided(graph: Graph, movable: Sequence[str]) -> Ways:
    """The forward graph, whose further outputs are the values that the backward graph reads, and that graph. Parameters
    named in `movable` become inputs. Raises UnsupportedError that lists all operators without a gradient."""
    inputs = (*graph.inputs, *(v for v in graph.params if v.name in set(movable)))
    fixed = tuple(v for v in graph.params if v not in inputs)
    used_names = {v.name for v in (*inputs, *fixed)} | {v.name for n in graph.nodes for v in n.outputs}
    builder = GraphBuilder(graph.name, [], [], list(graph.nodes), used_names)
    outputs = [v for v in graph.outputs if v.dtype.is_float]
    seeds = {v: Value(builder.fresh(f"d.{v.name}"), v.type) for v in outputs}
    sources = [v for v in inputs if v.dtype.is_float]
    result = backward(builder, graph.nodes, dict(seeds), sources)
    moved = [k for k, v in enumerate(inputs) if v in result]
    results = tuple(result[inputs[k]] for k in moved)
    forward = {n.outputs: n for n in builder.nodes[: len(graph.nodes)]}
    retained, nodes = _cut(builder.nodes, results, set(forward))
    earlier = (*graph.outputs, *(v for v in retained if v not in graph.outputs))
    values = (*inputs, *earlier)
    read = {v for n in nodes for v in n.inputs} | set(results)
    reads = tuple(k for k, v in enumerate(values) if v in read)
    forward_nodes = tuple(needed(builder.nodes[: len(graph.nodes)], earlier))
    ways = replace(graph, inputs=inputs, params=fixed, nodes=forward_nodes, outputs=earlier)
    seen = tuple(seeds[v] for v in outputs)
    own = tuple(v for v in fixed if v in read)
    back = Graph(f"{graph.name}_backward", (*(values[k] for k in reads), *seen), own, tuple(nodes), results)
    return Ways(ways, back, reads, tuple(moved))


def _cut(nodes: Sequence[Node], results: Sequence[Value], earlier: set[Any]) -> tuple[list[Value], list[Node]]:
    """(values of the forward pass to store, nodes of the backward pass) that compute `results`, where the values
    `earlier` come from the forward pass. Operators in REPEATED are computed again rather than stored."""
    retained: dict[Value, None] = {}
    wanted: set[Value | None] = set(results)
    matches: list[Node] = []
    for node in reversed(nodes):
        asked = [v for v in node.outputs if v in wanted]
        if not asked:
            continue
        if node.outputs in earlier and node.op not in REPEATED:
            retained.update(dict.fromkeys(asked))
            continue
        matches.append(node)
        wanted.update(node.inputs)
    return list(retained), matches[::-1]


class Differentiable(torch.nn.Module):  # type: ignore[misc]
    """A module with compiled forward and backward passes; `module` is the original one, whose parameters it shares."""

    def __init__(self, module: torch.nn.Module, names: Sequence[str], ways: Ways, programs: Any, spec: Any) -> None:
        super().__init__()
        self.module = module
        self.names = tuple(names)
        self.forward_model, self.backward_model = programs
        self._ways = ways
        self._spec = spec

    def forward(self, *inputs: torch.Tensor) -> Any:
        expected = len(self._ways.forward.inputs) - len(self.names)
        if len(inputs) != expected:
            raise CallError(
                "wrong number of tensors", where=type(self.module).__name__, expected=expected, got=len(inputs)
            )
        held = dict(self.module.named_parameters())
        others = (p for name, p in held.items() if name not in self.names)  # whose gradient is zero
        result = _Call.apply(self, *inputs, *(held[name] for name in self.names), *others)
        return pytree.tree_unflatten(list(result), self._spec)


class _Call(torch.autograd.Function):  # type: ignore[misc]
    """One call, as autograd sees it; values for the backward pass are stored by autograd."""

    @staticmethod
    def forward(ctx: Any, owner: Differentiable, *values: torch.Tensor) -> Any:
        ordinary = [v.detach().contiguous() for v in values[: len(owner._ways.forward.inputs)]]
        result = _tuple(owner.forward_model(*ordinary))
        count = owner._spec.num_leaves
        ctx.owner = owner
        everything = (*ordinary, *result)
        ctx.save_for_backward(*(everything[k] for k in owner._ways.reads))
        ctx.count = len(values)
        outputs = result[:count]
        ctx.mark_non_differentiable(*(y for y in outputs if not y.is_floating_point()))
        ctx.shapes = [(y.shape, y.dtype) for y in outputs]
        return outputs

    @staticmethod
    def backward(ctx: Any, *arguments: torch.Tensor | None) -> Any:
        owner = ctx.owner
        flows = [
            torch.zeros(shape, dtype=kind) if g is None else g.contiguous()
            for g, (shape, kind) in zip(arguments, ctx.shapes, strict=True)
            if kind.is_floating_point
        ]
        result = _tuple(owner.backward_model(*ctx.saved_tensors, *flows)) if owner._ways.moved else ()
        results: list[torch.Tensor | None] = [None] * (1 + ctx.count)
        for k, g in zip(owner._ways.moved, result, strict=True):
            results[1 + k] = g
        return tuple(results)


def _run(module: torch.nn.Module, batch: Sequence[torch.Tensor]) -> Any:
    """The outputs of a module for an example, with autograd's graph. Raises ModelError if its code fails, and
    UnsupportedError for hooks on gradients."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in batch]
    try:
        with hooks.watched() as seen:
            try:
                _, supplied = ran(module, module, leaves)
            except RuntimeError:  # code may ask what has a gradient, or change what has none
                _, supplied = ran(module, module, batch)
    except Error:
        raise
    except Exception as error:  # the module's own code
        refuse_control(error)
        raise ModelError("the module fails on the example", got=f"{type(error).__name__}: {error}") from error
    hooks.refuse(seen)
    return supplied


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def differentiable(
    module: torch.nn.Module,
    example: Sequence[Any],
    *,
    symbolic: bool = False,
    threads: int = 1,
    target: Target | str | None = None,
    fast: Any = "exact",
) -> Differentiable:
    """A module equivalent to `module`, whose forward and backward passes are compiled.

    Args:
        module: each part is traced in its own mode. Parameters are read at each call; buffers are constants.
        example: its tensors, whose types and shapes every call has.
        symbolic: whether the example's tensors may have any first dimension (from 2 on, as `torch.export` traces it).
        threads, target, fast: as for `tw.compile`; "exact" by default, as weights change each call.

    Raises ModelError for an object that is no module, and for a module that draws random numbers or changes buffers
    (use `tw.compile_step`); UnsupportedError, which lists all operators without a gradient, and for functions with a
    backward pass of their own (`torch.autograd.Function`), which PyTorch's exporter drops.
    """
    if not isinstance(module, torch.nn.Module):
        raise ModelError("not a module", expected="torch.nn.Module", got=type(module).__name__)
    hooks.refuse(hooks.of_modules([module]))
    batch = tensors(example)
    supplied = _run(module, batch)
    check_backward(supplied)
    _, spec = pytree.tree_flatten(supplied)
    trained = import_training(module, batch, "auto" if symbolic else None)
    if trained.key is not None or trained.changed:
        got = ", ".join(trained.changed) or "random numbers"
        raise ModelError(
            "the module has a state beside its parameters", got=got, hint="tw.compile_step, or model.eval()"
        )
    read = trained.read
    known = {v.name for v in read.graph.params}
    names = [n for n, _ in module.named_parameters() if n in known]
    sources = [v for v in (*read.graph.inputs, *read.graph.params) if v in read.graph.inputs or v.name in set(names)]
    ways = divided(rewritten(read.graph, sources), names)

    def compiled(graph: Graph) -> Model:
        retained = {v.name: read.weights[v.name] for v in graph.params}
        program = compile_program(Imported(graph, retained), threads=threads, target=target, fast=fast)
        return Model(program, threads=threads)

    order = [v.name for v in ways.forward.inputs[len(read.graph.inputs) :]]
    return Differentiable(module, order, ways, (compiled(ways.forward), compiled(ways.back)), spec)


__all__ = ["Differentiable", "Ways", "differentiable", "divided"]
