"""Run an operator's tensor expression through the interpreter, to compare it with its NumPy reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright import ops, te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import const
from tilewright.ir.graph import TensorType


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(dtype(array.dtype), tuple(const(d) for d in array.shape))


def by_expression(op: str, arrays: Sequence[np.ndarray | None], arguments: Mapping[str, Any]) -> list[np.ndarray]:
    """The outputs of `op` computed by its tensor expression (or loops) in the interpreter."""
    definition, attrs = ops.get(op), ops.attributes(op, arguments)
    types = [None if a is None else type_of(a) for a in arrays]
    outputs = definition.infer(types, attrs)
    # What nothing writes must not pass for zero.
    results = [np.ones([int(d.value) for d in t.shape]).astype(t.dtype.numpy) for t in outputs]
    inputs = [a for a in arrays if a is not None]
    if definition.loops is not None:
        func = definition.loops(types, attrs, outputs)
    else:
        assert definition.compute is not None, op
        tensors = [None if t is None else te.placeholder(t.shape, t.dtype, f"x{i}") for i, t in enumerate(types)]
        created = definition.compute(tensors, attrs, outputs)
        assert [(t.dtype, t.shape) for t in created] == [(t.dtype, t.shape) for t in outputs], op
        func = te.create_prim_func([*(t for t in tensors if t is not None), *created], "f")
    interpret(func, [*(np.ascontiguousarray(a).reshape(a.shape) for a in inputs), *results])
    return results


def by_function(expression: Callable[..., te.Tensor], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The interpreter's result for an expression over tensors."""
    types = [type_of(a) for a in arrays]
    tensors = [te.placeholder(t.shape, t.dtype, f"x{i}") for i, t in enumerate(types)]
    created = expression(*tensors)
    result = np.ones([int(d.value) for d in created.shape]).astype(created.dtype.numpy)
    inputs = [np.ascontiguousarray(a).reshape(a.shape) for a in arrays]
    interpret(te.create_prim_func([*tensors, created], "f"), [*inputs, result])
    return result


def reference(op: str, arrays: Sequence[Any], arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """The outputs of `op` by its NumPy reference."""
    return ops.get(op).reference(arrays, ops.attributes(op, arguments))


def assert_same(got: np.ndarray, want: np.ndarray, rtol: float = 2e-5, atol: float = 1e-6) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype, (got.dtype, got.shape, want.dtype, want.shape)
    if got.dtype.kind == "f" or got.dtype.name == "bfloat16":
        if got.dtype.itemsize == 2:
            rtol, atol = 1e-2, 1e-3
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(got, want)


def check(op: str, *arrays: np.ndarray | None, **attrs: Any) -> list[np.ndarray]:
    """Type rule, tensor expression and reference of `op` agree on these arrays; returns the outputs."""
    with np.errstate(all="ignore"):
        want = reference(op, arrays, attrs)
        got = by_expression(op, arrays, attrs)
    for g, w in zip(got, want, strict=True):
        assert_same(g, np.asarray(w))
    return got
