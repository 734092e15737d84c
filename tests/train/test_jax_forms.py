"""Forms of losses in JAX against `jax.grad`: `stop_gradient`, derivatives of one's own, equal elements, corners.

All forms are one loss: each has a parameter of its own, so that each gradient is seen alone. The graph with its
gradients runs by the operators' references; a few forms are compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import UnsupportedError
from tilewright.train.gradient import gradient

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
from jax import lax, nn  # noqa: E402  after what may skip
from jax import numpy as jnp  # noqa: E402
from jax.scipy import special  # noqa: E402

from tilewright.train.jax_loss import traced  # noqa: E402

f32 = np.float32
W = np.array([[1, 2, 3], [0, -1, 2], [3, 3, -3]], f32)
X = np.array([[1, 1, 3], [0, -1, 2.5], [3, 2, -3]], f32)
TIED = np.array([[1, 1, 0], [2, 2, 2], [-1, 3, 3]], f32)
CORNERS = np.array([[0, -0.0, 1], [6, -3, 3], [-1, 0.5, -0.5]], f32)
POSITIVE = np.array([[0.5, 1, 3], [0.2, 7, 2], [4, 1.5, 0.9]], f32)
SMALL = CORNERS / 8
MAPS = np.array([[1, 1, 0, 2], [1, 1, 2, 2], [3, 3, 5, 4], [3, 2, 5, 5]], f32)
PLACES = np.array([[0, 0, 1], [1, 1, 1], [2, 2, 0]], np.int32)

Form = tuple[Callable[[Any], Any], Any]
FORMS: dict[str, Form] = {}


def form(name: str, function: Callable[[Any], Any], w: Any = W) -> None:
    FORMS[name] = (function, w)


def weighed(y: Any) -> Any:
    """A number to which each element of a result counts differently."""
    return (y * jnp.linspace(0.5, 1.7, y.size, dtype=y.dtype).reshape(y.shape)).sum()


# --- what says how gradients flow -----------------------------------------------------------------------------------

form("stop_gradient", lambda w: lax.stop_gradient(w) * w)
form("stop_gradient of all", lambda w: lax.stop_gradient(jnp.tanh(w)) + 0 * w)
form("stop_gradient in a jitted function", jax.jit(lambda w: lax.stop_gradient(w * w) * w))
form("straight through", lambda w: w + lax.stop_gradient(jnp.round(w) - w))
form("stop_gradient in a scan", lambda w: lax.scan(lambda c, r: (lax.stop_gradient(c) * 0.5 + r, c * r), w[0], w)[1])
form("stop_gradient in a branch", lambda w: lax.cond(w[0, 0] > 0, lax.stop_gradient, lambda v: 2 * v, w) * w)
form("stop_gradient in checkpoint", jax.checkpoint(lambda w: jnp.sin(lax.stop_gradient(w)) * w))
form("gradient inside", lambda w: jax.grad(lambda v: (v**3).sum())(w) * w)


@jax.custom_jvp
def bent(x: Any) -> Any:
    return jnp.sin(x)


bent.defjvp(lambda primals, tangents: (bent(primals[0]), 3 * primals[0] * tangents[0]))


@jax.custom_vjp
def reversed_(x: Any) -> Any:
    return x * 1


reversed_.defvjp(lambda x: (x * 1, None), lambda retained, g: (-0.5 * g,))


@jax.custom_vjp
def mixed(x: Any, y: Any) -> Any:
    return x @ y


mixed.defvjp(lambda x, y: (x @ y, (x, y)), lambda retained, g: (2 * g @ retained[1].T, -retained[0].T @ g))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def powered(x: Any, n: int) -> Any:
    return x**n


powered.defjvp(lambda n, primals, tangents: (powered(primals[0], n), n * tangents[0]))

form("custom_jvp", lambda w: bent(w) * w)
form("custom_jvp with an argument", lambda w: powered(jnp.tanh(w), 3))
form("custom_vjp", lambda w: reversed_(jnp.tanh(w)))
form("custom_vjp of two", lambda w: mixed(w, jnp.cos(w)))
form("custom_jvp in a scan", lambda w: lax.scan(lambda c, r: (bent(c + r), c), w[0], w)[1])
form("optax's clip", lambda w: w / lax.stop_gradient(jnp.maximum(1.0, jnp.linalg.norm(w))))

# --- equal elements and corners -------------------------------------------------------------------------------------

form("maximum of equals", lambda w: jnp.maximum(w, X))
form("minimum of equals", lambda w: jnp.minimum(X, w))
form("maximum with a number", lambda w: jnp.maximum(w, 0.0), CORNERS)
form("maximum with a number that is met", lambda w: jnp.maximum(w, 3.0))
form("minimum with a number", lambda w: jnp.minimum(0.0, w), CORNERS)
form("fmax", lambda w: jnp.fmax(w, X))
form("clip", lambda w: jnp.clip(w, 0.0, 3.0))
form("clip by arrays", lambda w: jnp.clip(w, X - 1, X))
form("clip's bounds", lambda w: jnp.clip(X, w, w + 1))
form("lax.clamp", lambda w: lax.clamp(0.0, w, 3.0))
form("lax.clamp by arrays", lambda w: lax.clamp(X - 1, w, X))
form("lax.clamp's bounds", lambda w: lax.clamp(w, X, w + 1))
form("max of a dimension", lambda w: w.max(1), TIED)
form("min of all", lambda w: w.min()[None], TIED)
form("max where", lambda w: jnp.max(w, axis=1, where=w > 0, initial=0.5), TIED)
form("sort", lambda w: jnp.sort(w, axis=1), TIED)
form("sort, falling", lambda w: -jnp.sort(-w, axis=1), TIED)
form("argsort and take", lambda w: jnp.take_along_axis(w, jnp.argsort(w, axis=1), 1), TIED)
form("sort by a key", lambda w: lax.sort((jnp.round(w), w), num_keys=1)[1], TIED)
form("top_k", lambda w: lax.top_k(w, 2)[0], TIED)
form("median", lambda w: jnp.median(w, axis=1), TIED)
form("cummax", lambda w: lax.cummax(w, axis=1), TIED)
form("cummin, reversed", lambda w: lax.cummin(w, axis=1, reverse=True), TIED)
form("cumprod with zeros", lambda w: jnp.cumprod(w, axis=1), TIED)
form("cumlogsumexp", lambda w: lax.cumlogsumexp(w, axis=1), TIED)
form("prod with zeros", lambda w: w.prod(1), np.array([[0, 2, 3], [0, 0, 4], [1, 2, 3]], f32))
form("where", lambda w: jnp.where(w > 0, w * 2, w * w), CORNERS)
form("where that is safe", lambda w: jnp.where(w > 0, jnp.log(jnp.where(w > 0, w, 1)), w), CORNERS)
form("abs", jnp.abs, CORNERS)
form("sign and rounding", lambda w: jnp.sign(w) * w + jnp.floor(w) * w, CORNERS)
form("powers at zero", lambda w: jnp.abs(w) ** 1.5 + w**2 + w**0 + w**3, CORNERS)
form("power by an array", lambda w: jnp.abs(w) ** np.array([1.0, 2.0, 3.0], f32), CORNERS)
form("sqrt at zero", lambda w: jnp.sqrt(jnp.abs(w)), CORNERS)
form("norm", lambda w: jnp.linalg.norm(w, axis=1), X)
form("norm of zeros", lambda w: jnp.linalg.norm(w * 0, axis=1), X)
form("sinc at zero", jnp.sinc, CORNERS)
form("cbrt", lambda w: jnp.cbrt(w), POSITIVE)
form("arcsin at its ends", jnp.arcsin, np.array([[1, -1, 0], [0.5, -0.25, 0.999]], f32))
form("remainders", lambda w: jnp.remainder(w, 1.5) + jnp.fmod(w, 2.0) + lax.rem(w, f32(1.3)), W + f32(0.1))
form("arctan2", lambda w: jnp.arctan2(w, X), POSITIVE)
form("logaddexp", lambda w: jnp.logaddexp(w, X) + jnp.logaddexp2(w, X))
form("logaddexp of infinity", lambda w: jnp.logaddexp(w, -jnp.inf))
form("logsumexp", lambda w: nn.logsumexp(w, axis=1), TIED)
form("max_pool", lambda w: lax.reduce_window(w, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID"), MAPS)
form("max_pool, same", lambda w: lax.reduce_window(w, -jnp.inf, lax.max, (3, 3), (2, 2), "SAME"), MAPS)
form("avg_pool", lambda w: lax.reduce_window(w, 0.0, lax.add, (2, 2), (2, 2), "VALID") / 4, MAPS)

for (
    _name
) in """relu relu6 hard_tanh hard_sigmoid hard_swish leaky_relu elu celu selu softplus silu gelu sigmoid log_sigmoid
    soft_sign squareplus mish glu softmax log_softmax standardize""".split():
    form(f"nn.{_name}", getattr(nn, _name), np.concatenate([CORNERS, CORNERS[:, ::-1]], 1))

for _name in ("sigmoid", "silu", "log_sigmoid", "softplus", "gelu"):
    form(f"nn.{_name}, saturated", getattr(nn, _name), np.array([[-200, 200, -90], [90, -1e4, 1e4]], f32))
form("xlogy at zero", lambda w: special.xlogy(w, w) + special.xlog1py(w, w), np.abs(CORNERS))
form("entropies", lambda w: special.entr(w) + special.rel_entr(w, POSITIVE), np.abs(CORNERS) + f32(0.5))
form("erf and its kin", lambda w: special.erf(w) + special.erfc(w) + special.erfinv(w), SMALL)
form("logit", lambda w: special.logit(w) + special.expit(w), POSITIVE / 8)
form("gamma functions", lambda w: special.gammaln(w) + special.digamma(w), POSITIVE)
form("bessel functions", lambda w: special.i0e(w) + special.i1e(w), POSITIVE)

# --- what is read and written by an index ---------------------------------------------------------------------------

form("take that fills", lambda w: jnp.take(w, np.array([0, 5, 2]), axis=0, mode="fill", fill_value=1))
form("take that clips", lambda w: jnp.take(w, np.array([0, 5, 2, 2]), axis=0, mode="clip"))
form("at set twice", lambda w: jnp.zeros(3).at[PLACES[:, 0]].set(w[:, 1]) + w[0])
form("at add", lambda w: jnp.ones((3, 3)).at[PLACES, PLACES.T].add(w))
form("at multiply", lambda w: jnp.asarray(w).at[np.array([0, 2])].multiply(w[1], unique_indices=True))
form("at max", lambda w: jnp.asarray(w).at[np.array([0, 1])].max(X[:2]))
form("dynamic_slice that is clamped", lambda w: lax.dynamic_slice(w, (2, 2), (2, 2)))
form("dynamic_update_slice", lambda w: lax.dynamic_update_slice(w, w[:2, :2] ** 2, (1, 1)))
form("segment_sum", lambda w: jax.ops.segment_sum(w, np.array([0, 0, 1]), num_segments=2))
form("segment_max", lambda w: jax.ops.segment_max(w, np.array([0, 0, 1]), num_segments=2), TIED)


def loss(params: Any) -> Any:
    """The sum of all forms that have a parameter, and each of them."""
    result = {name: weighed(FORMS[name][0](w)) for name, w in params.items()}
    return {"loss": sum(result.values()), **{f"of {name}": value for name, value in result.items()}}


# --- systems of equations, and elements that are written several times -----------------------------------------------

SOLVABLE = W / 4 + 3 * np.eye(3, dtype=f32)

form("solve", lambda w: jnp.linalg.solve(w, jnp.arange(3.0)), SOLVABLE)
form("solve for what is sought", lambda w: jnp.linalg.solve(SOLVABLE, w))
form("solve for both", lambda w: jnp.linalg.solve(w, jnp.tanh(w)), SOLVABLE)
form("solve in vmap", jax.vmap(lambda w: jnp.linalg.solve(w, w[0])), np.stack([SOLVABLE, SOLVABLE.T]))
form("solve in a scan", lambda w: lax.scan(lambda c, r: (jnp.linalg.solve(w, c) + r, c), w[0], w)[1], SOLVABLE)
form("inv", jnp.linalg.inv, SOLVABLE)
form("rows written twice", lambda w: jnp.ones((4, 3)).at[np.array([1, 1, 3])].set(w))
form("rows written twice over others", lambda w: (w * 2).at[np.array([0, 2, 0])].set(w**2))
form("rows written once", lambda w: w.at[np.array([2, 0])].set(w[:2] ** 2))
form("elements written twice", lambda w: w.at[np.array([0, 0, 2]), np.array([1, 1, 0])].set(w[0] * 3))
form("one number written twice", lambda w: w.at[np.array([1, 1])].set(w[0, 2]))
form("rows written at clipped places", lambda w: w.at[np.array([2, 9, -7])].set(w**2, mode="clip"))
form("rows written in a loop", lambda w: lax.fori_loop(0, 3, lambda i, c: c.at[i].set(w[i] * c[i - 1] + c[i]), w))


def parameters(names: list[str]) -> dict[str, Any]:
    return {name: np.array(FORMS[name][1]) for name in names}


@jax.jit
def by_jax(params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The loss and its parts, and the gradients."""
    (_, result), flows = jax.value_and_grad(lambda p: (loss(p)["loss"], loss(p)), has_aux=True)(params)
    return result, flows


def gradients(names: list[str]) -> dict[str, tuple[Any, Any, Any, Any]]:
    """The loss and the gradient of each form, of the graph that a step is made of and of JAX."""
    params = parameters(names)
    read = traced(params, loss, ())
    values = dict(zip(read.metrics, read.graph.outputs, strict=True))
    graph = gradient(read.graph, values["loss"].name, list(params))
    with np.errstate(all="ignore"):
        result = run_graph(graph, {}, read.weights)
    expected, flows = by_jax(params)
    moved = dict(zip(params, graph.outputs[len(read.graph.outputs) :], strict=True))
    return {
        name: (result[values[f"of {name}"].name], expected[f"of {name}"], result[moved[name].name], flows[name])
        for name in names
    }


@pytest.fixture(scope="module")
def all_gradients() -> dict[str, tuple[Any, Any, Any, Any]]:
    return gradients(list(FORMS))


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str, all_gradients: dict[str, tuple[Any, Any, Any, Any]]) -> None:
    """The gradient is JAX's."""
    value, expected_value, flow, expected = all_gradients[name]
    np.testing.assert_allclose(value, expected_value, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(flow, expected, rtol=2e-4, atol=2e-5)


def test_a_step_moves_as_jax_says() -> None:
    params = parameters(["straight through", "custom_vjp of two", "clip", "maximum with a number", "nn.relu6"])
    step = tw.compile_step(params, loss, tw.train.SGD(1.0), example=())
    expected, flows = by_jax(params)
    assert step()["loss"] == pytest.approx(float(expected["loss"]), rel=1e-5)
    for name, flow in flows.items():
        np.testing.assert_allclose(params[name] - step.parameters[name], flow, rtol=2e-4, atol=2e-5)


def test_a_solution_by_iteration_is_refused() -> None:
    """Not taken for one whose matrix has no gradient."""

    def solved(p: Any) -> Any:
        return weighed(jax.scipy.sparse.linalg.cg(lambda v: p["w"] @ v, jnp.arange(3.0), maxiter=9)[0])

    with pytest.raises(UnsupportedError, match="a loop whose number of iterations data decides has no gradient"):
        tw.compile_step({"w": SOLVABLE + SOLVABLE.T}, solved, tw.train.SGD(0.1), example=())


def test_a_way_back_that_is_not_linear_is_refused() -> None:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x * 1

    clipped.defvjp(lambda x: (x * 1, None), lambda retained, g: (jnp.clip(g, -1, 1),))
    with pytest.raises(UnsupportedError, match="clipped"):
        tw.compile_step({"w": W}, lambda p: weighed(clipped(p["w"])), tw.train.SGD(0.1), example=())
