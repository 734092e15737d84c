"""A random layer compiled by PyTorch's Inductor, its weights folded and every choice tried: the audit's second peer.

It takes seconds a layer; what it made is kept in PyTorch's own cache, so that the second time is short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config as config

from benchmarks.audit.eager import eager
from benchmarks.random_layers import Layer


def inductor(layer: Layer) -> Callable[..., Any]:
    """The layer as a function of tensors, compiled at its first call."""
    torch._dynamo.reset()
    torch.compiler.set_stance("default")
    config.freezing = config.max_autotune = True
    run = eager(layer.graph, layer.weights())
    # What is traced takes a tensor for each input: symbolic tracing knows no lists of arguments.
    calls: dict[int, Callable[..., Any]] = {1: lambda x: run(x), 2: lambda x, y: run(x, y)}
    module = torch.fx.symbolic_trace(calls[len(layer.graph.inputs)])
    for name, value in list(vars(module).items()):
        if isinstance(value, torch.Tensor):  # only what a module owns is folded
            delattr(module, name)
            module.register_buffer(name, value)
    return torch.compile(module.eval(), dynamic=False, fullgraph=True)


def warm(layer: Layer) -> None:
    """Compile it, for the cache."""
    with torch.inference_mode():
        inductor(layer)(*map(torch.from_numpy, layer.inputs()))
