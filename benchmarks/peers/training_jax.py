"""The networks of `training.py` in JAX, on weights under their PyTorch names: a whole step in one `jit`.

Data lie as in PyTorch (NCHW); batch norm moves its running statistics, which are part of the step's state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

RATE, CLIP, EPS = 1e-4, 0.5, 1e-8
MOMENTUM, EPSILON = 0.1, 1e-5
Weights = Mapping[str, Any]
Moved = dict[str, Any]
"""New values of running statistics."""


def conv(p: Weights, name: str, x: Any, stride: int = 1, pad: int = 0) -> Any:
    layout = ("NCHW", "OIHW", "NCHW")
    y = lax.conv_general_dilated(x, p[f"{name}.weight"], (stride, stride), [(pad, pad)] * 2, dimension_numbers=layout)
    bias = p.get(f"{name}.bias")
    return y if bias is None else y + bias[:, None, None]


def linear(p: Weights, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def batch_norm(p: Weights, name: str, x: Any, moved: Moved) -> Any:
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    count = x.size // x.shape[1]
    for part, value in (("running_mean", mean), ("running_var", variance * count / (count - 1))):
        key = f"{name}.{part}"
        moved[key] = (1 - MOMENTUM) * p[key] + MOMENTUM * lax.stop_gradient(value)
    scale = p[f"{name}.weight"] * lax.rsqrt(variance + EPSILON)
    return (x - mean[:, None, None]) * scale[:, None, None] + p[f"{name}.bias"][:, None, None]


def layer_norm(p: Weights, name: str, x: Any) -> Any:
    rows = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + EPSILON)
    return rows * p[f"{name}.weight"] + p[f"{name}.bias"]


def max_pool(x: Any, pad: int = 1) -> Any:
    window, strides, pads = (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (pad, pad), (pad, pad))
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, pads)


def cross_entropy(logits: Any, y: Any) -> Any:
    logs = jax.nn.log_softmax(logits)
    return -(logs * y).sum(1).mean() if y.ndim == 2 else -jnp.take_along_axis(logs, y[:, None], 1).mean()


def resnet18(p: Weights, x: Any, y: Any, moved: Moved) -> Any:
    x = jax.nn.relu(batch_norm(p, "bn1", conv(p, "conv1", x, 2, 3), moved))
    x = max_pool(x)
    for k in range(8):
        name, stride = f"layers.{k}", 2 if k in (2, 4, 6) else 1
        h = jax.nn.relu(batch_norm(p, f"{name}.bn1", conv(p, f"{name}.conv1", x, stride, 1), moved))
        h = batch_norm(p, f"{name}.bn2", conv(p, f"{name}.conv2", h, 1, 1), moved)
        if stride == 2:
            x = batch_norm(p, f"{name}.downsample.1", conv(p, f"{name}.downsample.0", x, stride), moved)
        x = jax.nn.relu(h + x)
    return cross_entropy(linear(p, "fc", x.mean((2, 3))), y)


def attention(p: Weights, name: str, x: Any, heads: int = 4) -> Any:
    n, t, width = x.shape
    joined = x @ p[f"{name}.in_proj_weight"].T + p[f"{name}.in_proj_bias"]
    q, k, v = (part.reshape(n, t, heads, -1) for part in jnp.split(joined, 3, -1))
    scores = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(width // heads))
    return linear(p, f"{name}.out_proj", jnp.einsum("nhqk,nkhd->nqhd", scores, v).reshape(n, t, width))


def transformer(p: Weights, tokens: Any, y: Any, _moved: Moved) -> Any:
    x = p["embedding.weight"][tokens]
    for k in range(6):
        name = f"layers.layers.{k}"
        x = x + attention(p, f"{name}.self_attn", layer_norm(p, f"{name}.norm1", x))
        h = jax.nn.gelu(linear(p, f"{name}.linear1", layer_norm(p, f"{name}.norm2", x)), approximate=False)
        x = x + linear(p, f"{name}.linear2", h)
    return cross_entropy(linear(p, "head", x.mean(1)), y)


def mlp(p: Weights, x: Any, y: Any, _moved: Moved) -> Any:
    for k in range(16):
        x = jax.nn.relu(linear(p, f"{2 * k}", x))
    return cross_entropy(linear(p, "32", x), y)


def lstm(p: Weights, x: Any, y: Any, _moved: Moved) -> Any:
    x = x.transpose(1, 0, 2)
    for k in range(2):
        recurrent, bias = p[f"layers.weight_hh_l{k}"].T, p[f"layers.bias_ih_l{k}"] + p[f"layers.bias_hh_l{k}"]
        gates = x @ p[f"layers.weight_ih_l{k}"].T + bias

        def cell(state: Any, row: Any, recurrent: Any = recurrent) -> Any:
            h, c = state
            i, f, g, o = jnp.split(row + h @ recurrent, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], recurrent.shape[0]))
        _, x = lax.scan(cell, (zeros, zeros), gates)
    return cross_entropy(linear(p, "head", x[-1]), y)


def az6(p: Weights, board: Any, policy: Any, value: Any, moved: Moved) -> Any:
    def block(name: str, x: Any, pad: int = 1) -> Any:
        return batch_norm(p, f"{name}.1", conv(p, f"{name}.0", x, 1, pad), moved)

    x = jax.nn.relu(block("stem", board))
    for k in range(6):
        x = jax.nn.relu(block(f"blocks.{k}.2", jax.nn.relu(block(f"blocks.{k}.0", x))) + x)
    n = x.shape[0]
    logits = linear(p, "policy.3", jax.nn.relu(block("policy.0", x, 0)).reshape(n, -1))
    h = jax.nn.relu(linear(p, "value.3", jax.nn.relu(block("value.0", x, 0)).reshape(n, -1)))
    result = jnp.tanh(linear(p, "value.5", h))[:, 0]
    return cross_entropy(logits, policy) + ((result - value) ** 2).mean()


def ppo(logits: Any, values: Any, actions: Any, old: Any, advantages: Any, returns: Any) -> Any:
    logs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], 1)[:, 0]
    scaled = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    ratio = jnp.exp(logs - old)
    policy = -jnp.minimum(scaled * ratio, scaled * jnp.clip(ratio, 0.8, 1.2)).mean()
    return policy + 0.5 * ((values[:, 0] - returns) ** 2).mean()


def nat(p: Weights, obs: Any, *rollout: Any) -> Any:
    x = obs.astype(jnp.float32) / 255
    for k, stride in ((0, 4), (2, 2), (4, 1)):
        x = jax.nn.relu(conv(p, f"network.{k}", x, stride))
    x = jax.nn.relu(linear(p, "network.7", x.reshape(x.shape[0], -1)))
    return ppo(linear(p, "action_net", x), linear(p, "value_net", x), *rollout[:-1])


def imp(p: Weights, x: Any, *rollout: Any) -> Any:
    for k in range(3):
        x = max_pool(conv(p, f"network.{4 * k}", x, 1, 1))
        for j in (2, 3):
            name = f"network.{4 * k + j}"
            x = x + conv(p, f"{name}.conv1", jax.nn.relu(conv(p, f"{name}.conv0", jax.nn.relu(x), 1, 1)), 1, 1)
    x = jax.nn.relu(linear(p, "network.14", jax.nn.relu(x.reshape(x.shape[0], -1))))
    return ppo(linear(p, "actor", x), linear(p, "critic", x), *rollout[:-1])


LOSSES: dict[str, Callable[..., Any]] = {
    "resnet18": resnet18,
    "transformer": transformer,
    "lstm": lstm,
    "mlp": mlp,
    "az6": az6,
    "nat": nat,
    "imp": imp,
}


def step_of(loss: Callable[..., Any], state: Mapping[str, Any], trained: set[str]) -> tuple[Callable[..., Any], Any]:
    """A jitted step from (weights, means, squares, count, buffers) and a batch to the same and the loss; the first."""

    def objective(p: Any, buffers: Any, batch: Any) -> Any:
        moved: Moved = {}
        return loss({**p, **buffers}, *batch, moved), {**buffers, **moved}

    def step(retained: Any, *batch: Any) -> Any:
        p, m, v, t, buffers = retained
        (value, buffers), g = jax.value_and_grad(objective, has_aux=True)(p, buffers, batch)
        norm = jnp.sqrt(sum((x**2).sum() for x in g.values()))
        share, t = jnp.minimum(1.0, CLIP / (norm + 1e-6)), t + 1
        first, second = 1 - 0.9**t, jnp.sqrt(1 - 0.999**t)
        m = {n: 0.9 * m[n] + 0.1 * share * x for n, x in g.items()}
        v = {n: 0.999 * v[n] + 0.001 * (share * x) ** 2 for n, x in g.items()}
        p = {n: p[n] - RATE / first * m[n] / (jnp.sqrt(v[n]) / second + EPS) for n in p}
        return (p, m, v, t, buffers), value

    floats = {n: jnp.asarray(a) for n, a in state.items() if np.asarray(a).dtype == np.float32}
    p = {n: a for n, a in floats.items() if n in trained}
    zeros = [{n: jnp.zeros_like(a) for n, a in p.items()} for _ in range(2)]
    buffers = {n: a for n, a in floats.items() if n not in trained}
    return jax.jit(step, donate_argnums=0), (p, *zeros, jnp.float32(0), buffers)
