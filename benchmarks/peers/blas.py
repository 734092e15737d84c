"""OpenBLAS through NumPy: matrix products alone."""

from __future__ import annotations

import os

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.peers.common import load
from tilewright.measure.contender import Prepared
from tilewright.support.errors import Error


def dot(model: str, threads: int, batch: int) -> Prepared:
    """A model that is one MatMul, of two inputs or of an input and a weight."""
    assert os.environ.get("OPENBLAS_NUM_THREADS", str(threads)) == str(threads)
    path, inputs = load(model, batch)
    graph = onnx.load(path).graph
    if [node.op_type for node in graph.node] != ["MatMul"]:
        raise Error("NumPy is a peer for single products", where=model, expected="one MatMul")
    arrays = {**inputs, **{w.name: numpy_helper.to_array(w) for w in graph.initializer}}
    a, b = (np.ascontiguousarray(arrays[name]) for name in graph.node[0].input)
    out = np.matmul(a, b)
    name = graph.output[0].name
    return Prepared(lambda: np.matmul(a, b, out=out), lambda: {name: out}, {"version": np.__version__})
