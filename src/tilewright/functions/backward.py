"""The gradient of a comprehension as a function of arrays: what PyTorch's autograd calls in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.registry import emit1

if TYPE_CHECKING:
    from tilewright.functions.comprehension import Comprehension


def backward_graph(function: Comprehension, types: Sequence[TensorType]) -> Graph:
    """The graph from the inputs and the gradients of the floating point results, in their order, to the gradients of
    the floating point inputs, in theirs.

    Raises UnsupportedError listing what has no gradient.
    """
    builder = GraphBuilder(f"{function.name}_backward")
    values = [builder.input(n, t) for n, t in zip(function.inputs, types, strict=True)]
    results = [v for v in function.emit(builder, *values) if v.dtype.is_float]
    seeds = {v: builder.input(f"d.{v.name}.given", v.type) for v in results}
    sources = [v for v in values if v.dtype.is_float]
    result = backward(builder, list(builder.nodes), seeds, sources)
    return builder.finish(
        tuple(emit1(builder, "identity", result[v]) if v in result else _zeros(builder, v) for v in sources)
    )


def _zeros(builder: GraphBuilder, like: Any) -> Any:
    zero = emit1(builder, "constant", value=like.dtype.numpy.type(0))
    return emit1(builder, "broadcast", zero, shape=like.shape)


__all__ = ["backward_graph"]
