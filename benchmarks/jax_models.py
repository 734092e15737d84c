"""Networks in JAX alone and as ONNX models that have the same weights: what `bench_jax` compares.

A function's first argument is a dict of weights by the names of the ONNX model's initializers. The tests of JAX's door
read the functions too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import onnx
from jax import lax
from jax import numpy as jnp
from onnx import numpy_helper

from benchmarks import policy_suite
from benchmarks.onnx_builder import BATCH, Builder

Array = np.ndarray[Any, Any]
Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A network: its ONNX model, its function of weights and one input, that input's shape without the batch."""

    onnx: Callable[[], onnx.ModelProto]
    function: Callable[[Params, Any], Any]
    shape: tuple[int, ...]
    dtype: Any = np.float32

    def weights(self, model: onnx.ModelProto) -> dict[str, Array]:
        return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}

    def input(self, batch: int) -> Array:
        rng, shape = np.random.default_rng(0), (batch, *self.shape)
        if self.dtype == np.uint8:
            return rng.integers(0, 256, shape).astype(np.uint8)
        return rng.standard_normal(shape).astype(self.dtype)


def linear(p: Params, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def conv(p: Params, name: str, x: Any, stride: int = 1, pad: int = 0) -> Any:
    y = lax.conv_general_dilated(x, p[f"{name}.weight"], (stride, stride), [(pad, pad)] * 2)
    return y + p[f"{name}.bias"][:, None, None] if f"{name}.bias" in p else y


def max_pool(x: Any) -> Any:
    """3x3, every second one."""
    return lax.reduce_window(x, -np.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)])


def m64(p: Params, obs: Any) -> Any:
    results = []
    for tower, head in (("policy_net", "action_net"), ("value_net", "value_net_head")):
        x = obs
        for k in (0, 2):
            x = jnp.tanh(linear(p, f"mlp_extractor.{tower}.{k}", x))
        results.append(linear(p, head, x))
    return results


def nat(p: Params, obs: Any) -> Any:
    x = obs.astype(np.float32) / 255
    for name, stride in (("cnn.0", 4), ("cnn.2", 2), ("cnn.4", 1)):
        x = jax.nn.relu(conv(p, name, x, stride))
    x = jax.nn.relu(linear(p, "linear.0", x.reshape(x.shape[0], -1)))
    return linear(p, "action_net", x), linear(p, "value_net", x)


def imp(p: Params, x: Any) -> Any:
    for stack in range(3):
        x = max_pool(conv(p, f"network.{stack}.conv", x, 1, 1))
        for block in range(2):
            name = f"network.{stack}.res_block{block}"
            y = conv(p, f"{name}.conv0", jax.nn.relu(x), 1, 1)
            x = conv(p, f"{name}.conv1", jax.nn.relu(y), 1, 1) + x
    x = jax.nn.relu(linear(p, "fc", jax.nn.relu(x.reshape(x.shape[0], -1))))
    return linear(p, "actor", x), linear(p, "critic", x)


BLOCKS = tuple((stage, k) for stage, depth in enumerate((3, 4, 6, 3)) for k in range(depth))
"""ResNet-50's blocks: their stages and places in them."""


def resnet50(p: Params, x: Any) -> Any:
    def normed(name: str, x: Any) -> Any:
        mean, variance = p[f"{name}.running_mean"], p[f"{name}.running_var"]
        scale = p[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)
        return (x - mean[:, None, None]) * scale[:, None, None] + p[f"{name}.bias"][:, None, None]

    x = max_pool(jax.nn.relu(normed("bn1", conv(p, "conv1", x, 2, 3))))
    for stage, k in BLOCKS:
        name, stride = f"layer{stage}.{k}", 2 if stage and not k else 1
        y = jax.nn.relu(normed(f"{name}.bn1", conv(p, f"{name}.conv1", x)))
        y = jax.nn.relu(normed(f"{name}.bn2", conv(p, f"{name}.conv2", y, stride, 1)))
        y = normed(f"{name}.bn3", conv(p, f"{name}.conv3", y))
        skip = x if k else normed(f"{name}.bn", conv(p, f"{name}.down", x, stride))
        x = jax.nn.relu(y + skip)
    return linear(p, "fc", x.mean((2, 3)))


def resnet50_onnx() -> onnx.ModelProto:
    b = Builder("resnet50", seed=50)

    def normed(x: str, conv: str, norm: str, c_in: int, c_out: int, kernel: int, stride: int, gain: float) -> str:
        y = b.conv(x, conv, c_in, c_out, kernel, stride, kernel // 2, bias=False)
        return b.batch_norm(y, norm, c_out, gain)

    x = b.relu(normed(b.input("x", [BATCH, 3, 224, 224]), "conv1", "bn1", 3, 64, 7, 2, 1.0))
    x = b.op("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    c_in = 64
    for stage, k in BLOCKS:
        name, width, stride = f"layer{stage}.{k}", 64 << stage, 2 if stage and not k else 1
        y = b.relu(normed(x, f"{name}.conv1", f"{name}.bn1", c_in, width, 1, 1, 1.0))
        y = b.relu(normed(y, f"{name}.conv2", f"{name}.bn2", width, width, 3, stride, 1.0))
        y = normed(y, f"{name}.conv3", f"{name}.bn3", width, 4 * width, 1, 1, 0.3)
        skip = x if k else normed(x, f"{name}.down", f"{name}.bn", c_in, 4 * width, 1, stride, 0.7)
        x, c_in = b.relu(b.op("Add", [y, skip])), 4 * width
    x = b.op("Flatten", [b.op("GlobalAveragePool", [x])], axis=1)
    b.output(b.linear(x, "fc", c_in, 1000), "logits", [BATCH, 1000])
    return b.build()


TOKENS, WIDTH, HEADS = 128, 768, 12


def bert_layer(p: Params, x: Any) -> Any:
    """Attention, GELU, norms after the sums."""

    def norm(x: Any, name: str) -> Any:
        mean = x.mean(-1, keepdims=True)
        deviation = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(deviation + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]

    def dense(name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    batch, tokens, width = x.shape
    heads = (dense(n, x).reshape(batch, tokens, HEADS, width // HEADS).transpose(0, 2, 1, 3) for n in "qkv")
    q, k, v = heads
    attention = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / np.float32((width / HEADS) ** 0.5))
    y = (attention @ v).transpose(0, 2, 1, 3).reshape(batch, tokens, width)
    x = norm(x + dense("o", y), "norm1")
    return norm(x + dense("down", jax.nn.gelu(dense("up", x), approximate=False)), "norm2")


def bert_layer_onnx() -> onnx.ModelProto:
    b = Builder("bert_layer", seed=12)
    x = b.input("x", [BATCH, TOKENS, WIDTH])
    parts = [b.reshape(b.dense(x, n, WIDTH, WIDTH), [-1, TOKENS, HEADS, WIDTH // HEADS]) for n in "qkv"]
    q, k, v = (
        b.op("Transpose", [y], perm=perm)
        for y, perm in zip(parts, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True)
    )
    scores = b.op("Div", [b.op("MatMul", [q, k]), b.constant(np.float32((WIDTH / HEADS) ** 0.5))])
    y = b.op("Transpose", [b.op("MatMul", [b.op("Softmax", [scores], axis=-1), v])], perm=[0, 2, 1, 3])
    y = b.dense(b.reshape(y, [-1, TOKENS, WIDTH]), "o", WIDTH, WIDTH)
    x = b.layer_norm(b.op("Add", [x, y]), "norm1", WIDTH)
    up = b.dense(x, "up", WIDTH, 4 * WIDTH)
    half, one, root = (b.constant(np.float32(c)) for c in (0.5, 1, 2**0.5))
    erf = b.op("Add", [b.op("Erf", [b.op("Div", [up, root])]), one])
    up = b.op("Mul", [b.op("Mul", [up, erf]), half])
    y = b.op("Add", [x, b.dense(up, "down", 4 * WIDTH, WIDTH)])
    b.output(b.layer_norm(y, "norm2", WIDTH), "y", [BATCH, TOKENS, WIDTH])
    return b.build()


STEPS, FEATURES, HIDDEN = 50, 64, 128


def gru_scan(p: Params, x: Any) -> Any:
    """A GRU over time, sequences first; ONNX's order of gates: update, reset, candidate."""
    w, u, bias = p["gru.W"][0].T, p["gru.R"][0].T, p["gru.B"][0]
    arguments, recurrent = bias[: 3 * HIDDEN], bias[3 * HIDDEN :]

    def step(h: Any, x: Any) -> Any:
        a, c = x @ w + arguments, h @ u + recurrent
        z, r = jnp.split(jax.nn.sigmoid(a[:, : 2 * HIDDEN] + c[:, : 2 * HIDDEN]), 2, axis=-1)
        n = jnp.tanh(a[:, 2 * HIDDEN :] + r * c[:, 2 * HIDDEN :])
        h = (1 - z) * n + z * h
        return h, h

    h, every = lax.scan(step, jnp.zeros((x.shape[0], HIDDEN)), x.transpose(1, 0, 2))
    return every.transpose(1, 0, 2), h


def gru_onnx() -> onnx.ModelProto:
    b = Builder("gru", seed=3)
    x = b.op("Transpose", [b.input("x", [BATCH, STEPS, FEATURES])], perm=[1, 0, 2])
    w = b.weight("gru.W", b.normal((1, 3 * HIDDEN, FEATURES), FEATURES**-0.5))
    u = b.weight("gru.R", b.normal((1, 3 * HIDDEN, HIDDEN), HIDDEN**-0.5))
    bias = b.weight("gru.B", b.normal((1, 6 * HIDDEN), 0.1))
    every, last = b.ops("GRU", [x, w, u, bias], 2, hidden_size=HIDDEN, linear_before_reset=1)
    b.output(b.op("Transpose", [b.squeeze(every, 1)], perm=[1, 0, 2]), "every", [BATCH, STEPS, HIDDEN])
    b.output(b.squeeze(last, 0), "last", [BATCH, HIDDEN])
    return b.build()


PAIRS: dict[str, Pair] = {
    "m64": Pair(policy_suite.m64, m64, (17,)),
    "nat": Pair(policy_suite.nat, nat, (4, 84, 84), np.uint8),
    "imp": Pair(policy_suite.imp, imp, (3, 64, 64)),
    "resnet50": Pair(resnet50_onnx, resnet50, (3, 224, 224)),
    "bert layer": Pair(bert_layer_onnx, bert_layer, (TOKENS, WIDTH)),
    "gru scan": Pair(gru_onnx, gru_scan, (STEPS, FEATURES)),
}
