"""Random functions of JAX on symbolic sizes, jitted and exported, with constraints and without."""

# ruff: noqa: B008  numbers are drawn when a step is
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import tilewright as tw
from tests.fuzz.test_jax_functions import BINARY, UNARY

Random = random.Random
MORE: dict[str, Callable[[Random], Callable[..., Any]]] = {
    "cut": lambda rng: lambda x, k=rng.randint(-3, 3), e=rng.choice((None, 2, 5, -1)): x[k:e],
    "steps": lambda rng: lambda x, k=rng.choice((2, 3, -1, -2)): x[::k],
    "static": lambda rng: lambda x, k=rng.randint(0, 3): jax.lax.slice_in_dim(x, k, k + 2),
    "pad": lambda rng: (
        lambda x, p=(rng.randint(-2, 3), rng.randint(-2, 3), rng.randint(0, 1)): jax.lax.pad(
            x, jnp.zeros((), x.dtype), [p] + [(0, 0, 0)] * (x.ndim - 1)
        )
    ),
    "window": lambda rng: (
        lambda x, k=rng.randint(1, 4), s=rng.randint(1, 3): jax.lax.reduce_window(
            x,
            -jnp.inf,
            jax.lax.max,
            (k,) + (1,) * (x.ndim - 1),
            (s,) + (1,) * (x.ndim - 1),
            rng.choice(("SAME", "VALID")),
        )
    ),
    "first": lambda rng: lambda x: x[0][None] + x[-1:],
    "flat": lambda rng: lambda x: x.reshape(-1),
    "pairs": lambda rng: lambda x: x.reshape(2, -1),
    "rows": lambda rng: lambda x: jnp.concatenate([x[1:], x[:1]]),
    "counting": lambda rng: lambda x: jnp.arange(x.shape[0], dtype=x.dtype),
    "more": lambda rng: lambda x: jnp.broadcast_to(x, (x.shape[0] + 1, *x.shape)),
    "top": lambda rng: lambda x, k=rng.randint(1, 3): jax.lax.top_k(x, k)[0],
    "gram": lambda rng: lambda x: x.reshape(x.shape[0], -1) @ x.reshape(x.shape[0], -1).T,
    "repeat": lambda rng: lambda x, k=rng.randint(0, 3): jnp.tile(x, (k,) + (1,) * (x.ndim - 1)),
    "conv": lambda rng: lambda x, k=rng.randint(1, 4): jnp.convolve(x.reshape(-1), jnp.ones(k, x.dtype), "same"),
}
BY_DATA: dict[str, Callable[..., Any]] = {
    "take": lambda x, ids: jnp.take(x, ids, axis=0, mode="clip"),
    "take or fill": lambda x, ids: jnp.take(x, ids, axis=0, mode="fill", fill_value=0.5),
    "promised": lambda x, ids: x.at[ids].get(mode="promise_in_bounds"),
    "take last": lambda x, ids: jnp.take(x, ids, axis=-1, mode="wrap"),
    "slice": lambda x, ids: jax.lax.dynamic_slice_in_dim(x, ids.sum(), 1, 0),
    "update": lambda x, ids: jax.lax.dynamic_update_slice(x, x[:1], (ids.sum(),) + (0,) * (x.ndim - 1)),
    "add at": lambda x, ids: x.at[ids].add(0.5),
    "set at": lambda x, ids: x.at[ids].set(0.5, mode="drop"),
    "segments": lambda x, ids: jax.ops.segment_sum(x, jnp.resize(ids, x.shape[:1]), num_segments=4),
}
SHAPES = ("b, {w}", "b, {w}", "b", "2*b, {w}", "b + 1, {w}", "b, c", "b, 2, c")
CONSTRAINTS: tuple[tuple[str, ...], ...] = (
    (),
    (),
    (),
    ("b >= 2",),
    ("b <= 40", "c >= 3"),
    ("mod(b, 2) == 0",),
    ("c <= b",),
)


def drawn(seed: int) -> tuple[Callable[..., Any], list[Any], list[str]]:
    """A function, its arguments as shapes, and the names of its steps."""
    rng = Random(seed)
    scope = export.SymbolicScope(rng.choice(CONSTRAINTS))
    shape = export.symbolic_shape(rng.choice(SHAPES).format(w=rng.choice((1, 3, 4, 8))), scope=scope)
    (c,) = export.symbolic_shape("c", scope=scope)
    inputs = [jax.ShapeDtypeStruct(shape, np.float32), jax.ShapeDtypeStruct((c,), np.int32)]
    steps: list[tuple[str, Callable[..., Any], tuple[int, ...]]] = []
    pool: list[Any] = list(inputs)
    wanted = rng.randint(1, 5)
    for _ in range(8 * wanted):
        if len(steps) == wanted:
            break
        floats = [k for k in range(len(pool)) if k != 1]
        place, kind = rng.choice(floats[-3:]), rng.random()
        if kind < 0.35:
            name = rng.choice(list(UNARY))
            f, places = UNARY[name], (place,)
        elif kind < 0.65:
            name = rng.choice(list(MORE))
            f, places = MORE[name](rng), (place,)
        elif kind < 0.85:
            name = rng.choice(list(BY_DATA))
            f, places = BY_DATA[name], (place, 1)
        else:
            name = rng.choice(list(BINARY))
            f, places = BINARY[name], (place, rng.choice(floats))
        try:
            created = jax.eval_shape(f, *(pool[k] for k in places))
        except Exception:  # not for such shapes
            continue
        if created.dtype != np.float32 or len(created.shape) > 3:
            continue
        steps.append((name, f, places))
        pool.append(created)

    return chained(steps), inputs, [name for name, _, _ in steps]


def chained(steps: Sequence[tuple[str, Callable[..., Any], tuple[int, ...]]]) -> Callable[[Any, Any], Any]:
    """A function of numbers and indices by its steps: the name of each, what it does, and which values it reads."""

    def function(x: Any, ids: Any) -> Any:
        values = [x, ids]
        for _, f, places in steps:
            values.append(f(*(values[k] for k in places)))
        return values[-1], values[len(values) // 2] * 1, ids + 0

    return function


def exported_model(seed: int, function: Callable[..., Any], inputs: Sequence[Any], threads: int) -> tuple[Any, Any]:
    """The export of a function by JAX, and its model by the door of the seed. Raises Error where either refuses it."""
    jitted = jax.jit(function)
    try:
        exported = export.export(jitted)(*inputs)
    except Exception as error:  # JAX takes no such function
        raise tw.Error(str(error)) from None
    door = seed % 3
    if door == 0:
        return exported, tw.compile(exported, threads=threads)
    if door == 1:
        return exported, tw.compile(jitted, tuple(inputs), threads=threads)
    return exported, tw.compile(exported.mlir_module(), threads=threads)


def text(seed: int) -> str:
    """The text of a function."""
    _, inputs, steps = drawn(seed)
    return f"{inputs[0].shape}: {', '.join(steps)}"


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the function of a seed where b is n and c is m. ModelError where it is refused."""
    function, inputs, _ = drawn(seed)
    _, model = exported_model(seed, function, inputs, threads)
    shapes = [[d if isinstance(d, int) else str(d) for d in g.shape] for g in inputs]

    def call(n: int, m: int) -> Any:
        rng = np.random.default_rng(n)
        sizes = {"b": n, "c": m, "2*b": 2 * n, "b + 1": n + 1}
        one, two = (tuple(d if isinstance(d, int) else sizes[d] for d in shape) for shape in shapes)
        most = (max(n, 1), 3, 1 << 31)[m % 3]
        return model(rng.standard_normal(one).astype(np.float32), rng.integers(-most, most, two).astype(np.int32))

    return call
