"""The same network from JAX and from ONNX is one graph before algorithms are chosen, so that it is as fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tilewright as tw
from benchmarks import policy_suite
from tilewright.compiler import graph_passes, hoist_constants
from tilewright.frontend.onnx import import_onnx
from tilewright.frontend.stablehlo import import_stablehlo
from tilewright.ir.graph import Graph
from tilewright.ir.key import key
from tilewright.targets.target import Target

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
jnp, lax = jax.numpy, jax.lax

RNG = np.random.default_rng(0)


def linear(p: Any, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def conv(p: Any, name: str, x: Any, stride: int = 1, pad: int = 0) -> Any:
    pads = [(pad, pad)] * 2
    return lax.conv_general_dilated(x, p[f"{name}.weight"], (stride, stride), pads) + p[f"{name}.bias"][:, None, None]


def m64(p: Any, obs: Any) -> Any:
    results = []
    for tower, head in (("policy_net", "action_net"), ("value_net", "value_net_head")):
        x = obs
        for k in (0, 2):
            x = jnp.tanh(linear(p, f"mlp_extractor.{tower}.{k}", x))
        results.append(linear(p, head, x))
    return results


def nat(p: Any, obs: Any) -> Any:
    x = obs.astype(np.float32) / 255
    for name, stride in (("cnn.0", 4), ("cnn.2", 2), ("cnn.4", 1)):
        x = jax.nn.relu(conv(p, name, x, stride))
    x = jax.nn.relu(linear(p, "linear.0", x.reshape(x.shape[0], -1)))
    return linear(p, "action_net", x), linear(p, "value_net", x)


def imp(p: Any, x: Any) -> Any:
    for stack in range(3):
        x = conv(p, f"network.{stack}.conv", x, 1, 1)
        pads = [(0, 0), (0, 0), (1, 1), (1, 1)]
        x = lax.reduce_window(x, -np.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pads)
        for block in range(2):
            name = f"network.{stack}.res_block{block}"
            y = conv(p, f"{name}.conv0", jax.nn.relu(x), 1, 1)
            x = conv(p, f"{name}.conv1", jax.nn.relu(y), 1, 1) + x
    x = jax.nn.relu(linear(p, "fc", jax.nn.relu(x.reshape(x.shape[0], -1))))
    return linear(p, "actor", x), linear(p, "critic", x)


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], Callable[..., Any], tuple[int, ...], Any]] = {
    "m64": (policy_suite.m64, m64, (17,), np.float32),
    "nat": (policy_suite.nat, nat, (4, 84, 84), np.uint8),
    "imp": (policy_suite.imp, imp, (3, 64, 64), np.float32),
}


def simplified(graph: Graph) -> Graph:
    """The graph before algorithms are chosen, its weights in the order in which they are read."""
    graph, _ = hoist_constants(graph)
    for name, function in graph_passes(Target.parse("x86-64-v4")):
        if name == "choose algorithms":
            break
        graph = function(graph)
    read = [v for n in graph.nodes for v in n.inputs if v in graph.params]
    return replace(graph, params=tuple(v for v in dict.fromkeys(read) if v is not None))


@pytest.mark.parametrize("name", CASES)
def test_the_graph_is_the_one_from_onnx(name: str) -> None:
    build, function, shape, dtype = CASES[name]
    model = build()
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    (batch,) = jax.export.symbolic_shape("batch")
    spec = jax.ShapeDtypeStruct((batch, *shape), dtype)
    ours = import_stablehlo(jax.jit(function), (weights, spec), params=0).graph
    assert key(simplified(ours)) == key(simplified(import_onnx(model).graph))


def layer(p: Any, x: Any) -> Any:
    """A layer of BERT: attention, GELU, norms behind the sums."""

    def norm(x: Any, name: str) -> Any:
        mean = x.mean(-1, keepdims=True)
        deviation = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(deviation + 1e-12) * p[f"{name}.scale"] + p[f"{name}.bias"]

    batch, tokens, width = x.shape
    heads = (linear(p, f"{n}", x).reshape(batch, tokens, 4, width // 4).transpose(0, 2, 1, 3) for n in "qkv")
    q, k, v = heads
    attention = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(width / 4).astype(np.float32))
    y = (attention @ v).transpose(0, 2, 1, 3).reshape(batch, tokens, width)
    x = norm(x + linear(p, "o", y), "norm1")
    return norm(x + linear(p, "down", jax.nn.gelu(linear(p, "up", x), approximate=False)), "norm2")


def test_a_layer_of_bert_is_recognised() -> None:
    width = 32
    sizes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width)}
    sizes |= {"up": (4 * width, width), "down": (width, 4 * width)}
    weights = {f"{n}.weight": RNG.normal(size=s).astype(np.float32) / 6 for n, s in sizes.items()}
    weights |= {f"{n}.bias": RNG.normal(size=s[0]).astype(np.float32) for n, s in sizes.items()}
    weights |= {
        f"{n}.{k}": RNG.normal(size=width).astype(np.float32) for n in ("norm1", "norm2") for k in ("scale", "bias")
    }
    x = RNG.normal(size=(2, 9, width)).astype(np.float32)
    model = tw.compile(jax.jit(layer), (weights, x), params=0)
    graph = model.show("graph")
    assert "gelu(" in graph and "softmax(" in graph and "erf(" not in graph and "exp(" not in graph
    np.testing.assert_allclose(model(x), layer(weights, x), atol=2e-5)


def test_a_scan_over_time() -> None:
    def gru(p: Any, x: Any, h: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            r, z = jnp.split(jax.nn.sigmoid(x @ p["w"][:, :32] + h @ p["u"][:, :32]), 2, axis=-1)
            n = jnp.tanh(x @ p["w"][:, 32:] + r * (h @ p["u"][:, 32:]))
            h = (1 - z) * n + z * h
            return h, h

        return lax.scan(step, h, x)

    p = {"w": RNG.normal(size=(8, 48)).astype(np.float32), "u": RNG.normal(size=(16, 48)).astype(np.float32) / 4}
    x, h = RNG.normal(size=(6, 3, 8)).astype(np.float32), np.zeros((3, 16), np.float32)
    model = tw.compile(jax.jit(gru), (p, x, h), params="p")
    for found, expected in zip(model(x, h), jax.jit(gru)(p, x, h), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)
