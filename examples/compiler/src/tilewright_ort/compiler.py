"""The compiler that the plug-in brings: convolutions and products with what follows them, run by ONNX Runtime.

A region becomes an ONNX model whose weights are inputs, so that a call has the present ones after `update` and
`publish`. Its bytes are all that a compiled model has of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime

from tilewright.codegen.onnx import onnx_model
from tilewright.ir.graph import Graph
from tilewright.runtime.compilers import Compiled, Compiler, Loaded
from tilewright.transform.graph.patterns import ANY, Pattern, either, op

Arrays = Sequence[np.ndarray[Any, Any]]

LAYER = op(("conv", "matmul"))
BIASED = either(op("add", LAYER, ANY), LAYER)
PATTERNS = (
    Pattern("layer_relu", op("relu", BIASED), priority=2),
    Pattern("layer", BIASED, priority=1),
    Pattern("max_pool", op("max_pool")),
)


def compile_region(region: Graph) -> Compiled:
    """The region as an ONNX model. Raises UnsupportedError for operators that ONNX has no words for."""
    every = replace(region, inputs=(*region.inputs, *region.params), params=())
    return Compiled(onnx_model(every, {}).SerializeToString())


def load(payload: bytes) -> Loaded:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(payload, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]

    def run(inputs: Arrays, weights: Arrays) -> Arrays:
        results: list[np.ndarray[Any, Any]] = session.run(None, dict(zip(names, [*inputs, *weights], strict=True)))
        return results

    return Loaded(run)


COMPILER = Compiler("onnxruntime", PATTERNS, compile_region, load, version=onnxruntime.__version__)
