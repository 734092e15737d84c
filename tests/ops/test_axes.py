"""Axes that are derived from tensor expressions are what operators do: one slice of an operand is changed, and the
slices of the result that change are those that the derivation says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.ops.oracle import type_of
from tests.ops.test_attention import attributes, operands
from tests.ops.test_compute import CASES
from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, as_expr, as_int
from tilewright.ir.graph import TensorType
from tilewright.ops.axes import Links, parallel_of

ATTENTION = [
    ("lowered.attention", (*operands(2, 5, 7, 2, 16, order), *mask), attributes(order=order))
    for order in ("ssss", "hsth")
    for mask in ([], [np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)])
]


def same(a: Any, b: Any) -> bool:
    return bool(np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes())


def changed(rng: np.random.Generator, array: Any, axis: int, at: int) -> Any:
    """The array with other values of its own in one slice."""
    result = np.array(array)
    values = rng.permutation(np.asarray(array).reshape(-1))
    part = [slice(None)] * result.ndim
    part[axis] = slice(at, at + 1)
    result[tuple(part)] = np.resize(values, result[tuple(part)].shape)
    return result


def along(op: str, arrays: tuple[Any, ...], values: dict[str, Any]) -> Iterator[tuple[int, int, Links]]:
    """The number of a result, one of its axes of several positions, and what that is parallel to."""
    attrs, types = ops.attributes(op, values), [None if a is None else type_of(np.asarray(a)) for a in arrays]
    for output, out in enumerate(ops.infer(op, types, attrs)):
        for axis, links in enumerate(parallel_of(op, types, attrs, out, output)):
            if links is not None and as_int(out.shape[axis]) not in (0, 1):
                yield output, axis, links


def test_every_operator_does_what_its_axes_say() -> None:
    """Only the slice changes that reads what has changed; and slices that are exchanged come out exchanged."""
    rng = np.random.default_rng(0)
    compared = 0
    for op, arrays, values in CASES + ATTENTION:
        attrs, reference = ops.attributes(op, values), ops.get(op).reference
        with np.errstate(all="ignore"):
            before = reference(list(arrays), attrs)
            for output, axis, links in along(op, arrays, values):
                count = before[output].shape[axis]
                at, order = int(rng.integers(count)), np.roll(np.arange(count), 1)
                for k, link in enumerate(links):
                    if link is not None:
                        other = [changed(rng, a, link, at) if j == k else a for j, a in enumerate(arrays)]
                        after = reference(other, attrs)[output]
                        assert same(*(np.delete(y, at, axis) for y in (before[output], after))), (op, values, axis, k)
                exchanged = [
                    a if link is None else np.take(a, order, link) for a, link in zip(arrays, links, strict=True)
                ]
                after = reference(exchanged, attrs)[output]
                close = np.isclose(after, np.take(before[output], order, axis), rtol=1e-5, atol=1e-6, equal_nan=True)
                assert close.all(), (op, values, axis)
                compared += 1
    assert compared > 400


KNOWN: dict[str, tuple[list[tuple[int, ...]], dict[str, Any], tuple[Links | None, ...]]] = {
    "matmul": ([(4, 1, 2, 3), (7, 3, 5)], {}, ((0, None), (None, 0), (2, None), (None, 2))),
    "einsum": ([(3, 4), (4, 5)], {"equation": "ik,kj->ij"}, ((0, None), (None, 1))),
    "transpose": ([(3, 4, 5)], {"perm": (2, 0, 1)}, ((2,), (0,), (1,))),
    "concat": ([(2, 3), (2, 4)], {"axis": 1}, ((0, 0), None)),
    "softmax": ([(2, 3, 4)], {"axis": 1}, ((0,), None, (2,))),
    "add": ([(2, 3, 4), (3, 1)], {}, ((0, None), (1, 0), (2, None))),
    "cumsum": ([(2, 3)], {"axis": 1}, (None, None)),
    "trilu": ([(2, 3, 3)], {"upper": True, "k": 0}, ((0,), None, None)),
    "reshape": ([(2, 3, 4)], {"shape": (2, 12)}, ((0,), None)),
}
"""Shapes, attributes, and what each axis of the result is parallel to in each operand."""


@pytest.mark.parametrize("op", KNOWN)
def test_what_operators_are_parallel_to(op: str) -> None:
    shapes, values, expected = KNOWN[op]
    types = [TensorType(f32, tuple(map(as_expr, shape))) for shape in shapes]
    attrs = ops.attributes(op, values)
    (out,) = ops.infer(op, types, attrs)
    assert parallel_of(op, types, attrs, out) == expected


def test_sizes_may_be_symbols() -> None:
    n, m = Var("n", lo=1), Var("m", lo=1)
    types = [TensorType(f32, (n, m, as_expr(8))), TensorType(f32, (as_expr(8), m))]
    attrs = ops.attributes("matmul", {})
    (out,) = ops.infer("matmul", types, attrs)
    assert parallel_of("matmul", types, attrs, out) == ((0, None), (1, None), (None, 1))
