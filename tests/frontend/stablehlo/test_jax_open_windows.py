"""Windows, running reductions and convolutions along symbolic dimensions, against JAX at many sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend.read import import_model
from tilewright.ops.interpret import run_graph
from tilewright.train.gradient import gradient

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

SIZES = (1, 2, 3, 8, 17)
INF = float("inf")


def window(body: Any, start: float, *rest: Any) -> Callable[[Any], Any]:
    return lambda x: lax.reduce_window(x, start, body, *rest)


def filtered(strides: Any, padding: Any, **rest: Any) -> Callable[[Any, Any], Any]:
    return lambda x, k: lax.conv_general_dilated(x, k, strides, padding, **rest)


def weighed(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The results of a function of a vector, each times its position."""
    return lambda x: f(x) * jnp.arange(f(x).shape[0], dtype=x.dtype)


CASES: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "cumsum of rows": (lambda x: jnp.cumsum(x, axis=1), ["3, b"]),
    "cumsum from the end": (lambda x: lax.cumsum(x, 0, reverse=True), ["b, 3"]),
    "cumprod": (jnp.cumprod, ["b"]),
    "cummax": (lax.cummax, ["b"]),
    "cummin from the end": (lambda x: lax.cummin(x, reverse=True), ["b"]),
    "cumlogsumexp from the end": (lambda x: lax.cumlogsumexp(x, 1, reverse=True), ["2, b"]),
    "maxima, VALID": (window(lax.max, -INF, (2,), (2,), "VALID"), ["b"]),
    "maxima, SAME": (window(lax.max, -INF, (2,), (2,), "SAME"), ["b"]),
    "sums, dilated": (window(lax.add, 0.0, (3,), (2,), [(1, 2)], (2,), (2,)), ["b"]),
    "sums that are weighed": (weighed(window(lax.add, 0.0, (3,), (2,), "VALID")), ["b"]),
    "minima of one element": (window(lax.min, INF, (1,), (3,), [(1, 0)], (1,), (2,)), ["b"]),
    "products": (window(lax.mul, 1.0, (3,), (1,), "SAME"), ["b"]),
    "maxima of images": (window(lax.max, -INF, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"), ["2, b, b, 3"]),
    "convolution, SAME": (filtered((2,), "SAME"), ["1, 2, b", "4, 2, 3"]),
    "convolution, VALID": (filtered((1,), "VALID"), ["1, 2, b", "4, 2, 3"]),
    "roll": (lambda x: jnp.roll(x, 1), ["b"]),
    "top k": (lambda x: lax.top_k(x, x.shape[1] // 2), ["3, b"]),
    "padding of unknown sign": (lambda x: lax.pad(x, 0.0, [(x.shape[0] - 3, 3 - x.shape[0], 0)]), ["b"]),
}


@pytest.mark.parametrize("exported", [True, False], ids=["exported", "jitted"])
@pytest.mark.parametrize("name", CASES)
def test_along_symbols(name: str, exported: bool) -> None:
    f, shapes = CASES[name]
    scope = jax.export.SymbolicScope()
    inputs = [jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), np.float32) for s in shapes]
    model = tw.compile(jax.export.export(jax.jit(f))(*inputs)) if exported else tw.compile(jax.jit(f), tuple(inputs))
    rng = np.random.default_rng(0)
    for b in SIZES:
        sizes = [[b if d.strip() == "b" else int(d) for d in s.split(",")] for s in shapes]
        arrays = [rng.normal(size=s).astype(np.float32) for s in sizes]
        result = model(*arrays)
        expected = jax.tree.leaves(f(*map(jnp.asarray, arrays)))
        for x, e in zip(result if isinstance(result, tuple) else (result,), expected, strict=True):
            assert x.shape == e.shape
            np.testing.assert_allclose(x, e, rtol=1e-5, atol=1e-5, err_msg=f"b = {b}")


@pytest.mark.parametrize("name", ["maxima, SAME", "maxima, VALID", "products", "top k", "roll", "convolution, SAME"])
def test_along_symbols_of_which_something_is_said(name: str) -> None:
    """Bounds of a symbol give its arithmetic another form: a floored quotient may become the number 0."""
    f, shapes = CASES[name]
    scope = jax.export.SymbolicScope(["b >= 2"])
    types = [jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), np.float32) for s in shapes]
    model = tw.compile(jax.export.export(jax.jit(f))(*types))
    rng = np.random.default_rng(1)
    for b in (2, 5, 8):
        sizes = [[b if d.strip() == "b" else int(d) for d in s.split(",")] for s in shapes]
        arrays = [rng.normal(size=s).astype(np.float32) for s in sizes]
        result = model(*arrays)
        for x, e in zip(result if isinstance(result, tuple) else (result,), jax.tree.leaves(f(*arrays)), strict=True):
            np.testing.assert_allclose(x, e, rtol=1e-5, atol=1e-5, err_msg=f"b = {b}")


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (2, 3)])
@pytest.mark.parametrize("kind", ["sums", "maxima"])
def test_gradients_along_symbols(kind: str, size: int, stride: int) -> None:
    body, start = (lax.add, 0.0) if kind == "sums" else (lax.max, -INF)
    f = weighed(lambda x: window(body, start, (1, size, 1), (1, stride, 1), "VALID")(x[None, :, None])[0, :, 0])
    (b,) = jax.export.symbolic_shape("b")
    read = import_model(jax.jit(lambda x: f(x).sum()), example=(jax.ShapeDtypeStruct((b,), np.float32),))
    graph = gradient(read.graph, read.graph.outputs[0].name, ["x"])
    for n in (size, 5, 8, 9):
        x = np.random.default_rng(n).normal(size=n).astype(np.float32)
        flow = run_graph(graph, {"x": x})[graph.outputs[1].name]
        np.testing.assert_allclose(flow, jax.grad(lambda x: f(x).sum())(x), rtol=1e-5, atol=1e-5)
