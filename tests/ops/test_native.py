"""Native code of each operator gives what its NumPy reference gives."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import assert_same, type_of
from tests.ops.test_compute import CASES
from tilewright import ops
from tilewright.ir.graph import GraphBuilder

FIRST = {op: (op, arrays, attrs) for op, arrays, attrs in reversed(CASES)}


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(FIRST))
def test_native_code_equals_reference(op: str) -> None:
    _, arrays, given = FIRST[op]
    attrs = ops.attributes(op, given)
    builder = GraphBuilder("one")
    values = [None if a is None else builder.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)]
    outputs = ops.emit(builder, op, *values, attrs=attrs)
    model = tw.compile((builder.finish(outputs), {}))
    feeds = {f"x{i}": np.ascontiguousarray(a).reshape(a.shape) for i, a in enumerate(arrays) if a is not None}
    got = model.run(feeds)
    with np.errstate(all="ignore"):
        want = ops.get(op).reference(arrays, attrs)
    for value, w in zip(outputs, want, strict=True):
        assert_same(np.asarray(got[value.name]), np.asarray(w))
