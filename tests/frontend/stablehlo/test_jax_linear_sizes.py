"""Dimensions that are linear in a symbol which no input has alone, and remainders that JAX states of symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.support.errors import CallError

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
export = pytest.importorskip("jax.export")

Shapes = Sequence[Sequence[int]]
CASES: dict[str, tuple[str, Sequence[str], Callable[..., Any], Sequence[Shapes], Sequence[Shapes]]] = {
    "twice": ("2*b", [], lambda x: x.reshape(2, -1), [[[2]], [[4]], [[14]]], [[[3]], [[0]]]),
    "twice, rows": (
        "2*b, 3",
        [],
        lambda x: jnp.concatenate([x[: x.shape[0] // 2] * 2, x[x.shape[0] // 2 :]]).sum(0),
        [[[2, 3]], [[12, 3]]],
        [[[5, 3]]],
    ),
    "one more": ("b + 1", [], lambda x: x[1:] - x[:-1], [[[2]], [[3]], [[9]]], [[[1]]]),
    "one less": ("b - 1", [], lambda x: x * 2, [[[0]], [[1]], [[6]]], []),
    "odd": ("2*b + 3", [], lambda x: x + jnp.arange(x.shape[0]), [[[5]], [[7]], [[21]]], [[[4]], [[3]]]),
    "odd, halves": (
        "2*b + 3",
        [],
        lambda x: x[3:].reshape(2, (x.shape[0] - 3) // 2).sum(0) * x.shape[0],
        [[[5]], [[7]], [[21]]],
        [[[4]], [[6]]],
    ),
    "two inputs": (
        "2*b; 3*b",
        [],
        lambda x, y: x.reshape(2, -1) @ y.reshape(-1, 3),
        [[[2], [3]], [[10], [15]]],
        [[[4], [3]], [[3], [3]]],
    ),
    "sum": (
        "a + b; b",
        [],
        lambda x, y: x[: y.shape[0]] + y,
        [[[2], [1]], [[9], [4]]],
        [[[3], [3]], [[2], [5]]],
    ),
    "bounded": ("4*b", ["b >= 2", "b <= 5"], lambda x: x.reshape(-1, 4).sum(1), [[[8]], [[20]]], [[[4]], [[24]]]),
    "multiple": ("b", ["mod(b, 2) == 0"], lambda x: x.reshape(2, x.shape[0] // 2), [[[2]], [[8]]], [[[3]]]),
    "remainder": (
        "b",
        ["mod(b, 4) == 1"],
        lambda x: x[1:].reshape(4, x.shape[0] // 4).sum(0),
        [[[5]], [[13]]],
        [[[4]], [[6]]],
    ),
    "multiple of twice": (
        "2*b",
        ["mod(b, 3) == 0"],
        lambda x: x.reshape(3, 2, x.shape[0] // 6).sum(0),
        [[[6]], [[18]]],
        [[[8]], [[3]]],
    ),
    "shares": (
        "b",
        ["mod(b, 4) == 0", "b >= 8"],
        lambda x: x.reshape(x.shape[0] // 4, 4)[:2],
        [[[8]], [[20]]],
        [[[4]], [[10]]],
    ),
    "at most": ("b; c", ["b <= c"], lambda x, y: x + y[: x.shape[0]], [[[2], [2]], [[1], [4]]], [[[3], [2]]]),
    "quotient": (
        "b; c",
        ["floordiv(b, 2) == c"],
        lambda x, y: x[: 2 * y.shape[0]].reshape(2, -1) * y,
        [[[2], [1]], [[7], [3]]],
        [[[4], [1]]],
    ),
}


def arguments(specs: str, constraints: Sequence[str]) -> tuple[Any, ...]:
    """The arguments of shapes that are written with semicolons between them."""
    scope = export.SymbolicScope(constraints)
    shapes = [export.symbolic_shape(s.strip(), scope=scope) for s in specs.split(";")]
    return tuple(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)


def compiled(f: Callable[..., Any], args: tuple[Any, ...], door: str, **options: Any) -> Any:
    if door == "jitted":
        return tw.compile(jax.jit(f), args, **options)
    return tw.compile(export.export(jax.jit(f))(*args), **options)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("door", ["exported", "jitted"])
def test_sizes(name: str, door: str) -> None:
    specs, constraints, f, calls, refused = CASES[name]
    model = compiled(f, arguments(specs, constraints), door)
    for shapes in calls:
        arrays = [np.arange(np.prod(s), dtype=np.float32).reshape(s) for s in shapes]
        np.testing.assert_allclose(jax.tree_util.tree_leaves(model(*arrays))[0], f(*arrays), rtol=1e-6)
    for shapes in refused:
        with pytest.raises(CallError, match=r"assumes|dimension|range"):
            model(*(np.zeros(s, np.float32) for s in shapes))


@pytest.mark.parametrize("door", ["exported", "jitted"])
def test_what_callers_say_is_combined(door: str) -> None:
    twice = arguments("2*b", [])
    model = compiled(lambda x: x.reshape(2, -1), twice, door, dims={"b": tw.dim(2, 8, multiple=2)})
    assert np.asarray(jax.tree_util.tree_leaves(model(np.zeros(8, np.float32)))[0]).shape == (2, 4)
    for size in (2, 6, 20):
        with pytest.raises(CallError):
            model(np.zeros(size, np.float32))
    even = arguments("b", ["mod(b, 2) == 0"])
    model = compiled(lambda x: x.reshape(2, x.shape[0] // 2), even, door, dims={"b": tw.dim(1, 30, multiple=3)})
    assert np.asarray(jax.tree_util.tree_leaves(model(np.zeros(12, np.float32)))[0]).shape == (2, 6)
    for size in (2, 3, 36):
        with pytest.raises(CallError):
            model(np.zeros(size, np.float32))
    fixed = compiled(lambda x: x.reshape(2, -1), twice, door, dims={"b": 3})
    assert np.asarray(jax.tree_util.tree_leaves(fixed(np.zeros(6, np.float32)))[0]).shape == (2, 3)


OWN: dict[str, tuple[str, Callable[..., Any], Sequence[Shapes], Sequence[Shapes]]] = {
    "product": ("a*b; a", lambda x, y: x.reshape(y.shape[0], -1).sum(1) * y, [[[6], [2]], [[20], [5]]], [[[7], [2]]]),
    "product and sum": (
        "a; a*b + 2",
        lambda x, y: y[2:].reshape(x.shape[0], -1).sum(1) + x,
        [[[2], [8]], [[3], [5]]],
        [[[2], [7]], [[2], [2]]],
    ),
    "two in two": (
        "a + 2*b; a + b",
        lambda x, y: x[: y.shape[0]] + y,
        [[[5], [3]], [[9], [5]]],
        [[[3], [3]], [[7], [3]]],
    ),
    "difference": ("a; 2*a - b", lambda x, y: x.sum() + y, [[[2], [3]], [[5], [2]]], [[[2], [4]]]),
}
"""Sizes for which `jax.export` does not solve."""


@pytest.mark.parametrize(
    ("spec", "sizes", "refused"), [("2*b + 1", (3, 5, 9), (0, 2, 4)), ("3*b + 5", (8, 11), (6, 7, 9))]
)
def test_remainders_of_modules_alone(spec: str, sizes: Sequence[int], refused: Sequence[int]) -> None:
    """A module as text has no symbols of its own: its assertions say that `(d + 1) % 2 == 0`."""

    def f(x: Any) -> Any:
        return jnp.outer(x, x).sum(0) * jnp.flip(x, 0) + jnp.concatenate([x[1:], x[:1]])

    model = tw.compile(export.export(jax.jit(f))(*arguments(spec, [])).mlir_module())
    for n in sizes:
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_allclose(jax.tree_util.tree_leaves(model(x))[0], f(x), rtol=1e-6)
    for n in refused:
        with pytest.raises(CallError, match=r"assumes|range"):
            model(np.zeros(n, np.float32))


@pytest.mark.parametrize("name", OWN)
def test_sizes_of_several_symbols(name: str) -> None:
    specs, f, calls, refused = OWN[name]
    model = tw.compile(jax.jit(f), arguments(specs, []))
    for shapes in calls:
        arrays = [np.arange(np.prod(s), dtype=np.float32).reshape(s) for s in shapes]
        np.testing.assert_allclose(jax.tree_util.tree_leaves(model(*arrays))[0], f(*arrays), rtol=1e-6)
    for shapes in refused:
        with pytest.raises(CallError, match="assume"):
            model(*(np.zeros(s, np.float32) for s in shapes))


@pytest.mark.parametrize("specs", ["a*b", "b*b", "a + b", "a*b; a + b"])
def test_sizes_that_are_not_told_are_refused(specs: str) -> None:
    with pytest.raises(tw.errors.UnsupportedError, match="sizes that no input's shape tells"):
        tw.compile(jax.jit(lambda *xs: xs[0] * 2), arguments(specs, []))


def test_a_module_alone() -> None:
    """A bare module computes b of the dimension `2*b + 2`, which calls with less are refused for."""
    f = jax.jit(lambda x: x.reshape(2, -1).sum(0))
    model = tw.compile(export.export(f)(*arguments("2*b + 2", [])).mlir_module())
    for size in (4, 10):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_allclose(jax.tree_util.tree_leaves(model(x))[0], f(x))
    for size in (0, 2, 5):
        with pytest.raises(CallError, match="range"):
            model(np.zeros(size, np.float32))
