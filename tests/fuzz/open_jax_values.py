"""Random functions of JAX on symbolic sizes in several types, whose results are compared with JAX's from size 0 up.

Numbers are small multiples of a quarter, so that most steps are exact: ties of sorts, signs of zeros and rounding to
the even one are what is compared. Integers are compared bit by bit.
"""

# ruff: noqa: B008  numbers are drawn when a step is
from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax

import tilewright as tw
from tests.fuzz import guarded, jax_steps
from tests.fuzz.compared import differs
from tests.fuzz.open_jax import chained, exported_model

Random = random.Random
Step = Callable[..., Any]

FLOATS = (np.float32, np.float32, jnp.bfloat16, np.float16)
INTEGERS = (np.int32, np.int32, np.int8, np.uint8, np.int16, np.uint16, np.uint32)
TOLERANCE = {"float32": 3e-6, "float16": 4e-3, "bfloat16": 4e-2}
SHAPES = ("b, {w}", "b, {w}", "b", "2*b, {w}", "b + 1, {w}", "b, c", "{w}, b", "b, 2, c", "2*b + 1", "b, b")
MORE_SHAPES = ("b, b*c", "b, b + c", "b, c, {w}", "b, 3*b + 2", "b, max(b, c)", "b, floordiv(b, 2)", "b, mod(b, 3) + 1")
CONSTRAINTS: tuple[tuple[str, ...], ...] = ((), (), (), (), ("b >= 2",), ("mod(b, 2) == 0",), ("c <= b",), ("b <= 9",))
SIZES = ((1, 1), (2, 4), (5, 3), (0, 3), (4, 9))
MODES = ("clip", "fill", "wrap", "promise_in_bounds", "drop")


def shift(x: Any) -> Any:
    """Amounts of shifting that are below, at and beyond the width of the type."""
    return (jnp.abs(x.astype(jnp.int32)) % 40).astype(x.dtype)


def bits(x: Any) -> Any:
    """An array of floats as its bits."""
    return lax.bitcast_convert_type(x, {2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize])


def along(x: Any, k: int, **more: Any) -> Any:
    return lax.dynamic_slice_in_dim(x, k, min(2, x.shape[0]) if isinstance(x.shape[0], int) else 1, 0, **more)


ANY: dict[str, Callable[[Random], Step]] = {
    "cut": lambda rng: lambda x, k=rng.randint(-3, 3), e=rng.choice((None, 2, 5, -1)): x[k:e],
    "steps": lambda rng: lambda x, k=rng.choice((2, 3, -1, -2)): x[::k],
    "last": lambda rng: lambda x: x[-1:],
    "half": lambda rng: lambda x: x[: x.shape[0] // 2],
    "but one": lambda rng: lambda x: x[: x.shape[0] - 1],
    "flip": lambda rng: lambda x, a=rng.choice((0, -1)): jnp.flip(x, a),
    "roll": lambda rng: lambda x, k=rng.randint(-3, 3), a=rng.choice((0, -1)): jnp.roll(x, k, a),
    "pad": lambda rng: (
        lambda x, p=(rng.randint(-2, 3), rng.randint(-2, 3), rng.randint(0, 2)): lax.pad(
            x, jnp.ones((), x.dtype), [p] + [(0, 0, 0)] * (x.ndim - 1)
        )
    ),
    "pad by size": lambda rng: lambda x: jnp.pad(x, [(0, x.shape[0])] + [(0, 0)] * (x.ndim - 1)),
    "swap": lambda rng: lambda x: jnp.swapaxes(x, 0, -1),
    "flat": lambda rng: lambda x: x.reshape(-1),
    "pairs": lambda rng: lambda x: x.reshape(2, -1),
    "rows of two": lambda rng: lambda x: x.reshape(-1, 2),
    "rows": lambda rng: lambda x: jnp.concatenate([x[1:], x[:1]]),
    "twice": lambda rng: lambda x, a=rng.choice((0, -1)): jnp.concatenate([x, x], a),
    "stack": lambda rng: lambda x, a=rng.choice((0, -1)): jnp.stack([x, jnp.flip(x, 0)], a),
    "more": lambda rng: lambda x: jnp.broadcast_to(x, (x.shape[0] + 1, *x.shape)),
    "repeat": lambda rng: lambda x, k=rng.randint(1, 3), a=rng.choice((0, -1)): jnp.repeat(x, k, a),
    "tile": lambda rng: lambda x, k=rng.randint(0, 3): jnp.tile(x, (k,) + (1,) * (x.ndim - 1)),
    "triangle": lambda rng: lambda x, k=rng.randint(-2, 2), f=rng.choice((jnp.tril, jnp.triu)): f(x, k),
    "diagonal": lambda rng: lambda x, k=rng.randint(-1, 1): jnp.diagonal(x, k),
    "eye": lambda rng: lambda x, k=rng.randint(-1, 1): jnp.eye(x.shape[0], k=k, dtype=x.dtype),
    "counting": lambda rng: lambda x: jnp.arange(x.shape[0]).astype(x.dtype),
    "size": lambda rng: lambda x: x + jnp.array(x.shape[0]).astype(x.dtype),
    "iota": lambda rng: lambda x, a=rng.choice((0, -1)): lax.broadcasted_iota(x.dtype, x.shape, a % x.ndim),
    "sum": lambda rng: lambda x, a=rng.choice((0, -1, None)): jnp.sum(x, a, keepdims=True, dtype=x.dtype),
    "max": lambda rng: lambda x, a=rng.choice((0, -1)), f=rng.choice((jnp.max, jnp.min)): f(x, a, initial=1),
    "argmax": lambda rng: lambda x, a=rng.choice((0, -1)), f=rng.choice((jnp.argmax, jnp.argmin)): f(x, a),
    "any": lambda rng: lambda x, a=rng.choice((0, -1)), f=rng.choice((jnp.any, jnp.all)): f(x > 0, a, keepdims=True),
    "count": lambda rng: lambda x, a=rng.choice((0, -1, None)): jnp.count_nonzero(x, a),
    "cumsum": lambda rng: lambda x, a=rng.choice((0, 1)), r=rng.random() < 0.4: lax.cumsum(x, a % x.ndim, reverse=r),
    "cumprod": lambda rng: lambda x, r=rng.random() < 0.4: lax.cumprod(jnp.sign(x), 0, reverse=r),
    "cummax": lambda rng: (
        lambda x, f=rng.choice((lax.cummax, lax.cummin)), a=rng.choice((0, 1)), r=rng.random() < 0.4: f(
            x, a % x.ndim, reverse=r
        )
    ),
    "sort": lambda rng: lambda x, a=rng.choice((0, -1)), d=rng.random() < 0.4: jnp.sort(x, a, descending=d),
    "argsort": lambda rng: lambda x, a=rng.choice((0, -1)), d=rng.random() < 0.4: jnp.argsort(x, a, descending=d),
    "sort two": lambda rng: (
        lambda x, k=rng.randint(1, 2): sum(
            a.astype(jnp.int32) * n
            for n, a in enumerate(
                lax.sort((x, jnp.flip(x, 0), lax.broadcasted_iota(jnp.int32, x.shape, 0)), dimension=0, num_keys=k), 1
            )
        )
    ),
    "top": lambda rng: lambda x, k=rng.randint(1, 3), i=rng.randint(0, 1): lax.top_k(x, k)[i],
    "search": lambda rng: (
        lambda x, s=rng.choice(("left", "right")): jnp.searchsorted(jnp.sort(x.reshape(-1)), x.reshape(-1), side=s)
    ),
    "segments": lambda rng: (
        lambda x, f=rng.choice((jax.ops.segment_sum, jax.ops.segment_max, jax.ops.segment_min)): f(
            x, jnp.arange(x.shape[0]) % 3 - 0, num_segments=4
        )
    ),
    "bins": lambda rng: lambda x: jnp.bincount(jnp.clip(x.reshape(-1), 0, 5).astype(jnp.int32), length=5),
    "one hot": lambda rng: lambda x: jax.nn.one_hot(x.astype(jnp.int32), 3, dtype=x.dtype),
    "scan": lambda rng: (
        lambda x, r=rng.random() < 0.5: lax.scan(lambda c, e: (c + e, c * 2 + e), x[0], x, reverse=r)[1]
    ),
    "scan out": lambda rng: lambda x: lax.scan(lambda c, e: (jnp.maximum(c, e), ()), jnp.zeros_like(x[0]), x)[0],
    "for": lambda rng: lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], jnp.zeros_like(x[0])),
    "for from": lambda rng: lambda x: lax.fori_loop(2, x.shape[0], lambda i, c: c.at[i].add(c[i - 1]), x),
    "while": lambda rng: (
        lambda x: lax.while_loop(
            lambda s: s[0] < x.shape[0], lambda s: (s[0] + 1, s[1] + x.sum(dtype=x.dtype)), (0, x)
        )[1]
    ),
    "while data": lambda rng: (
        lambda x: lax.while_loop(
            lambda s: (s[1].astype(jnp.float32).sum() > 0) & (s[0] < 7), lambda s: (s[0] + 1, s[1] - 1), (0, x)
        )[1]
    ),
    "map": lambda rng: lambda x: lax.map(lambda e: e * e.sum(dtype=e.dtype), x),
    "cond": lambda rng: lambda x: lax.cond(x.sum() > 1, lambda v: v + v, lambda v: v[::-1], x),
    "cond size": lambda rng: lambda x: lax.cond(jnp.array(x.shape[0]) > 2, lambda v: v + v, lambda v: v * v, x),
    "switch": lambda rng: (
        lambda x, k=rng.randint(-1, 4): lax.switch(x.size * 0 + k, [lambda v: v, lambda v: v + v, lambda v: v[::-1]], x)
    ),
    "vmap": lambda rng: lambda x: jax.vmap(lambda r: jnp.cumsum(r[::-1], dtype=r.dtype) if r.ndim else r + r)(x),
    "slice": lambda rng: lambda x, k=rng.randint(-9, 9): along(x, k),
    "slice by data": lambda rng: lambda x: along(x, x.sum().astype(jnp.int32)),
    "update": lambda rng: (
        lambda x, k=rng.randint(-9, 9): lax.dynamic_update_slice(x, x[:1] + 1, (k,) + (0,) * (x.ndim - 1))
    ),
    "index": lambda rng: lambda x, k=rng.randint(-3, 3): x[k],
    "dynamic index": lambda rng: (
        lambda x, k=rng.randint(-9, 9): lax.dynamic_index_in_dim(x, x.shape[0] + k, 0, keepdims=True)
    ),
    "where": lambda rng: lambda x: jnp.where(x > 1, x, x[:1]),
    "clamp": lambda rng: lambda x: lax.clamp(jnp.asarray(1, x.dtype), x, jnp.asarray(3, x.dtype)),
    "gram": lambda rng: lambda x: x.reshape(x.shape[0], -1) @ x.reshape(x.shape[0], -1).T,
    "dot": lambda rng: (
        lambda x: lax.dot_general(x, x, (((0,), (0,)), ((), ())), preferred_element_type=_wide(x.dtype)).astype(x.dtype)
    ),
    "window": lambda rng: _window(rng),
    "reduce": lambda rng: (
        lambda x, f=rng.choice((lax.max, lax.min, lax.add, lax.mul)): lax.reduce(
            jnp.sign(x), _neutral(f, x.dtype), f, (0,)
        )
    ),
    "map at": lambda rng: lambda x: x.at[0].set(2),
    "stride at": lambda rng: lambda x, k=rng.choice((2, 3)): x.at[::k].add(1),
    "prng": lambda rng: (
        lambda x, s=rng.randrange(9): x + (jax.random.bits(jax.random.key(s), x.shape, jnp.uint32) % 3).astype(x.dtype)
    ),
    "randint": lambda rng: (
        lambda x: jax.random.randint(jax.random.fold_in(jax.random.key(3), 5), (x.shape[0], 2), -4, 9).astype(x.dtype)
    ),
    "cast": lambda rng: lambda x, t=rng.choice((*FLOATS, *INTEGERS)): x.astype(t),
    "as bool": lambda rng: lambda x: (x > 0).astype(x.dtype),
    "conv": lambda rng: (
        lambda x, k=rng.randint(1, 4), m=rng.choice(("same", "full", "valid")): jnp.convolve(
            x.reshape(-1), jnp.arange(k).astype(x.dtype), m
        )
    ),
    "meshgrid": lambda rng: lambda x: jnp.meshgrid(x.reshape(-1), jnp.arange(3).astype(x.dtype))[0],
    "outer": lambda rng: lambda x: x[:, None] * x[None],
    "split": lambda rng: lambda x: jnp.split(x, 2)[1],
    "mean": lambda rng: lambda x, a=rng.choice((0, -1)): jnp.mean(x, a, keepdims=True).astype(x.dtype),
    "grad": lambda rng: jax.grad(lambda x: (jnp.cumsum(x * x, 0)[::2] * 2).sum().astype(jnp.float32)),
    "grad max": lambda rng: jax.grad(lambda x: (jnp.sort(x, 0)[1:] * x[:-1]).sum().astype(jnp.float32)),
    "interp": lambda rng: (
        lambda x: jnp.interp(x, jnp.array([-1.0, 0.0, 2.0]), jnp.array([0.0, 1.0, 4.0])).astype(x.dtype)
    ),
}
FLOATING: dict[str, Callable[[Random], Step]] = {
    "tanh": lambda rng: jnp.tanh,
    "softmax": lambda rng: lambda x, a=rng.choice((0, -1)): jax.nn.softmax(x, a),
    "logsumexp": lambda rng: lambda x: jax.nn.logsumexp(x, 0),
    "layer": lambda rng: lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1),
    "round": lambda rng: lambda x, f=rng.choice((jnp.round, jnp.floor, jnp.ceil, jnp.trunc)): f(x),
    "round away": lambda rng: lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "bits": lambda rng: lambda x: bits(x),
    "sign": lambda rng: jnp.signbit,
    "next": lambda rng: lambda x: jnp.nextafter(x, jnp.ones((), x.dtype) * 9),
    "infinite": lambda rng: lambda x: x / jnp.where(x == 1, 0, x),
    "is": lambda rng: lambda x: jnp.isfinite(x / x),
    "precision": lambda rng: lambda x: lax.reduce_precision(x / 3, 5, 2),
    "mod": lambda rng: lambda x, k=rng.choice((0.75, -0.75, 0.0)): jnp.mod(x, jnp.asarray(k, x.dtype)),
    "rem": lambda rng: lambda x, k=rng.choice((0.75, -0.75, 0.0)): lax.rem(x, jnp.full_like(x, k)),
    "pow": lambda rng: lambda x, k=rng.choice((-2, 0, 3)): lax.integer_pow(x, k),
    "power": lambda rng: lambda x: jnp.power(x, jnp.asarray(2.0, x.dtype)),
    "nan sort": lambda rng: lambda x: jnp.sort(jnp.where(x > 1, jnp.nan, x), 0),
    "nan max": lambda rng: lambda x: jnp.where(x > 1, jnp.nan, x).max(0, initial=-9),
    "nan argmax": lambda rng: lambda x: jnp.argmax(jnp.where(x > 1, jnp.nan, x), 0),
    "zeros sort": lambda rng: lambda x: jnp.signbit(jnp.sort(jnp.where(x > 1, -0.0, jnp.where(x < 0, 0.0, x)), 0)),
    "wide": lambda rng: lambda x: (x * 3e5).astype(rng.choice((jnp.int8, jnp.uint8, jnp.int32, jnp.uint16))),
    "nan int": lambda rng: (
        lambda x, t=rng.choice((jnp.int8, jnp.uint8, jnp.int32)): (x / jnp.abs(jnp.trunc(x))).astype(t)
    ),
    "erf": lambda rng: (
        lambda x, f=rng.choice((lax.erf, lax.expm1, lax.log1p, lax.atan2, lax.cbrt)): (
            f(x, x) if f is lax.atan2 else f(jnp.abs(x))
        )
    ),
    "relu": lambda rng: jax.nn.relu,
    "logaddexp": lambda rng: lambda x: jnp.logaddexp(x, x[::-1]),
    "cumlogsumexp": lambda rng: lambda x: lax.cumlogsumexp(x, 0),
    "normal": lambda rng: lambda x: x + jax.random.uniform(jax.random.key(1), x.shape, x.dtype),
    "choice": lambda rng: lambda x: jax.random.bernoulli(jax.random.key(1), 0.5, x.shape).astype(x.dtype),
    "permutation": lambda rng: lambda x: jax.random.normal(jax.random.key(4), (x.shape[0],), x.dtype),
    "fft": lambda rng: lambda x: jnp.abs(jnp.fft.fft(x, axis=0)).astype(x.dtype),
    "quantile": lambda rng: lambda x: jnp.median(x, 0),
    "solve": lambda rng: (
        lambda x: lax.linalg.triangular_solve(jnp.eye(x.shape[-1], dtype=x.dtype) * 2, x, left_side=False, lower=True)
    ),
}
INTEGER: dict[str, Callable[[Random], Step]] = {
    "div": lambda rng: lambda x: lax.div(x, jnp.flip(x, 0)),
    "rem": lambda rng: lambda x: lax.rem(x, jnp.flip(x, 0)),
    "floor div": lambda rng: lambda x: x // jnp.flip(x, 0),
    "mod": lambda rng: lambda x: x % jnp.flip(x, 0),
    "abs": lambda rng: lambda x: jnp.abs(jnp.full_like(x, jnp.iinfo(x.dtype).min)) + x,
    "neg": lambda rng: lambda x: -x,
    "not": lambda rng: lambda x: ~x,
    "shifts": lambda rng: (
        lambda x, f=rng.choice((lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic)): f(x, shift(x))
    ),
    "logic": lambda rng: lambda x, f=rng.choice((jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor)): f(x, x[::-1]),
    "reduce bits": lambda rng: (
        lambda x, f=rng.choice((jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor)): f.reduce(x, 0)
    ),
    "ones": lambda rng: lax.population_count,
    "zeros": lambda rng: lax.clz,
    "pow": lambda rng: lambda x, k=rng.randint(0, 9): lax.integer_pow(x, k),
    "powers": lambda rng: lambda x: jnp.power(x, jnp.abs(jnp.flip(x, 0))),
    "bytes": lambda rng: lambda x: lax.bitcast_convert_type(x, jnp.uint8),
    "floats": lambda rng: lambda x: lax.bitcast_convert_type(x.astype(jnp.uint32), jnp.float32),
    "prod": lambda rng: lambda x: jnp.prod(x, 0, dtype=x.dtype),
    "square": lambda rng: lambda x: x * x * x * 77,
    "packed": lambda rng: lambda x: jnp.packbits(x > 0, axis=0),
    "unpacked": lambda rng: lambda x: jnp.unpackbits(x, axis=0),
    "average": lambda rng: lambda x: jnp.mean(x, 0),
}
BY_DATA: dict[str, Callable[[Random], Step]] = {
    "take": lambda rng: (
        lambda x, ids, m=rng.choice(("clip", "fill", "wrap")), a=rng.choice((0, -1)): jnp.take(x, ids, a, mode=m)
    ),
    "get": lambda rng: lambda x, ids, m=rng.choice(MODES[:2]): x.at[ids].get(mode=m, fill_value=1),
    "get wrapped": lambda rng: lambda x, ids: x[ids],
    "get two": lambda rng: lambda x, ids, m=rng.choice(MODES[:2]): x.at[ids, ids].get(mode=m),
    "get tail": lambda rng: lambda x, ids, m=rng.choice(MODES[:2]): x.at[..., ids].get(mode=m),
    "set": lambda rng: lambda x, ids, m=rng.choice(("clip", "drop")): x.at[ids].set(1, mode=m),
    "add": lambda rng: lambda x, ids, m=rng.choice(("clip", "drop")): x.at[ids].add(1, mode=m),
    "mul": lambda rng: lambda x, ids, m=rng.choice(("clip", "drop")): x.at[ids].mul(2, mode=m),
    "min": lambda rng: lambda x, ids, m=rng.choice(("clip", "drop")): x.at[ids].min(1, mode=m),
    "max": lambda rng: lambda x, ids, m=rng.choice(("clip", "drop")): x.at[..., ids].max(1, mode=m),
    "apply": lambda rng: lambda x, ids: x.at[ids].apply(lambda v: v + v),
    "along": lambda rng: (
        lambda x, ids, m=rng.choice(("clip", "fill")): jnp.take_along_axis(
            x, ids.reshape((-1,) + (1,) * (x.ndim - 1)), 0, mode=m
        )
    ),
    "slice": lambda rng: lambda x, ids: lax.dynamic_slice_in_dim(x, ids.sum(), 1, 0),
    "two slices": lambda rng: lambda x, ids: jax.vmap(lambda k: lax.dynamic_slice_in_dim(x, k, 1, 0))(ids),
    "update": lambda rng: lambda x, ids: lax.dynamic_update_slice(x, x[:1] + 1, (ids.sum(),) + (0,) * (x.ndim - 1)),
    "segments": lambda rng: (
        lambda x, ids, f=rng.choice((jax.ops.segment_sum, jax.ops.segment_max, jax.ops.segment_prod)): f(
            jnp.sign(x), jnp.resize(ids, x.shape[:1]), num_segments=4
        )
    ),
    "bins": lambda rng: lambda x, ids: jnp.bincount(ids, length=4).astype(x.dtype),
    "switch": lambda rng: lambda x, ids: lax.switch(ids.sum(), [lambda v: v, lambda v: v + v, lambda v: v[::-1]], x),
    "rows": lambda rng: lambda x, ids: lax.map(lambda k: x.at[k].get(mode="clip"), ids),
    "one hot": lambda rng: lambda x, ids: jax.nn.one_hot(ids, 4, dtype=x.dtype),
    "scatter": lambda rng: _scatter(rng),
    "loop": lambda rng: lambda x, ids: lax.fori_loop(0, ids.shape[0], lambda i, c: c.at[ids[i]].add(1), x),
    "scan": lambda rng: lambda x, ids: lax.scan(lambda c, k: (c.at[k].mul(2), c[:1]), x, ids)[1],
}
BINARY: dict[str, Step] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "where": lambda a, b: jnp.where(a > b, a, b),
    "equal": lambda a, b: (a == b).astype(a.dtype),
    "concat": lambda a, b: jnp.concatenate([a, b], 0),
    "concat last": lambda a, b: jnp.concatenate([a, b], -1),
    "matmul": lambda a, b: a @ jnp.swapaxes(b, -1, -2),
    "matmul in": lambda a, b: a.T @ b,
    "dot": lambda a, b: jnp.einsum("i...,i...->i", a, b),
    "outer": lambda a, b: a[..., None] * b.reshape(-1),
    "kron": jnp.kron,
}


def _window(rng: Random) -> Step:
    """A reduction over windows of rows."""
    f, k, s = rng.choice((lax.add, lax.max, lax.min, lax.mul)), rng.randint(1, 3), rng.randint(1, 3)
    pads = rng.choice(("SAME", "VALID", (1, 0), (0, 2), (-1, 1)))
    dilation, spread = rng.randint(1, 2), rng.choice((1, 1, 2))

    def run(x: Any) -> Any:
        first = [(n,) + (1,) * (x.ndim - 1) for n in (k, s, spread, dilation)]
        padding = pads if isinstance(pads, str) else [pads] + [(0, 0)] * (x.ndim - 1)
        return lax.reduce_window(x, _neutral(f, x.dtype), f, *first[:2], padding, *first[2:])

    return run


def _scatter(rng: Random) -> Step:
    """A scatter of whole rows."""
    f = rng.choice((lax.scatter_add, lax.scatter_max, lax.scatter_min, lax.scatter_mul))
    mode = rng.choice(("clip", "drop"))

    def run(x: Any, ids: Any) -> Any:
        rows = lax.ScatterDimensionNumbers(tuple(range(1, x.ndim)), (0,), (0,))
        return f(x, ids[:, None], jnp.full((ids.shape[0], *x.shape[1:]), 2, x.dtype), rows, mode=mode)

    return run


def _wide(dtype: Any) -> Any:
    return dtype if dtype.itemsize >= 4 else jnp.int32 if jnp.issubdtype(dtype, jnp.integer) else jnp.float32


def _neutral(f: Any, dtype: Any) -> Any:
    """The value that changes nothing."""
    if f in (lax.add, lax.mul):
        return np.asarray(int(f is lax.mul), dtype)
    integer = jnp.issubdtype(dtype, jnp.integer)
    ends = (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max) if integer else (-np.inf, np.inf)
    return np.asarray(ends[f is lax.min], dtype)


def drawn(seed: int) -> tuple[Callable[..., Any], list[Any], list[str]]:
    """A function, its arguments as shapes, and the names of its steps."""
    rng = Random(seed)
    scope = export.SymbolicScope(rng.choice(CONSTRAINTS))
    shapes = (SHAPES, MORE_SHAPES)[rng.random() < 0.3]
    shape = export.symbolic_shape(rng.choice(shapes).format(w=rng.choice((1, 3, 4, 8))), scope=scope)
    (c,) = export.symbolic_shape("c", scope=scope)
    dtype = rng.choice(FLOATS if rng.random() < 0.6 else INTEGERS)
    inputs = [jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct((c,), np.int32)]
    steps: list[tuple[str, Step, tuple[int, ...]]] = []
    pool: list[Any] = list(inputs)
    wanted = rng.randint(1, 5)
    for _ in range(10 * wanted):
        if len(steps) == wanted:
            break
        place = rng.choice([k for k in range(len(pool)) if k != 1][-3:])
        floating = jnp.issubdtype(pool[place].dtype, jnp.floating)
        tables = (jax_steps.STEPS, ANY, FLOATING if floating else INTEGER, BY_DATA, BINARY)
        table = rng.choices(tables, (12, 4, 2, 2, 2))[0]
        name = rng.choice(list(table))
        if table is BINARY:
            f, places = BINARY[name], (place, rng.choice([k for k in range(len(pool)) if k != 1]))
        else:
            f, places = table[name](rng), (place, 1) if table in (BY_DATA, jax_steps.STEPS) else (place,)
        try:
            created = jax.eval_shape(f, *(pool[k] for k in places))
        except Exception:  # not for such shapes or types
            continue
        if not hasattr(created, "dtype") or len(created.shape) > 3 or not created.shape:
            continue
        if created.dtype == bool:
            f, created = partial(_as_int, f), jax.ShapeDtypeStruct(created.shape, np.int32)
        steps.append((name, f, places))
        pool.append(created)

    return chained(steps), inputs, [name for name, _, _ in steps]


def _as_int(f: Step, *arguments: Any) -> Any:
    return f(*arguments).astype(jnp.int32)


def text(seed: int) -> str:
    """The text of a function."""
    _, inputs, steps = drawn(seed)
    scope = inputs[1].shape[0].scope
    return f"{inputs[0].dtype} {inputs[0].shape} {scope}: {', '.join(steps)}"


def numbers(shape: Any, dtype: Any, rng: Any) -> Any:
    """Multiples of a quarter, or integers of which some are at the ends of their type."""
    if jnp.issubdtype(dtype, jnp.floating):
        return (rng.integers(-9, 10, shape) / 4).astype(dtype)
    ends = np.iinfo(dtype)
    values = rng.integers(max(ends.min, -5), 6, shape)
    return np.where(rng.random(shape) < 0.1, rng.choice((ends.min, ends.max), shape), values).astype(dtype)


def sized(dimension: str, b: int, c: int) -> int:
    """A dimension of a shape, as JAX prints it, where b and c are numbers."""
    values = {
        "b": b,
        "c": c,
        "2*b": 2 * b,
        "b + 1": b + 1,
        "2*b + 1": 2 * b + 1,
        "b*c": b * c,
        "c + b": b + c,
        "b + c": b + c,
        "3*b + 2": 3 * b + 2,
        "max(b, c)": max(b, c),
        "floordiv(b, 2)": b // 2,
        "mod(b, 3) + 1": b % 3 + 1,
    }
    return values[dimension]


def pairs(rng: Random) -> list[tuple[int, int]]:
    """Pairs of sizes, those at which results may be compared first."""
    return list(dict.fromkeys((*SIZES, *guarded.pairs(rng))))


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the function of a seed where b is n and c is m. At some sizes what it gives is compared with JAX's.
    ModelError where it is refused."""
    function, inputs, _ = drawn(seed)
    exported, model = exported_model(seed, function, inputs, threads)
    reference = jax.jit(exported.call)
    shapes = [[d if isinstance(d, int) else str(d) for d in g.shape] for g in inputs]
    compared: set[tuple[int, int]] = set()
    places = SIZES[seed % len(SIZES)], SIZES[seed // 7 % len(SIZES)]

    def call(n: int, m: int) -> Any:
        rng = np.random.default_rng(n)
        one, two = (tuple(d if isinstance(d, int) else sized(d, n, m) for d in shape) for shape in shapes)
        most = (max(n, 1), 3, 1 << 31)[m % 3]
        x, ids = numbers(one, inputs[0].dtype, rng), rng.integers(-most, most, two).astype(np.int32)
        want = None
        if (n, m) in places and (n, m) not in compared:
            compared.add((n, m))
            try:
                want = reference(x, ids)
            except ValueError as error:  # sizes that break what was assumed, or that JAX itself cannot refine
                want = None if "refining shapes" in str(error) else error
        try:
            got = list(model(x, ids))
        except tw.Error as error:
            # A window that is larger than its input, for which XLA has no element, is refused (docs/jax.md).
            allowed = want is None or isinstance(want, ValueError) or "have no size" in str(error)
            assert allowed, f"refused at b = {n}, c = {m}: {error}"
            raise
        assert not isinstance(want, ValueError), f"not refused at b = {n}, c = {m}: {want}"
        for k, (a, b) in enumerate(zip(got, want or (), strict=want is not None)):
            said = differs(np.asarray(a), np.asarray(b), TOLERANCE.get(str(b.dtype)))
            assert not said, f"result {k} at b = {n}, c = {m}: {said}"
        return got

    return call
