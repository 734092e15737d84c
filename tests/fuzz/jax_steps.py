"""Steps of random functions of JAX whose sizes are computed from other sizes, whose places are data, and that have a
state: what `open_jax_values.py` chains beside its simpler steps.

A step takes an array of one to three axes whose sizes may be symbols, and integers, which may be places outside of it.
"""

# ruff: noqa: B008  numbers are drawn when a step is
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import core, lax

Random = random.Random
Step = Callable[..., Any]


def _rows(x: Any) -> Any:
    """An array as a matrix."""
    return x.reshape(x.shape[0], -1) if x.ndim > 1 else x[:, None]


def _image(x: Any) -> Any:
    """An array as an image of one channel, in f32."""
    return _rows(x).astype(jnp.float32)[None, None]


def _places(ids: Any, x: Any) -> Any:
    """Places modulo the number of rows, which may be 0."""
    return ids % jnp.maximum(jnp.int32(x.shape[0]), 1)


SIZED: dict[str, Callable[[Random], Step]] = {
    "part": lambda rng: lambda x, ids, k=rng.randint(2, 4): x[: x.shape[0] // k],
    "rest": lambda rng: lambda x, ids, k=rng.randint(2, 4): x[x.shape[0] // k :],
    "last part": lambda rng: lambda x, ids, k=rng.randint(2, 4): x[x.shape[0] - x.shape[0] // k :],
    "middle": lambda rng: lambda x, ids: lax.dynamic_slice_in_dim(x, x.shape[0] // 2, 1, 0),
    "remainder": lambda rng: lambda x, ids, k=rng.randint(2, 4): x[: x.shape[0] % k],
    "at most": lambda rng: lambda x, ids, k=rng.choice((1, 4, 16)): x[: core.min_dim(x.shape[0], k)],
    "at least": lambda rng: (
        lambda x, ids, k=rng.choice((1, 4, 16)): jnp.pad(
            x, [(0, core.max_dim(x.shape[0], k) - x.shape[0])] + [(0, 0)] * (x.ndim - 1)
        )
    ),
    "as many": lambda rng: lambda x, ids: x[: core.min_dim(x.shape[0], ids.shape[0])],
    "beyond": lambda rng: lambda x, ids: x[core.min_dim(x.shape[0], ids.shape[0]) :],
    "difference": lambda rng: (
        lambda x, ids: jnp.pad(
            x, [(core.max_dim(x.shape[0], ids.shape[0]) - x.shape[0], 0)] + [(0, 0)] * (x.ndim - 1), "edge"
        )
    ),
    "product": lambda rng: lambda x, ids: (x[:, None] * jnp.ones((ids.shape[0], 1), x.dtype)[None]).reshape(-1),
    "flat product": lambda rng: (
        lambda x, ids: (x.reshape(-1)[:, None] + (ids % 3).astype(x.dtype)[None]).reshape(-1)[::3]
    ),
    "join": lambda rng: lambda x, ids: jnp.concatenate([x.reshape(-1), (ids % 5).astype(x.dtype)]),
    "table": lambda rng: lambda x, ids: jnp.ones((ids.shape[0], x.shape[0]), x.dtype) @ _rows(x),
    "distances": lambda rng: lambda x, ids: jnp.arange(x.shape[0])[:, None] - jnp.arange(ids.shape[0]),
    "pad both": lambda rng: (
        lambda x, ids, how=rng.choice(("edge", "constant")), p=rng.randint(0, 2): jnp.pad(
            x, [(p, p + 1)] + [(0, 0)] * (x.ndim - 1), how
        )
    ),
    "cut inside": lambda rng: (
        lambda x, ids, p=(rng.randint(-3, 3), rng.randint(-3, 3), rng.randint(0, 3)): lax.pad(
            x, jnp.ones((), x.dtype), [*[(0, 0, 0)] * (x.ndim - 1), p]
        )
    ),
    "roll by size": lambda rng: lambda x, ids: jnp.roll(x, x.shape[0] // 2, 0),
    "roll by data": lambda rng: lambda x, ids: jnp.roll(x, ids.sum(), 0),
    "turned": lambda rng: lambda x, ids, k=rng.randint(1, 3): jnp.rot90(_rows(x), k),
    "differences": lambda rng: lambda x, ids: jnp.diff(x, axis=0),
    "insert": lambda rng: lambda x, ids, k=rng.randint(-2, 2): jnp.insert(x, k, 1, axis=0),
    "delete": lambda rng: lambda x, ids, k=rng.randint(-2, 2): jnp.delete(x, k, axis=0),
    "grid": lambda rng: lambda x, ids, k=rng.randint(0, 1): jnp.meshgrid(x.reshape(-1), ids.astype(x.dtype))[k],
    "outer sum": lambda rng: lambda x, ids: _rows(x)[:, :1] + _rows(x)[:, 0][None],
    "transposed": lambda rng: lambda x, ids: x.T.reshape(-1)[1:],
    "repeats": lambda rng: (
        lambda x, ids: (
            jnp.repeat(x, jnp.abs(ids) % 3, 0, total_repeat_length=x.shape[0] + 1)
            if x.shape[0] is ids.shape[0]
            else jnp.repeat(ids % 7, jnp.abs(ids) % 3, total_repeat_length=x.shape[0])
        )
    ),
    "pairs below": lambda rng: lambda x, ids: _rows(x)[jnp.tril_indices(3)],
}
BY_DATA: dict[str, Callable[[Random], Step]] = {
    "modulo": lambda rng: lambda x, ids: x[_places(ids, x)],
    "two places": lambda rng: lambda x, ids: _rows(x)[ids, ids % 2],
    "matrix": lambda rng: lambda x, ids: x[jnp.stack([ids, ids + 1])].reshape(-1),
    "one place": lambda rng: lambda x, ids: x[ids.sum()][None],
    "window": lambda rng: (
        lambda x, ids, k=rng.randint(1, 3), m=rng.choice(("clip", "fill")): lax.gather(
            _rows(x),
            ids[:, None],
            lax.GatherDimensionNumbers((1, 2), (), (0,)),
            (k, 1),
            mode=m,
            fill_value=1,
        ).reshape(-1)
    ),
    "corner": lambda rng: (
        lambda x, ids, m=rng.choice(("clip", "fill")): lax.gather(
            _rows(x),
            jnp.stack([ids, ids // 2], 1),
            lax.GatherDimensionNumbers((1,), (0,), (0, 1)),
            (1, 1),
            mode=m,
        )
    ),
    "set window": lambda rng: (
        lambda x, ids, k=rng.randint(1, 3), m=rng.choice(("clip", "drop")): lax.scatter_add(
            _rows(x),
            ids[:, None],
            jnp.ones((ids.shape[0], k, 1), x.dtype),
            lax.ScatterDimensionNumbers((1, 2), (), (0,)),
            mode=m,
        )
    ),
    "set two": lambda rng: lambda x, ids, m=rng.choice(("clip", "drop")): _rows(x).at[ids, ids % 2].add(1, mode=m),
    "set columns": lambda rng: lambda x, ids, m=rng.choice(("clip", "drop")): _rows(x).at[:, ids].set(1, mode=m),
    "set rows of own": lambda rng: lambda x, ids: x.at[_places(ids, x)].set(x[:1]),
    "set slice": lambda rng: lambda x, ids, k=rng.randint(-3, 3): x.at[k:].set(1),
    "set half": lambda rng: lambda x, ids: x.at[x.shape[0] // 2 :].mul(2),
    "box": lambda rng: (
        lambda x, ids, k=rng.randint(1, 3): lax.dynamic_slice(
            _rows(x), (ids.sum(), ids.shape[0] - 1), (core.min_dim(k, x.shape[0]), 1)
        )
    ),
    "box set": lambda rng: lambda x, ids: lax.dynamic_update_slice(_rows(x), _rows(x)[:1] * 2, (ids.sum(), ids.sum())),
    "best": lambda rng: lambda x, ids: x[jnp.argmax(x, 0).reshape(-1)],
    "order": lambda rng: lambda x, ids: x[jnp.argsort(_rows(x)[:, 0])],
    "order of places": lambda rng: lambda x, ids: x.at[jnp.argsort(ids)].get(mode="clip"),
    "inverse": lambda rng: lambda x, ids: jnp.zeros_like(ids).at[jnp.argsort(ids)].set(jnp.arange(ids.shape[0])),
    "nonzero": lambda rng: lambda x, ids, k=rng.randint(1, 9): jnp.nonzero(x.reshape(-1) > 0, size=k, fill_value=-1)[0],
    "nonzero rows": lambda rng: lambda x, ids: x[jnp.nonzero(ids > 0, size=ids.shape[0], fill_value=0)[0]],
    "unique": lambda rng: lambda x, ids, k=rng.randint(1, 5): jnp.unique(ids % 4, size=k, fill_value=7),
    "first true": lambda rng: lambda x, ids: jnp.where(x > 0, size=3, fill_value=2)[0],
    "masked": lambda rng: (
        lambda x, ids: jnp.where((jnp.arange(x.shape[0]) < ids.sum()).reshape((-1,) + (1,) * (x.ndim - 1)), x, -x)
    ),
    "counts": lambda rng: lambda x, ids: jnp.zeros(x.shape[0], jnp.int32).at[ids].add(1),
    "segments": lambda rng: (
        lambda x, ids: jax.ops.segment_sum(ids % 5, jnp.sort(_places(ids, x)), x.shape[0], indices_are_sorted=True)
    ),
    "sorted by": lambda rng: lambda x, ids: lax.sort((ids % 3, jnp.arange(ids.shape[0]), ids), num_keys=2)[2] % 100,
    "top places": lambda rng: lambda x, ids: x[lax.top_k(jnp.concatenate([ids, ids[:1] * 0 + 1]), 1)[1]],
    "each slice": lambda rng: (
        lambda x, ids: jax.vmap(lambda k: lax.dynamic_slice_in_dim(_rows(x), k, 1, 0)[0, :1])(ids)
    ),
    "each update": lambda rng: (
        lambda x, ids: jax.vmap(lambda k: lax.dynamic_update_slice(x.reshape(-1), x.reshape(-1)[:1], (k,))[:2])(ids)
    ),
}
STATE: dict[str, Callable[[Random], Step]] = {
    "image": lambda rng: _convolved(rng),
    "channels": lambda rng: (
        lambda x, ids, c=rng.choice((1, 3, 8)), k=rng.choice((2, 3)): lax.conv(
            jnp.tile(_image(x), (1, 3, 1, 1)), jnp.full((c, 3, k, k), 0.25), (1, 1), "SAME"
        )[0, 0]
    ),
    "depthwise": lambda rng: (
        lambda x, ids, k=rng.randint(1, 3): lax.conv_general_dilated(
            jnp.tile(_image(x), (1, 4, 1, 1)), jnp.ones((4, 1, k, 1)), (1, 1), "SAME", feature_group_count=4
        )[0, 0]
    ),
    "transposed image": lambda rng: (
        lambda x, ids, s=rng.randint(1, 3), p=rng.choice(("SAME", "VALID")): lax.conv_transpose(
            _image(x), jnp.ones((2, 1, 1, 2)), (s, 1), p, dimension_numbers=("NCHW", "HWIO", "NCHW")
        )[0, 0]
    ),
    "pool": lambda rng: _pooled(rng),
    "pool gradient": lambda rng: (
        lambda x, ids, k=rng.randint(1, 3), s=rng.randint(1, 3): jax.grad(
            lambda v: lax.reduce_window(v, -jnp.inf, lax.max, (1, 1, k, 1), (1, 1, s, 1), "VALID").sum()
        )(_image(x))[0, 0]
    ),
    "resized": lambda rng: (
        lambda x, ids, k=rng.randint(1, 5), how=rng.choice(("nearest", "linear")): jax.image.resize(
            _image(x)[0, 0], (x.shape[0], k), how
        )
    ),
    "gated scan": lambda rng: (
        lambda x, ids: lax.scan(
            lambda c, e: (jnp.tanh(c @ jnp.full((4, 4), 0.25) + e), c[:1]),
            jnp.zeros(4),
            _rows(x)[:, :1].astype(jnp.float32),
        )[1]
    ),
    "scan of cache": lambda rng: (
        lambda x, ids, k=rng.choice((1, 5)): lax.scan(
            lambda c, e: (lax.dynamic_update_slice_in_dim(c, e[None], e % (k + 2), 0), c.sum()),
            jnp.zeros(k, jnp.int32),
            ids,
        )[1]
    ),
    "scan two": lambda rng: (
        lambda x, ids: lax.scan(lambda c, e: (c + e[1], (c * 2, e[0])), jnp.int32(0), (ids % 3, ids % 5))[1][0]
    ),
    "nested": lambda rng: (
        lambda x, ids: lax.fori_loop(
            0, 2, lambda i, c: lax.fori_loop(0, x.shape[0], lambda j, d: d.at[j].add(d[j - 1 + i]), c), x
        )
    ),
    "loop by data": lambda rng: (
        lambda x, ids: lax.while_loop(
            lambda s: s[0] < jnp.clip(ids.sum(), 0, 5), lambda s: (s[0] + 1, jnp.roll(s[1], 1, 0)), (jnp.int32(0), x)
        )[1]
    ),
    "branch in loop": lambda rng: (
        lambda x, ids: lax.fori_loop(
            0, ids.shape[0], lambda i, c: lax.cond(ids[i] > 0, lambda v: v.at[ids[i]].add(1), lambda v: v[::-1], c), x
        )
    ),
    "attention": lambda rng: (
        lambda x, ids, causal=rng.random() < 0.5: jax.nn.dot_product_attention(
            *[jnp.tile(_image(x)[0, 0][None, :, None, :1], (1, 1, 2, 4))] * 3, is_causal=causal
        )[0, :, 0]
    ),
    "cache": lambda rng: lambda x, ids, k=rng.choice((1, 5, 16)): _attended(x, ids, k),
    "cache written": lambda rng: (
        lambda x, ids, k=rng.choice((4, 40)): lax.dynamic_update_slice(
            jnp.zeros((k, 1), x.dtype), _rows(x)[: core.min_dim(x.shape[0], k), :1], (ids.sum(), 0)
        )
    ),
    "normal": lambda rng: (
        lambda x, ids: _image(x)[0, 0] / (jnp.linalg.norm(_image(x)[0, 0], axis=0, keepdims=True) + 1)
    ),
    "gradient at": lambda rng: lambda x, ids: jax.grad(lambda v: (v[ids] ** 2).sum())(x.astype(jnp.float32)),
    "gradient of scan": lambda rng: (
        lambda x, ids: jax.grad(lambda v: lax.scan(lambda c, e: (c * 0.5 + e, c), 0.0, v)[1].sum())(
            _rows(x)[:, 0].astype(jnp.float32)
        )
    ),
    "gradient of take": lambda rng: (
        lambda x, ids: jax.grad(lambda v: jnp.take(v, ids, 0, mode="clip").sum())(x.astype(jnp.float32))
    ),
    "einsum": lambda rng: lambda x, ids: jnp.einsum("ij,k->kj", _rows(x).astype(jnp.float32), ids.astype(jnp.float32)),
    "batches": lambda rng: lambda x, ids: jnp.einsum("bi,bj->bij", _rows(x)[:, :2], _rows(x)[:, :2])[:, 0],
    "cov": lambda rng: lambda x, ids: jnp.matmul(_rows(x), _rows(x).T, preferred_element_type=jnp.float32)[:, :2],
    "histogram": lambda rng: lambda x, ids: jnp.histogram(_rows(x)[:, 0].astype(jnp.float32), jnp.arange(-2.0, 3))[0],
    "digitized": lambda rng: lambda x, ids: jnp.digitize(x.reshape(-1), jnp.arange(-2, 3).astype(x.dtype)),
    "shuffled": lambda rng: lambda x, ids: x[jax.random.randint(jax.random.key(2), (x.shape[0],), 0, 3)],
}


def _convolved(rng: Random) -> Step:
    """A convolution of the rows, whose padding may cut and whose rows may be spread."""
    k, stride, spread, dilation = rng.randint(1, 3), rng.randint(1, 2), rng.randint(1, 2), rng.randint(1, 2)
    pads = rng.choice(((1, 0), (0, 2), (-1, 1)))

    def run(x: Any, ids: Any) -> Any:
        kernel, more = jnp.ones((2, 1, k, 1)), {"lhs_dilation": (spread, 1), "rhs_dilation": (dilation, 1)}
        return lax.conv_general_dilated(_image(x), kernel, (stride, 1), (pads, (0, 0)), **more)[0].sum(0)

    return run


def _pooled(rng: Random) -> Step:
    """The largest numbers or sums of windows of rows."""
    k, stride, pads, f = (
        rng.randint(1, 3),
        rng.randint(1, 3),
        rng.choice(("SAME", "VALID")),
        rng.choice((lax.max, lax.add)),
    )

    def run(x: Any, ids: Any) -> Any:
        first = -jnp.inf if f is lax.max else 0.0
        return lax.reduce_window(_image(x), first, f, (1, 1, k, 1), (1, 1, stride, 1), pads)[0, 0]

    return run


def _attended(x: Any, ids: Any, rows: int) -> Any:
    """Attention of the rows over a table's rows at the places and themselves, causal in the latter."""
    q = jnp.tile(_image(x)[0, 0][:, :1], (1, 4))
    table = jnp.linspace(-1, 1, rows * 4).reshape(rows, 4)
    keys = jnp.concatenate([table[ids % rows], q])
    place = jnp.arange(q.shape[0])[:, None] + ids.shape[0]
    scores = jnp.where(jnp.arange(keys.shape[0]) <= place, q @ keys.T, -jnp.inf)
    return jax.nn.softmax(scores, -1) @ keys


STEPS = {
    f"{kind} {name}": step
    for kind, table in (("size", SIZED), ("data", BY_DATA), ("state", STATE))
    for name, step in table.items()
}
