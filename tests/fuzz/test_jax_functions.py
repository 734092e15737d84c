"""Random functions of JAX: what they give is what jax.jit gives, for sizes 0 and 1 and odd ones, in several types.

A function is a list of steps on a pool of arrays. `make fuzz` runs TILEWRIGHT_FUZZ_JAX (400) of them.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
jnp = jax.numpy

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ_JAX", "400")) if LONG else 6
TOLERANCE = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 1e-1}

UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "exp": lambda x: jnp.exp(jnp.minimum(x, 2)),
    "log": lambda x: jnp.log(jnp.abs(x) + 0.5),
    "rsqrt": lambda x: jax.lax.rsqrt(jnp.abs(x) + 0.5),
    "sign": jnp.sign,
    "round": jnp.round,
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1, keepdims=True),
    "cumsum": lambda x: jnp.cumsum(x, -1),
    "cumprod": lambda x: jnp.cumprod(jnp.tanh(x), 0),
    "cummax": lambda x: jax.lax.cummax(x, x.ndim - 1),
    "sort": lambda x: jnp.sort(x, -1),
    "argsort": lambda x: jnp.argsort(x, -1).astype(x.dtype),
    "argmax": lambda x: jnp.argmax(x, -1, keepdims=True).astype(x.dtype),
    "top": lambda x: jax.lax.top_k(x, min(2, x.shape[-1]))[0],
    "flip": lambda x: jnp.flip(x, -1),
    "roll": lambda x: jnp.roll(x, 1, 0),
    "pad": lambda x: jnp.pad(x, [(1, 0)] * x.ndim),
    "pad inside": lambda x: jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 1, 1)] * x.ndim),
    "reflect": lambda x: jnp.pad(x, [(0, 1)] * x.ndim, mode="symmetric"),
    "transpose": lambda x: jnp.swapaxes(x, 0, -1),
    "flat": lambda x: x.reshape(-1),
    "more": lambda x: x[None],
    "second": lambda x: x[..., ::2],
    "cut": lambda x: x[1:],
    "dynamic": lambda x: jax.lax.dynamic_slice_in_dim(x, jnp.argmax(x.reshape(-1)), 1, 0),
    "take": lambda x: jnp.take(x, jnp.array([0, -1, 1, 7]), axis=0, mode="clip"),
    "take or fill": lambda x: jnp.take(x, jnp.array([0, 7]), axis=-1, mode="fill", fill_value=0.5),
    "set": lambda x: x.at[0].set(0.5),
    "add at": lambda x: x.at[jnp.array([0, 0, -1])].add(0.25),
    "mean": lambda x: x.mean(0, keepdims=True),
    "var": lambda x: x.var(-1, keepdims=True),
    "prod": lambda x: jnp.tanh(x).prod(0),
    "any": lambda x: (x > 0.3).any(-1).astype(x.dtype),
    "max": lambda x: x.max(-1, keepdims=True, initial=-1.0),
    "norm": lambda x: x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1),
    "int": lambda x: (x * 5).astype(jnp.int32) % 3 * jnp.ones((), x.dtype),
    "shift": lambda x: ((x * 9).astype(jnp.int8) << 2).astype(x.dtype) * 0.01,
    "bits": lambda x: jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) >> 1 << 1, jnp.float32
    ).astype(x.dtype),
    "triangle": lambda x: jnp.tril(x) if x.ndim > 1 else x,
    "scan": lambda x: jax.lax.scan(lambda c, r: (c * 0.5 + r, c + r), x[0], x)[1],
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, v: v * 0.5 + i, x),
    "while": lambda x: jax.lax.while_loop(lambda v: jnp.abs(v).sum() > 1.0, lambda v: v * 0.25, x),
    "cond": lambda x: jax.lax.cond(x.sum() > 0, lambda v: v + 1, lambda v: v * 2, x),
    "window": lambda x: jax.lax.reduce_window(
        x, jnp.zeros((), x.dtype), jax.lax.add, (2,) * x.ndim, (1,) * x.ndim, "SAME"
    ),
    "map": lambda x: jax.vmap(lambda r: r * r.sum())(x),
    "grad": jax.grad(lambda x: (jnp.tanh(x) ** 2).sum()),
    "one hot": lambda x: jax.nn.one_hot(jnp.argmax(x, -1), 3, dtype=x.dtype),
    "clip": lambda x: jnp.clip(x, -0.5, 1.0),
    "nan": lambda x: jnp.nan_to_num(jnp.where(x > 1, jnp.nan, x)),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add,
    "mul": jnp.multiply,
    "sub": jnp.subtract,
    "maximum": jnp.maximum,
    "where": lambda a, b: jnp.where(a > b, a, b * 0.5),
    "concat": lambda a, b: jnp.concatenate([a, b], -1),
    "matmul": lambda a, b: a @ jnp.swapaxes(b, -1, -2) * 0.3,
    "einsum": lambda a, b: jnp.einsum("...i,...i->...", a, b),
    "outer": lambda a, b: a[..., None] * b[..., None, :],
    "atan2": jnp.arctan2,
    "power": lambda a, b: jnp.power(jnp.abs(a) + 0.5, jnp.tanh(b)),
    "div": lambda a, b: a / (jnp.abs(b) + 1),
    "mod": lambda a, b: jnp.mod(a, jnp.abs(b) + 1),
    "gather": lambda a, b: jnp.take_along_axis(a, jnp.zeros((*a.shape[:-1], 1), jnp.int32), -1) + b[..., :1],
}
Step = tuple[Callable[..., Any], tuple[int, ...], str]


def drawn(seed: int) -> tuple[list[Step], list[int], list[Any]]:
    """Steps, the places of the results, and the arguments."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    kind = rng.choice((jnp.float32, jnp.float32, jnp.float16, jnp.bfloat16))
    sizes = [
        rng.choice((0, 1, 2, 3, 5, 8) if rng.random() < 0.2 else (1, 2, 3, 5, 8)) for _ in range(rng.randint(1, 3))
    ]
    inputs = [jnp.asarray(numbers.standard_normal(sizes), kind) for _ in range(rng.randint(1, 2))]
    # All arguments are read: JAX drops those that are not.
    steps: list[Step] = [(lambda *all: sum(all) * 0.5, tuple(range(len(inputs))), "sum")]
    pool, wanted = [*inputs, steps[0][0](*inputs)], rng.randint(2, 8)
    for _ in range(8 * wanted):
        if len(steps) == wanted:
            break
        two = rng.random() < 0.3
        name = rng.choice(list(BINARY if two else UNARY))
        f: Callable[..., Any] = BINARY[name] if two else UNARY[name]
        places = tuple(rng.randrange(len(pool)) for _ in range(1 + two))
        try:
            created = f(*(pool[k] for k in places))
        except Exception:  # shapes that do not fit
            continue
        values = np.asarray(created, np.float32)
        if values.size > 5000 or not np.isfinite(values).all() or np.abs(values).max(initial=0) > 100:
            continue
        pool.append(created)
        steps.append((f, places, name))
    retained = [len(inputs), *rng.sample(range(len(inputs), len(pool)), min(len(steps), rng.randint(1, 2)))]
    return steps, retained, inputs


def check(seed: int) -> str:
    """ "right", "refused: why", "wrong: how" or "crashed: how"."""
    steps, retained, inputs = drawn(seed)
    if not retained:
        return "left out"

    def function(*arguments: Any) -> Any:
        pool = list(arguments)
        for f, places, _ in steps:
            pool.append(f(*(pool[k] for k in places)))
        return tuple(pool[k] for k in retained)

    jitted = jax.jit(function)
    want = jitted(*inputs)
    try:
        got = tw.compile(jitted, tuple(inputs))(*inputs)
    except tw.Error as error:
        return f"refused: {' '.join(str(error).split())[:250]}"
    except Exception as error:
        return f"crashed: {type(error).__name__}: {str(error)[:250]}"
    return differs(list(got) if isinstance(got, tuple | list) else [got], want)


def differs(got: list[Any], want: Any) -> str:
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"wrong: result {k} is {a.dtype}{a.shape}, expected {b.dtype}{b.shape}"
        x, y = np.asarray(a, np.float32), np.asarray(b, np.float32)
        limit = TOLERANCE.get(str(b.dtype), 1e-6)
        if not np.allclose(x, y, rtol=limit, atol=limit * max(1.0, float(np.abs(y).max(initial=0))), equal_nan=True):
            return f"wrong: result {k}: {x.ravel()[:8]} for {y.ravel()[:8]}"
    return "right"


def text(seed: int) -> str:
    steps, retained, inputs = drawn(seed)
    shapes = ", ".join(f"{g.dtype}{list(g.shape)}" for g in inputs)
    return f"({shapes}) " + "; ".join(f"{name}{list(places)}" for _, places, name in steps) + f" -> {retained}"


def test_random_functions() -> None:
    result = {seed: check(seed) for seed in range(FIRST, FIRST + COUNT)}
    faults = [f"seed {s}: {text(s)}: {f}" for s, f in result.items() if f.startswith(("wrong", "crashed"))]
    assert not faults, "\n".join(faults)
    assert sum(f == "right" for f in result.values()) > 0.7 * COUNT


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        outcome = check(seed)
        if not outcome.startswith(("right", "left out")):
            print(seed, text(seed), "|", " ".join(outcome.split()), flush=True)
    print("done")
