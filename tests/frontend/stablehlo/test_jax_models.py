"""A network from JAX and from ONNX is one graph before algorithms are chosen, so that it is as fast."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import graph_passes
from tilewright.frontend.onnx import import_onnx
from tilewright.frontend.stablehlo import import_stablehlo
from tilewright.ir.graph import Graph
from tilewright.ir.key import key
from tilewright.targets.target import Target
from tilewright.train.gradient import gradient
from tilewright.transform.graph.constant_operands import hoist_constants

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
jnp, lax = jax.numpy, jax.lax

from benchmarks.jax_models import PAIRS, Pair  # noqa: E402  needs JAX

RNG = np.random.default_rng(0)


def simplified(graph: Graph) -> Graph:
    """The graph before algorithms are chosen, its weights in the order in which they are read."""
    graph, _ = hoist_constants(graph)
    for name, function in graph_passes(Target.parse("x86-64-v4")):
        if name == "choose algorithms":
            break
        graph = function(graph)
    read = [v for n in graph.nodes for v in n.inputs if v in graph.params]
    return replace(graph, params=tuple(v for v in dict.fromkeys(read) if v is not None))


def propagating(graph: Graph) -> Graph:
    """With JAX's maxima of windows, in which a NaN is the greatest number; ONNX Runtime's skip it."""
    nodes = (replace(n, attrs=replace(n.attrs, skips_nan=False)) if n.op == "max_pool" else n for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


@pytest.mark.parametrize("name", ["m64", "nat", "imp"])
def test_the_graph_is_the_one_from_onnx(name: str) -> None:
    pair = PAIRS[name]
    model = pair.onnx()
    (batch,) = jax.export.symbolic_shape("batch")
    spec = jax.ShapeDtypeStruct((batch, *pair.shape), pair.dtype)
    ours = import_stablehlo(jax.jit(pair.function), (pair.weights(model), spec), params=0).graph
    assert key(simplified(ours)) == key(simplified(propagating(import_onnx(model).graph)))


def compiled(pair: Pair, within: float, batch: int = 2) -> Any:
    """The model, which gives what JAX gives, `within` so much of each number."""
    weights, x = pair.weights(pair.onnx()), pair.input(batch)
    model = tw.compile(jax.jit(pair.function), (weights, x), params=0)
    result = model(x)
    for got, want in zip(jax.tree.leaves(result), jax.tree.leaves(jax.jit(pair.function)(weights, x)), strict=True):
        np.testing.assert_allclose(got, want, atol=within)
    return model


@pytest.mark.parametrize("batch", [1, 2])
def test_a_layer_of_bert_has_the_kernels_of_the_one_from_onnx(batch: int) -> None:
    pair = PAIRS["bert layer"]
    theirs = tw.compile(pair.onnx(), dims={"batch": batch})
    ours, wanted = ([s.label for s in m.program.manifest.run_steps] for m in (compiled(pair, 2e-5, batch), theirs))
    assert ours == wanted and "attention" in ours and "layer_norm" in ours


def test_normalisation_that_is_written_out_is_folded_into_weights() -> None:
    """The first layers of ResNet-50, whose batch norm begins with a difference."""

    def first(p: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(x, p["w"], (1, 1), "SAME")
        y = (y - p["mean"][:, None, None]) * (p["scale"] * lax.rsqrt(p["var"] + 1e-5))[:, None, None]
        return jax.nn.relu(y + p["shift"][:, None, None])

    p = weights(w=(8, 3, 3, 3), mean=(8,), scale=(8,), shift=(8,)) | {"var": np.linspace(0.5, 2, 8, dtype=np.float32)}
    run = agree(first, p, RNG.normal(size=(1, 3, 12, 12)).astype(np.float32)).split("graph @")[2]
    assert "sub(" not in run and "mul(" not in run


def test_a_gru_written_as_a_scan_is_one_kernel() -> None:
    model = compiled(PAIRS["gru scan"], 2e-6)
    assert "lowered.recurrence(" in model.show("graph")
    assert len(model.program.manifest.run_steps) <= 4


def weights(**shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: (RNG.normal(size=shape) / 3).astype(np.float32) for name, shape in shapes.items()}


def agree(function: Any, p: Any, *inputs: Any) -> str:
    """The graph of a function, whose results are JAX's."""
    model = tw.compile(jax.jit(function), (p, *inputs), params=0)
    want = jax.tree.leaves(jax.jit(function)(p, *inputs))
    for got, expected in zip(jax.tree.leaves(model(*inputs)), want, strict=True):
        np.testing.assert_allclose(got, expected, atol=5e-5)
    return str(model.show("graph"))


@pytest.mark.parametrize("reverse", [False, True])
def test_an_lstm_in_a_scan_from_either_end(reverse: bool) -> None:
    def lstm(p: Any, x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = (x @ p["w"][k] + h @ p["u"][k] + p["b"][k] for k in range(4))
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], 16))
        return lax.scan(step, (zeros, zeros), x, reverse=reverse)

    p = weights(w=(4, 8, 16), u=(4, 16, 16), b=(4, 16))
    assert agree(lstm, p, RNG.normal(size=(6, 3, 8)).astype(np.float32)).count("lowered.recurrence(") == 1


def test_a_scan_over_layers_is_written_out() -> None:
    def layers(p: Any, x: Any) -> Any:
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["w"])[0]

    graph = agree(layers, weights(w=(4, 8, 8)), RNG.normal(size=(3, 8)).astype(np.float32))
    assert graph.count("matmul_packed") == 4 and "loop(" not in graph


def test_a_long_scan_takes_elements_and_collects() -> None:
    """No cell, as rows are normalised; nothing in the body is as long as the sequence."""

    def long(p: Any, x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jax.nn.softmax(h @ p["w"] + x)
            return h, h.sum(-1)

        return lax.scan(step, jnp.zeros((2, 8)), x)

    graph = agree(long, weights(w=(8, 8)), RNG.normal(size=(600, 2, 8)).astype(np.float32))
    (body,) = (part.split("return")[0] for part in graph.split("{body = ")[1:])
    assert "scanned = 1" in graph and "600" not in body


def test_a_scan_that_uses_its_counter_agrees() -> None:
    def counted(p: Any, x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            i, h = state
            return (i + 1, jnp.tanh(h @ p["w"] + x * i)), h

        return lax.scan(step, (0, jnp.zeros((2, 8))), x)

    agree(counted, weights(w=(8, 8)), RNG.normal(size=(5, 2, 8)).astype(np.float32))


def test_a_cell_in_a_scan_has_a_gradient() -> None:
    def loss(w: Any, u: Any, x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ w + h @ u)
            return h, h

        return jnp.square(lax.scan(step, jnp.zeros((3, 8)), x)[1]).sum()

    inputs = (*weights(w=(5, 8), u=(8, 8)).values(), RNG.normal(size=(6, 3, 5)).astype(np.float32))
    graph = import_stablehlo(jax.jit(loss), inputs).graph
    assert [n.op for n in graph.nodes].count("loop") == 1
    whole = gradient(graph, graph.outputs[0].name, ["w", "u"])
    named = dict(zip(("w", "u", "x"), inputs, strict=True))
    _, *result = tw.compile(whole)(*(named[v.name] for v in whole.inputs))
    for got, want in zip(result, jax.grad(loss, argnums=(0, 1))(*inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
