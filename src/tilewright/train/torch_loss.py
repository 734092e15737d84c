"""A PyTorch module and its loss as one graph, from the batch to the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilewright.frontend.common.finish import Imported
from tilewright.frontend.torch import import_torch
from tilewright.ir.graph import Graph, Node, Value
from tilewright.support.errors import ModelError


class _Objective(torch.nn.Module):
    """The loss as a module, which is what is exported."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any] | None) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *batch: torch.Tensor) -> Any:
        found = self.model(*batch) if self.loss is None else self.loss(self.model, *batch)
        if not isinstance(found, dict):
            return (found,)
        return (found["loss"], *(value for name, value in found.items() if name != "loss"))

    def names(self, batch: Sequence[torch.Tensor]) -> tuple[str, ...]:
        """What the outputs are called. Runs the model."""
        with torch.no_grad():
            found = self.model(*batch) if self.loss is None else self.loss(self.model, *batch)
        if not isinstance(found, dict):
            return ("loss",)
        if "loss" not in found:
            raise ModelError("the loss is missing", expected='a dict with "loss"', got=", ".join(found))
        return ("loss", *(name for name in found if name != "loss"))


def traced(
    model: Any, loss: Callable[..., Any] | None, example: Sequence[Any]
) -> tuple[Imported, tuple[str, ...], list[str]]:
    """The graph with its weights under the module's own names, the names of its outputs, and those of the parameters
    that require gradients.

    Raises ModelError if the model is no module, or cannot be traced.
    """
    if not isinstance(model, torch.nn.Module):
        raise ModelError("a step is made of a module", expected="torch.nn.Module or (Graph, weights)", got=type(model))
    objective = _Objective(model, loss)
    batch = tuple(torch.as_tensor(x) for x in example)
    names = objective.names(batch)
    read = import_torch(objective, batch, dynamic=None)
    renamed = {v: Value(v.name.removeprefix("model."), v.type) for v in read.graph.params}
    graph = _renamed(read.graph, renamed)
    weights = {name.removeprefix("model."): array for name, array in read.weights.items()}
    movable = [name for name, p in model.named_parameters() if p.requires_grad and name in weights]
    return replace(read, graph=graph, weights=weights), names, movable


def _renamed(graph: Graph, names: Mapping[Value, Value]) -> Graph:
    def value(v: Value | None) -> Value | None:
        return None if v is None else names.get(v, v)

    def node(n: Node) -> Node:
        return replace(n, inputs=tuple(value(v) for v in n.inputs))

    return replace(
        graph,
        params=tuple(names[v] for v in graph.params),
        nodes=tuple(node(n) for n in graph.nodes),
        outputs=tuple(names.get(v, v) for v in graph.outputs),
    )
