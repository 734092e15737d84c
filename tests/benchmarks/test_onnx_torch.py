"""ONNX graphs as PyTorch modules, which the PyTorch peers run: the same outputs as ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import models
from benchmarks.harness import relative_error
from benchmarks.peers.common import fixed_shapes

ort = pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")
torch = pytest.importorskip("torch", reason="the extra tilewright[torch] has it")


@pytest.mark.parametrize("name", ["hok1", "txl", "layer-transposed2x2-128-64-64-s2", "layer-gelu-128x3072"])
def test_same_as_onnx_runtime(name: str) -> None:
    from benchmarks import onnx_torch

    proto = fixed_shapes(name, 2)
    inputs = models.example_inputs(proto, 2)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    want = dict(zip(names, session.run(None, inputs), strict=True))
    with torch.inference_mode():
        got = onnx_torch.module(proto)(*[torch.from_numpy(np.array(x)) for x in inputs.values()])
    assert relative_error(dict(zip(names, (x.numpy() for x in got), strict=True)), want) < 1e-4
