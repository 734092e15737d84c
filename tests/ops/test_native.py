"""Native code of each operator gives what its NumPy reference gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import assert_same, type_of
from tests.ops.test_compute import CASES
from tilewright import ops
from tilewright.ir.graph import GraphBuilder

FIRST = {op: (op, arrays, attrs) for op, arrays, attrs in reversed(CASES)}


@pytest.mark.daily(5)
@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(FIRST))
def test_native_code_equals_reference(op: str) -> None:
    _, arrays, arguments = FIRST[op]
    attrs = ops.attributes(op, arguments)
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


@pytest.mark.parametrize(("kind", "error"), [(np.float32, 5e-7), (np.float64, 2e-15)], ids=["f32", "f64"])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [("elu", {"alpha": 0.5}), ("selu", {"alpha": 1.5, "gamma": 1.25}), ("celu", {"alpha": 2.0})],
    ids=["elu", "selu", "celu"],
)
def test_exponentials_less_one_close_to_zero(op: str, attrs: dict[str, float], kind: Any, error: float) -> None:
    """Exponentials less one keep their digits, where `exp(x) - 1` cancels."""
    x = -np.logspace(-30, 2, 1001).astype(kind)
    builder = GraphBuilder("one")
    model = tw.compile((builder.finish((ops.emit1(builder, op, builder.input("x", type_of(x)), **attrs),)), {}))
    alpha, inner = attrs["alpha"], attrs["alpha"] if op == "celu" else 1.0
    want = attrs.get("gamma", 1.0) * alpha * np.expm1(x.astype(np.longdouble) / inner)
    for candidate in (model(x), ops.get(op).reference([x], ops.attributes(op, attrs))[0]):
        assert np.abs(candidate / want - 1).max() <= error
    specials = np.resize(np.array([0.0, -0.0, np.inf, -np.inf, np.nan], kind), x.size)
    np.testing.assert_array_equal(model(specials), ops.get(op).reference([specials], ops.attributes(op, attrs))[0])
