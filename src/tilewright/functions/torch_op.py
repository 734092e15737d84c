"""A comprehension as a custom operator of PyTorch, which `torch.compile` and `torch.export` take as it is."""

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
    program is for sizes; it has no gradient."""
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
        made = []
        for output in function.outputs:
            found = program.types[output]
            kind = in_kind_of(torch.empty(0), _empty(found)).dtype
            made.append(torch.empty([as_int(d) or 0 for d in found.shape], dtype=kind))
        return made[0] if count == 1 else tuple(made)

    op = torch.library.custom_op(name, run, mutates_args=(), schema=f"({arguments}) -> {results}")
    op.register_fake(fake)
    return op


def _type(tensor: Any) -> Any:
    """The element type of a tensor, which may have no elements."""
    return dtype(str(tensor.dtype).removeprefix("torch."))


def _empty(found: TensorType) -> Any:
    import numpy as np

    return np.empty(0, found.dtype.numpy)
