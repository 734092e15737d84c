"""JAX's floats of 8 bits as storage: all codes as numbers, numbers rounded to codes as JAX rounds them, and
products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.support.errors import Error

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
jnp = pytest.importorskip("jax.numpy")
pytest.importorskip("jax.export")

TYPES = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def both(function: Callable[..., Any], x: Any) -> tuple[Any, Any]:
    """The results of the compiled function and of JAX."""
    jitted = jax.jit(function)
    return np.asarray(tw.compile(jax.export.export(jitted)(x))(x)), np.asarray(jitted(x))


def codes_of(name: str) -> Any:
    return np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", TYPES)
def test_all_codes_are_numbers(name: str) -> None:
    codes = codes_of(name)
    got, _ = both(lambda x: x.astype(jnp.float32) * 2 + jnp.asarray(codes).astype(jnp.float32), codes)
    np.testing.assert_array_equal(got, 3 * codes.astype(np.float32))


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", TYPES)
def test_numbers_are_rounded_to_codes(name: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(20_000) * 10.0 ** rng.integers(-9, 7, 20_000)).astype(np.float32)
    finite = codes_of(name).astype(np.float32)
    finite = np.sort(finite[np.isfinite(finite)])
    ties = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([x, finite, ties, np.float32([np.inf, -np.inf, np.nan, 1e30, 448, 464, 465, 57344, 61440])])
    for got, want in (
        both(lambda v: v.astype(getattr(jnp, name)), x),
        both(lambda v: v.astype(getattr(jnp, name)), x.astype(ml_dtypes.bfloat16)),
    ):
        is_nan = np.isnan(want.astype(np.float32))  # the code of one of a half has its highest bits
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), is_nan)
        np.testing.assert_array_equal(got.view(np.uint8)[~is_nan], want.view(np.uint8)[~is_nan])


PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: jnp.dot(x, x.T),
    "vectors": lambda x: jnp.dot(x[0], x[1]),
    "outer": lambda x: jnp.einsum("i,j->ji", x[0], x[1]),
    "convolution": lambda x: jax.lax.conv(x[None, None], x[None, None, :2, :3], (1, 1), "SAME"),
}


@pytest.mark.costly(2)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", TYPES)
def test_products_of_codes_are_rounded_to_codes(name: str, product: str) -> None:
    """Sums are exact in f32, ties and numbers that are too large among them; XLA rounds them to f16 first."""
    x = (np.random.default_rng(1).integers(-12, 13, (24, 24)) / 4).astype(getattr(ml_dtypes, name))
    x[0] = x[1] = 15
    got, want = both(PRODUCTS[product], x)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    assert got.dtype == want.dtype


@pytest.mark.parametrize(
    "function",
    [lambda x: x + x, jnp.sort, jnp.argsort, lambda x: jax.lax.top_k(x, 3)],
    ids=["+", "sort", "argsort", "top"],
)
def test_arithmetic_and_order_of_codes_are_refused_by_name(function: Callable[..., Any]) -> None:
    codes = codes_of("float8_e5m2")
    with pytest.raises(Error, match="f8e5m2"):
        tw.compile(jax.export.export(jax.jit(function))(codes))
