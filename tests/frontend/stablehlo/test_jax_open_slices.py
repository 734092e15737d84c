"""Slices that begin where data says, of arrays whose other dimensions are symbolic, against JAX at several sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
jnp, lax = jax.numpy, jax.lax


def gathered_by_loop(x: Any, k: Any) -> Any:
    return lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i] * (i + 1), jnp.zeros_like(x[0]))


FUNCTIONS = {
    "a row": lambda x, k: lax.dynamic_slice_in_dim(x, k, 1, 0),
    "a column": lambda x, k: lax.dynamic_slice_in_dim(x, k, 1, 1),
    "an index": lambda x, k: lax.dynamic_index_in_dim(x, k, 0, keepdims=False),
    "both": lambda x, k: lax.dynamic_slice(x, (k, 2 * k), (1, 1)),
    "half of it": lambda x, k: lax.dynamic_slice(x, (k, k), (x.shape[0], x.shape[1] // 2)),
    "scan": lambda x, k: lax.scan(lambda c, r: (c * 2 + r, c + r), x[0] + k, x),
    "scan backwards": lambda x, k: lax.scan(lambda c, r: (c * 2 + r, c + r), x[0] + k, x, reverse=True)[1],
    "scan of two": lambda x, k: lax.scan(lambda c, r: (c + r[0] - r[1], ()), x[0] + k, (x, jnp.flip(x, 0)))[0],
    "loop": gathered_by_loop,
    "no copy": lambda x, k: jnp.tile(x, (0, 1)) + k,
    "map": lambda x, k: lax.map(lambda r: r * r + k, x),
    "vmap": lambda x, k: jax.vmap(lambda i: lax.dynamic_slice_in_dim(x, i, 1, 0))(jnp.array([0, 1, -1, 9]) + k),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("by_text", [False, True])
def test_slices_of_symbolic_sizes(name: str, by_text: bool) -> None:
    function = jax.jit(FUNCTIONS[name])
    shape = jax.export.symbolic_shape("b, c")
    types = jax.ShapeDtypeStruct(shape, np.float32), jax.ShapeDtypeStruct((), np.int32)
    model = tw.compile(jax.export.export(function)(*types).mlir_module()) if by_text else tw.compile(function, types)
    rng = np.random.default_rng(0)
    for b, c in ((1, 1), (2, 3), (3, 2), (5, 8), (7, 1)):
        x = rng.integers(-9, 9, (b, c)).astype(np.float32)
        for k in (0, 1, b, -1, -b - 2, 100):
            want = jax.tree.leaves(function(x, np.int32(k)))
            got = model(x, np.array(k, np.int32))
            for g, w in zip(list(got) if isinstance(got, tuple | list) else [got], want, strict=True):
                np.testing.assert_array_equal(g, w)
