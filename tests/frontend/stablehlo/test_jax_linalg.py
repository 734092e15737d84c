"""Factorisations and triangular systems: JAX's functions, which call LAPACK on CPUs, and StableHLO's own operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
jnp, lax = jax.numpy, jax.lax

RNG = np.random.default_rng(4)
A = RNG.standard_normal((3, 4, 4)).astype(np.float32)
S = A @ A.transpose(0, 2, 1) + 4 * np.eye(4, dtype=np.float32)
LOWER = np.tril(A) + 4 * np.eye(4, dtype=np.float32)


def same(function: Callable[..., Any], *arguments: Any, tolerance: float = 1e-5, export: bool = False) -> None:
    jitted = jax.jit(function)
    model = tw.compile(jax.export.export(jitted)(*arguments) if export else jitted, None if export else arguments)
    got = model(*arguments)
    results = list(got) if isinstance(got, list | tuple) else [got]
    for a, b in zip(results, jax.tree.leaves(jitted(*arguments)), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(np.nan_to_num(b)).max(initial=1))


def solved(a: Any, b: Any) -> Any:
    return jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.det(a), jnp.linalg.slogdet(a)


def test_solutions_inverses_and_determinants() -> None:
    same(solved, S, A, export=True)


def test_factors_and_pivots() -> None:
    same(lambda a: (lax.linalg.lu(a), lax.linalg.lu(a[:, :2]), lax.linalg.lu(a[..., :2])), A)


def test_a_symbolic_batch() -> None:
    (b,) = jax.export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((b, 4, 4), np.float32)
    model = tw.compile(jax.export.export(jax.jit(jnp.linalg.inv))(shape))
    for n in (1, 3):
        np.testing.assert_allclose(model(S[:n]), np.linalg.inv(S[:n]), rtol=1e-4, atol=1e-6)


def test_what_is_not_positive_definite_is_nan() -> None:
    last = np.eye(4, dtype=np.float32)
    last[3, 3] = 0
    same(jnp.linalg.cholesky, np.stack([S[0], A[0], -S[0], last, np.zeros_like(last)]))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
def test_triangular_systems(left: bool, lower: bool) -> None:
    b = A[..., :3] if left else A[:, :3]

    def function(a: Any, b: Any) -> Any:
        said = {"left_side": left, "lower": lower}
        return [
            lax.linalg.triangular_solve(a, b, transpose_a=t, unit_diagonal=u, **said)
            for t in (True, False)
            for u in (True, False)
        ]

    same(function, LOWER if lower else LOWER.transpose(0, 2, 1), b)


def test_the_gradient_of_a_likelihood() -> None:
    def loss(scale: Any, x: Any) -> Any:
        distances = jnp.sum((x[:, None] - x[None]) ** 2, -1)
        factor = jnp.linalg.cholesky(jnp.exp(-0.5 * distances / scale) + 0.1 * jnp.eye(x.shape[0]))
        weights = jax.scipy.linalg.cho_solve((factor, True), x[:, 0])
        return x[:, 0] @ weights + 2 * jnp.log(jnp.diag(factor)).sum()

    same(jax.value_and_grad(loss), np.float32(1.3), A[0, :, :3], tolerance=1e-4)


MODULE = """func.func @main(%a: tensor<3x4x4xf32>, %b: tensor<3x4x4xf32>)
    -> (tensor<3x4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>) {
  %0 = "stablehlo.cholesky"(%a) {lower = true} : (tensor<3x4x4xf32>) -> tensor<3x4x4xf32>
  %1 = "stablehlo.cholesky"(%a) {lower = false} : (tensor<3x4x4xf32>) -> tensor<3x4x4xf32>
  %2 = "stablehlo.triangular_solve"(%0, %b) {left_side = true, lower = true, unit_diagonal = false,
    transpose_a = #stablehlo<transpose TRANSPOSE>} : (tensor<3x4x4xf32>, tensor<3x4x4xf32>) -> tensor<3x4x4xf32>
  return %0, %1, %2 : tensor<3x4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
}"""


def test_operations_of_stablehlo() -> None:
    lower, upper, x = tw.compile(MODULE)(S, A)
    want = np.linalg.cholesky(S)
    np.testing.assert_allclose(lower, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(upper, want.transpose(0, 2, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x, np.linalg.solve(want.transpose(0, 2, 1), A), rtol=1e-4, atol=1e-5)


def test_the_order_of_the_first_minor_that_is_not_positive() -> None:
    text = """func.func @main(%a: tensor<4x3x3xf32>) -> tensor<4xi32> {
      %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%a) {mhlo.backend_config = {uplo = 85 : ui8}} :
        (tensor<4x3x3xf32>) -> (tensor<4x3x3xf32>, tensor<4xi32>)
      return %0#1 : tensor<4xi32>
    }"""
    diagonals = np.array([[1, 2, 3], [1, 2, 0], [1, -1, 2], [np.nan, 1, 1]], np.float32)
    assert tw.compile(text)(diagonals[..., None] * np.eye(3, dtype=np.float32)).tolist() == [0, 3, 2, 1]
