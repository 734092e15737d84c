"""Registers a comprehension as a custom operator of PyTorch, which `torch.compile` and `torch.export` leave whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.ir.dtype import dtype
from tilewright.ir.expr import as_expr, as_int
from tilewright.ir.graph import TensorType
from tilewright.runtime.interop import in_kind_of
from tilewright.support.errors import ComprehensionError

if TYPE_CHECKING:
    from tilewright.functions.comprehension import Comprehension


def torch_op(function: Comprehension, name: str) -> Any:
    """Register a comprehension as the operator "namespace::name" and give it. Traced sizes become numbers, as a
    program is for sizes. In the backward pass it runs the comprehension's own gradient, which has none in turn."""
    import torch

    if not all(part.isidentifier() for part in name.split("::")) or name.count("::") != 1:
        raise ComprehensionError("not a name of an operator", expected='"namespace::name"', got=repr(name))
    arguments = ", ".join(f"Tensor {n}" for n in function.inputs)
    count = len(function.outputs)
    results = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"

    def run(*tensors: Any) -> Any:
        return function(*tensors)

    def fake(*tensors: Any) -> Any:
        types = [TensorType(_type(t), tuple(as_expr(int(d)) for d in t.shape)) for t in tensors]
        program = function.bind(types)
        created = []
        for output in function.outputs:
            result = program.types[output]
            kind = in_kind_of(torch.empty(0), _empty(result)).dtype
            created.append(torch.empty([as_int(d) or 0 for d in result.shape], dtype=kind))
        return created[0] if count == 1 else tuple(created)

    op = torch.library.custom_op(name, run, mutates_args=(), schema=f"({arguments}) -> {results}")
    op.register_fake(fake)
    _register_gradient(op, function, name, arguments)
    return op


def _register_gradient(op: Any, function: Comprehension, name: str, arguments: str) -> None:
    """Register the gradient of the operator `op`, which calls `function` and has parameters with the schema
    `arguments`, as another operator, "namespace::name_backward", so that it can be traced too."""
    import torch

    flows = ", ".join(f"Tensor d_{n}" for n in function.outputs)
    created = ", ".join(["Tensor"] * len(function.inputs))
    schema = f"({', '.join(filter(None, (arguments, flows)))}) -> ({created})"
    count = len(function.inputs)

    def back(*tensors: Any) -> Any:
        inputs, arguments = tensors[:count], tensors[count:]
        result = iter(function.backward(*inputs, *(g.contiguous() for g in arguments if g.is_floating_point())))
        return tuple(next(result) if x.is_floating_point() else torch.empty(0) for x in inputs)

    def fake(*tensors: Any) -> Any:
        return tuple(torch.empty_like(x) if x.is_floating_point() else torch.empty(0) for x in tensors[:count])

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, *(output if isinstance(output, tuple) else (output,)))

    def gradients(ctx: Any, *arguments: Any) -> Any:
        inputs, outputs = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        flows = [torch.zeros_like(y) if g is None else g for g, y in zip(arguments, outputs, strict=True)]
        result = backward(*inputs, *flows)
        return tuple(g if x.is_floating_point() else None for g, x in zip(result, inputs, strict=True))

    backward = torch.library.custom_op(f"{name}_backward", back, mutates_args=(), schema=schema)
    backward.register_fake(fake)
    op.register_autograd(gradients, setup_context=keep)


def _type(tensor: Any) -> Any:
    """The Tilewright type of the elements of a PyTorch tensor, which may have none."""
    return dtype(str(tensor.dtype).removeprefix("torch."))


def _empty(result: TensorType) -> Any:
    import numpy as np

    return np.empty(0, result.dtype.numpy)
