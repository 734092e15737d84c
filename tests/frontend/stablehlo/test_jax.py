"""JAX in: jitted and exported functions, text and bytecode, against jax.jit itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend.read import import_model

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
jnp = jax.numpy

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32)


WEIGHTS = {"l1": {"w": normal(17, 64), "b": normal(64)}, "l2": {"w": normal(64, 6)}}


def policy(p: Any, x: Any) -> Any:
    hidden = jax.nn.gelu(jnp.tanh(x @ p["l1"]["w"] + p["l1"]["b"]), approximate=False)
    logits = hidden @ p["l2"]["w"]
    return {"probabilities": jax.nn.softmax(logits), "best": jnp.argmax(logits, axis=-1)}


def specs(tree: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


def exported() -> Any:
    (b,) = jax.export.symbolic_shape("b")
    observation = jax.ShapeDtypeStruct((b, 17), np.float32)
    return jax.export.export(jax.jit(policy))(specs(WEIGHTS), observation)


def close(result: Any, expected: Any, tolerance: float = 1e-5) -> None:
    leaves = jax.tree.leaves(expected)
    inputs = result if isinstance(result, tuple) else (result,)
    assert len(inputs) == len(leaves)
    for a, e in zip(inputs, leaves, strict=True):
        x, y = np.asarray(a), np.asarray(e)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, atol=tolerance * max(1.0, float(np.abs(y).max(initial=0))), rtol=0)


def test_weights_are_named_by_their_paths_and_updated_as_a_tree() -> None:
    x = normal(8, 17)
    model = tw.compile(jax.jit(policy), (WEIGHTS, x), params=0)
    assert [p.name for p in model.params] == ["l1.b", "l1.w", "l2.w"]
    assert [v.name for v in (*model.inputs, *model.outputs)] == ["x", "best", "probabilities"]
    close(model(x), policy(WEIGHTS, x))
    changed = jax.tree.map(lambda w: w * 0.5, WEIGHTS)
    assert model.update(changed) == 1
    close(model(x), policy(changed, x))
    with pytest.raises(tw.Error, match=r"l1\.nothing"):
        model.update({"l1": {"nothing": 1.0, **WEIGHTS["l1"]}, "l2": WEIGHTS["l2"]})


def test_a_symbolic_batch_serves_all_sizes() -> None:
    (b,) = jax.export.symbolic_shape("b")
    model = tw.compile(jax.jit(policy), (WEIGHTS, jax.ShapeDtypeStruct((b, 17), np.float32)), params="p")
    reloaded = tw.compile(exported(), params={0: WEIGHTS})
    for n in (1, 3, 8):
        x = normal(n, 17)
        close(model(x), policy(WEIGHTS, x))
        close(reloaded(x), policy(WEIGHTS, x))


def test_text_and_bytecode_are_read_in_another_process(tmp_path: Path) -> None:
    module = exported()
    x = normal(5, 17)
    inputs = (WEIGHTS["l1"]["b"], WEIGHTS["l1"]["w"], WEIGHTS["l2"]["w"], x)
    path = tmp_path / "policy.mlir"
    path.write_text(module.mlir_module())
    for source in (module.mlir_module(), bytes(module.mlir_module_serialized), path):
        model = tw.compile(source)
        assert [v.name for v in model.inputs] == ["p_l1_b", "p_l1_w", "p_l2_w", "x"]
        close(model(*inputs), policy(WEIGHTS, x))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "damaged.mlir"
    path.write_text("module {{{")
    with pytest.raises(tw.errors.ModelError, match=r"damaged\.mlir: this is no StableHLO"):
        tw.compile(path)


@pytest.mark.parametrize("platforms", [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_module_for_several_platforms_runs_as_for_the_cpu(platforms: tuple[str, str]) -> None:
    def by_platform(x: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x - 1)

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (b,) = jax.export.symbolic_shape("b")
    exported = jax.export.export(jax.jit(by_platform), platforms=platforms)(jax.ShapeDtypeStruct((b, 3), x.dtype))
    np.testing.assert_array_equal(tw.compile(exported)(x), x + 1)
    np.testing.assert_array_equal(tw.compile(exported, dims={"b": 2})(x), x + 1)


def test_captured_arrays_are_weights() -> None:
    w = normal(4, 3)
    model = tw.compile(jax.jit(lambda x: x @ w), jax.ShapeDtypeStruct((2, 4), np.float32))
    assert [p.name for p in model.params] == ["constant0"]
    x = normal(2, 4)
    close(model(x), x @ w)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "integers divide as in C": (
        lambda a, b: (jax.lax.div(a, b), jax.lax.rem(a, b)),
        (np.array([7, -7, 5, -128], np.int8), np.array([2, 2, 0, -1], np.int8)),
    ),
    "slices are moved inside": (
        lambda x, i: jax.lax.dynamic_slice(x, (i, i), (2, 3)),
        (normal(4, 5), np.int32(9)),
    ),
    "updates are moved inside": (
        lambda x, u, i: jax.lax.dynamic_update_slice(x, u, (i, i)),
        (normal(4, 5), normal(2, 3), np.int32(-3)),
    ),
    "scatters drop": (
        lambda x, i, u: x.at[i].add(u, mode="drop"),
        (normal(5, 3), np.array([0, 7, 2, 0], np.int32), normal(4, 3)),
    ),
    "gathers fill": (lambda x, i: jnp.take(x, i, axis=1, mode="fill"), (normal(3, 5), np.array([4, 9, -1], np.int32))),
    "any body reduces": (
        lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: a + b - a * b, (1,)),
        (np.abs(normal(3, 7)) / 8,),
    ),
    "two keys sort": (
        lambda a, b, c: jax.lax.sort((a, b, c), num_keys=2),
        (RNG.integers(0, 3, 20).astype(np.int32), normal(20), np.arange(20, dtype=np.int32)),
    ),
    "NaN sorts last": (lambda x: jnp.sort(x), (np.array([2, np.nan, -np.inf, -0.0, 0.0, 1], np.float32),)),
    "a counter's loop": (
        lambda x: jax.lax.scan(lambda h, y: (jnp.tanh(h + y), h * 2), jnp.zeros(3), x),
        (normal(5, 3),),
    ),
    "a loop that the data end": (
        lambda x, n: jax.lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.tanh(c[0]) + x, c[1] + 1), (x, 0)),
        (normal(2, 3), np.int32(5)),
    ),
    "a long scan": (lambda x: jnp.cumsum(jax.lax.map(lambda row: jnp.sin(row), x)), (normal(700, 2),)),
    "random bits": (lambda x: x + jax.random.normal(jax.random.key(3), (4,)), (normal(4),)),
    "a transposed convolution": (
        lambda x, w: jax.lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (normal(2, 5, 6, 3), normal(3, 3, 3, 8)),
    ),
    "windows": (
        lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        (normal(2, 7, 7, 3),),
    ),
    "negative padding": (
        lambda x: jax.lax.pad(x, np.float32(2), ((-1, 2, 1), (3, -2, 0))),
        (normal(4, 5),),
    ),
    "what is cut reaches into the padding": (
        lambda x: (jax.lax.pad(x, np.float32(2), ((-3, 5, 0),)), jax.lax.pad(x, np.float32(2), ((7, -8, 1),))),
        (normal(2),),
    ),
    "the gradient of no windows": (
        jax.grad(lambda x: jnp.sum(jax.lax.reduce_window(x, -np.inf, jax.lax.max, (2, 3), (1, 1), ((2, 2), (0, 0))))),
        (normal(3, 2),),
    ),
    "special functions": (lambda x: jax.scipy.special.gammaln(x) + jax.scipy.special.erfc(x), (np.abs(normal(9)) + 1,)),
    "bf16": (lambda x: jnp.sum(x * x, axis=0) + jnp.bfloat16(np.inf), (normal(3, 4).astype(jnp.bfloat16),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_agree_with_jax(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    expected = jax.jit(function)(*arguments)
    result = tw.compile(jax.jit(function), arguments)(*arguments)
    leaves = jax.tree.leaves(expected)
    inputs = result if isinstance(result, tuple) else (result,)
    for a, e in zip(inputs, leaves, strict=True):
        x, y = np.asarray(a), np.asarray(e)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_cube_roots_have_the_signs_of_their_numbers(dtype: str) -> None:
    x = np.array([0, -0.0, 8, -8, np.inf, -np.inf, np.nan, 1e-5, -1e-5], dtype)
    root = tw.compile(jax.jit(jax.lax.cbrt), (x,))(x)
    np.testing.assert_allclose(root, np.cbrt(x), rtol=1e-3 if dtype == "float16" else 1e-6)
    assert np.signbit(root[:6]).tolist() == [False, True] * 3


def test_the_gradient_of_pooling_takes_any_batch() -> None:
    def function(x: Any) -> Any:
        window, pads = (1, 3, 2), ((0, 0), (1, 1), (1, 0))
        return jax.grad(
            lambda x: jnp.sum(jnp.sin(jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, (1, 2, 1), pads)))
        )(x)

    batch = jax.export.symbolic_shape("batch, 7, 6")
    model = tw.compile(jax.jit(function), (jax.ShapeDtypeStruct(batch, np.float32),))
    for n in (1, 3):
        x = normal(n, 7, 6)
        np.testing.assert_allclose(model(x), function(x), rtol=2e-6, atol=2e-6)


def test_what_is_lacking_is_listed_at_once() -> None:
    def f(x: Any) -> Any:
        return jnp.linalg.qr(x), jnp.fft.fft(x)

    with pytest.raises(tw.Error) as caught:
        tw.compile(jax.jit(f), normal(3, 3))
    assert "lapack_sgeqrf_ffi" in str(caught.value) and "complex" in str(caught.value)
    assert "test_jax.py" in str(caught.value)


def test_complex_constants_are_refused_at_their_place() -> None:
    with pytest.raises(tw.Error, match=r"(?s)test_jax.py.*the element type complex<f32> is not supported"):
        tw.compile(jax.jit(lambda x: jnp.abs(x + 1j)), (normal(3),))


def test_keys_of_random_numbers_are_arguments() -> None:
    """One device has all of a tensor: where JAX wants its parts to be does not matter."""

    def function(key: Any) -> Any:
        return jax.random.normal(key, (5,))

    keys = [jax.random.key(n) for n in range(2)]
    model = tw.compile(jax.jit(function), (keys[0],))
    for key in keys:
        np.testing.assert_allclose(model(jax.random.key_data(key)), function(key), rtol=2e-6, atol=2e-6)


def test_sizes_that_do_not_fit_are_one_error() -> None:
    with pytest.raises(tw.Error, match="no dimension of the inputs has this name"):
        tw.compile(exported(), params={0: WEIGHTS}, dims={"nothing": 3})
    with pytest.raises(tw.Error, match="the weight does not fit"):
        tw.compile(exported(), params={0: {**WEIGHTS, "l2": {"w": normal(3, 3)}}})
    with pytest.raises(tw.Error, match="an exported function has no values"):
        tw.compile(exported(), params=0)
    with pytest.raises(tw.Error, match="needs an example"):
        tw.compile(jax.jit(policy))


def test_damaged_modules_are_errors() -> None:
    data = bytes(exported().mlir_module_serialized)
    for damaged in (data[: len(data) // 2], data[:200] + b"\xff" * 40 + data[240:], b"ML\xefR", "module {\n"):
        with pytest.raises(tw.Error):
            tw.compile(damaged)
    newer = data.replace(b"StableHLO_v1.", b"StableHLO_v9.", 1)[: len(data) // 2]
    with pytest.raises(
        tw.Error, match=r"newer StableHLO than jaxlib reads: expected at most version 1\..*got version 9"
    ):
        tw.compile(newer)


@pytest.mark.parametrize("chosen", [-3, 0, 1, 2, 3, 9])
def test_one_of_several_bodies_runs(chosen: int) -> None:
    """Products, a loop and a sort under an index that data says; the numbers outside mean the last body."""
    w = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)

    def grown(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: jnp.sum(c) < 100, lambda c: c * 2 + 1, jnp.abs(x) + 1)

    def function(p: Any, i: Any, x: Any) -> Any:
        bodies = [lambda x: x @ p, lambda x: jnp.tanh(x @ p.T) + p[0], grown, lambda x: -jnp.sort(x)]
        return jax.lax.switch(i, bodies, x) + jax.lax.cond(x[0, 0] > 0, lambda x: x @ p, lambda x: x, x)

    imported = import_model(jax.jit(function), example=(w, np.int32(1), w), params=0)
    assert [n.op for n in imported.graph.nodes].count("cond") == 4
    model = tw.compile(imported)
    for x in (w, -w):
        np.testing.assert_allclose(model(np.int32(chosen), x), function(w, np.int32(chosen), x), atol=1e-5)
