"""Assumptions of JAX about symbolic sizes are checked at calls: constraints of scopes, assertions of modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.support.errors import CallError

jax = pytest.importorskip("jax")
export = pytest.importorskip("jax.export")

Sizes = Sequence[int]
CASES: dict[str, tuple[str, Sequence[str], Callable[..., Any], Sequence[str], Sequence[tuple[Sizes, bool]]]] = {
    "least": (
        "b",
        ["b >= 2"],
        lambda x: x[:2] * 1.0,
        ["b"],
        [((0,), False), ((1,), False), ((2,), True), ((9,), True)],
    ),
    "two": (
        "b,c",
        ["b >= 2", "c <= 2*b"],
        lambda x, y: (x[:2], y * 2),
        ["b", "c"],
        [((1, 1), False), ((2, 4), True), ((2, 5), False), ((9, 5), True)],
    ),
    "multiple": (
        "b",
        ["b <= 7", "mod(b, 2) == 0"],
        lambda x: x * 2,
        ["b"],
        [((1,), False), ((6,), True), ((8,), False)],
    ),
    "equal": ("b,c", ["b == c"], lambda x, y: x + y, ["b", "c"], [((3, 3), True), ((3, 2), False), ((2, 3), False)]),
    "computed": (
        "b,c",
        ["b == 2*c"],
        lambda x, y: x.reshape(-1, 2).sum(1) + y,
        ["b", "c"],
        [((2, 1), True), ((6, 3), True), ((4, 3), False), ((3, 1), False)],
    ),
    "greater": (
        "b,c",
        ["max(b, c) >= 4"],
        lambda x, y: x.sum() * y.sum(),
        ["b", "c"],
        [((1, 1), False), ((5, 3), True), ((3, 5), True)],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("exported", [True, False])
def test_constraints(name: str, exported: bool) -> None:
    names, constraints, f, shapes, calls = CASES[name]
    symbols = dict(zip(names.split(","), export.symbolic_shape(names, constraints=constraints), strict=True))
    args = tuple(jax.ShapeDtypeStruct((symbols[s],), np.float32) for s in shapes)
    model = tw.compile(export.export(jax.jit(f))(*args)) if exported else tw.compile(jax.jit(f), args)
    for sizes, fits in calls:
        base = np.arange(64, dtype=np.float32)
        arrays = [base[20 : 20 + n] for n in sizes]
        if not fits:
            with pytest.raises(CallError) as error:
                model(*arrays)
            assert any(s in str(error.value) for s in symbols)
            continue
        want = jax.tree_util.tree_leaves(f(*arrays))
        for got, expected in zip(jax.tree_util.tree_leaves(model(*arrays)), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_a_reduction_of_no_element_gives_the_initial_values() -> None:
    """StableHLO says so, also of a value and its place. JAX's modules exclude such sizes, by a check of their own."""
    function = jax.jit(lambda x: (x.argmax(axis=1), x.argmin(axis=1), x.max(axis=1)))
    (size,) = jax.export.symbolic_shape("b")
    text = jax.export.export(function)(jax.ShapeDtypeStruct((3, size), np.float32)).mlir_module()
    lines = [line for line in text.splitlines() if "@shape_assertion" not in line]
    model = tw.compile("\n".join(lines), dims={"x_dim1": tw.dim(0, 9)})
    first, second, best = model(np.zeros((3, 0), np.float32))
    assert not first.any() and not second.any() and np.isneginf(best).all()
    x = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)
    for got, want in zip(model(x), function(x), strict=True):
        np.testing.assert_array_equal(got, want)
