"""A loss in JAX and its parameters as one graph, from the batch to the loss.

def loss(params, x, y): return jnp.mean((jnp.tanh(x @ params["w"]) - y) ** 2)
step = tw.compile_step(params, loss, tw.train.Adam(1e-3), example=(x, y))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frontend.read import import_model
from tilewright.support.errors import ModelError
from tilewright.train.batch import named, names_of
from tilewright.train.plan import Objective


def traced(params: Any, loss: Callable[..., Any], example: Sequence[Any]) -> Objective:
    """The loss, traced with the batch `example`, as an objective, whose parameters are the leaves of the tree, named by
    their paths joined by points. Raises ModelError if the function cannot be traced, or returns a dict without "loss";
    UnsupportedError for functions with a backward pass of their own (`custom_vjp`) that is not linear."""
    import jax

    from tilewright.train.jax_marks import marked

    batch = tuple(example)
    try:
        about = jax.eval_shape(loss, params, *batch)
    except Exception as error:  # the function's own code
        raise ModelError("the loss cannot be traced", got=f"{type(error).__name__}: {error}"[:600]) from error
    names = tuple(about) if isinstance(about, dict) else ("loss",)
    if "loss" not in names:
        raise ModelError("the loss is missing", expected='a dict with "loss"', got=", ".join(names))
    metrics = ("loss", *(name for name in names if name != "loss"))

    def objective(model: Any, *arguments: Any) -> tuple[Any, ...]:
        result = loss(model, *arguments)
        return tuple(result[name] for name in metrics) if isinstance(result, dict) else (result,)

    read = import_model(jax.jit(marked(objective), keep_unused=True), example=(params, *batch), params=0)
    movable = tuple(v.name for v in read.graph.params if v.dtype.name == "f32" and v.name in read.weights)
    return named(Objective(read.graph, read.weights, metrics, movable), names_of(loss, len(batch) + 1)[1:])
