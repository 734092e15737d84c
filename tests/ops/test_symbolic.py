"""Operators with symbolic dimensions: what is inferred and computed holds for the numbers after the symbols."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.oracle import assert_same
from tests.ops.test_compute import CASES
from tilewright import ops, te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import TensorType
from tilewright.ops.interpret import evaluate
from tilewright.support.errors import Error

N = Var("n", lo=1)

# Cases whose first input's dimension `axis` can be a symbol wherever the other inputs have the same extent.
SYMBOLIC = [
    (position, axis)
    for position, (_, arrays, _) in enumerate(CASES)
    if arrays and arrays[0] is not None
    for axis in range(arrays[0].ndim)
    if arrays[0].shape[axis] > 1
]


def symbolic_type(array: Any, first: Any, axis: int) -> TensorType:
    offset = array.ndim - first.ndim
    shape = [N if d == first.shape[axis] and k - offset == axis else const(d) for k, d in enumerate(array.shape)]
    return TensorType(dtype(array.dtype), tuple(shape))


@pytest.mark.daily(5)
@pytest.mark.parametrize("start", range(0, len(SYMBOLIC), 25))
def test_symbolic_dimensions(start: int) -> None:
    for position, axis in SYMBOLIC[start : start + 25]:
        check(position, axis)


def check(position: int, axis: int) -> None:
    op, arrays, inputs = CASES[position]
    definition, attrs = ops.get(op), ops.attributes(op, inputs)
    types = [None if a is None else symbolic_type(a, arrays[0], axis) for a in arrays]
    try:
        outputs = definition.infer(types, attrs)
    except Error:
        return  # the symbol would have to equal a number
    sizes = {N: arrays[0].shape[axis]}
    results = [np.ones([int(evaluate(d, sizes)) for d in t.shape]).astype(t.dtype.numpy) for t in outputs]
    if definition.loops is not None:
        func = definition.loops(types, attrs, outputs)
    else:
        assert definition.compute is not None
        tensors = [None if t is None else te.placeholder(t.shape, t.dtype, f"x{i}") for i, t in enumerate(types)]
        created = definition.compute(tensors, attrs, outputs)
        assert [(t.dtype, t.shape) for t in created] == [(t.dtype, t.shape) for t in outputs], op
        func = te.create_prim_func([*(t for t in tensors if t is not None), *created], "f")
    present = [np.ascontiguousarray(a).reshape(a.shape) for a in arrays if a is not None]
    interpret(func, [*present, *results])
    with np.errstate(all="ignore"):
        want = definition.reference(arrays, attrs)
    for g, w in zip(results, want, strict=True):
        assert_same(g, np.asarray(w))


def test_most_operators_take_symbols() -> None:
    """The test above does not pass by refusing."""
    selected = set()
    for position, axis in SYMBOLIC:
        op, arrays, inputs = CASES[position]
        try:
            ops.infer(
                op,
                [None if a is None else symbolic_type(a, arrays[0], axis) for a in arrays],
                ops.attributes(op, inputs),
            )
        except Error:
            continue
        selected.add(op)
    assert {CASES[p][0] for p, _ in SYMBOLIC} - selected <= {"reshape", "broadcast", "col2im", "constant", "uniform"}
