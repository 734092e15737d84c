"""Random graphs in sessions: operators that are taken and one that is lacking, in any order, with any outputs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper

import tilewright.ort

from .test_provider import model, sessions

UNARY = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Identity", "Softmax")
BINARY = ("Add", "Mul", "Sub", "Max")
LACKING = "SampleOp"
"""An operator of ONNX Runtime's own domain that gives what it takes."""


def graph(r: random.Random) -> tuple[bytes, list[str], int]:
    """A model of arrays [n, width], the names of its inputs, and the width."""
    width, inputs, nodes = r.choice((1, 3, 4, 8)), ["x", "z"][: r.choice((1, 2))], list[NodeProto]()
    weights: dict[str, Any] = {}
    values = list(inputs)
    for k in range(r.randrange(1, 12)):
        kind, source = r.random(), r.choice(values)
        if kind < 0.35:
            node = helper.make_node(r.choice(UNARY), [source], [f"v{k}"])
        elif kind < 0.6:
            node = helper.make_node(r.choice(BINARY), [source, r.choice(values)], [f"v{k}"])
        elif kind < 0.75:
            weights[f"w{k}"] = np.random.default_rng(k).standard_normal((width, width), np.float32) / width
            node = helper.make_node("MatMul", [source, f"w{k}"], [f"v{k}"])
        else:
            node = helper.make_node(LACKING, [source], [f"v{k}"], domain="com.microsoft")
        nodes.append(node)
        values.append(f"v{k}")
    results = values[len(inputs) :]
    outputs = sorted(r.sample(results, min(len(results), r.randrange(1, 4))))
    infos = [[(name, TensorProto.FLOAT, ["n", width]) for name in names] for names in (inputs, outputs)]
    return model(nodes, *infos, weights), inputs, width


@pytest.mark.daily(5)
@pytest.mark.parametrize("seed", range(24))
def test_random_graphs(seed: int) -> None:
    onnxruntime.set_default_logger_severity(4)
    r = random.Random(seed)
    data, inputs, width = graph(r)
    ours, reference = sessions(data)
    for left in tilewright.ort.left()[-1]:
        assert left.startswith(f"{LACKING}:") or left.endswith("compute nothing that is read")
    for n in (r.choice((1, 2, 5)), r.choice((0, 7, 64))):
        feed = {
            name: np.random.default_rng(n + k).standard_normal((n, width), np.float32) for k, name in enumerate(inputs)
        }
        for got, want in zip(ours.run(None, feed), reference.run(None, feed), strict=True):
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            np.testing.assert_allclose(got, want, 1e-3, 1e-4 * scale)
