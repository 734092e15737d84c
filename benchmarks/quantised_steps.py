"""How far a quantised file is from itself in ONNX Runtime, layer by layer and from end to end.

A file in QDQ form is cut at its codes: every layer reads codes that are inputs of the cut file, and gives those that
the next one would read. So each layer has equal inputs in both, and what later layers make of a difference does not
count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import tilewright as tw

CUT = "__codes"
"""The ending of names of inputs that stand in the place of codes."""

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Steps:
    """Differences of codes where inputs are equal, and those of all outputs from end to end.

    layers    activations that are quantised
    largest   steps between codes at most
    share     codes that differ of those of a layer, at most
    ends      the root of the mean square of the difference of outputs by that of the outputs: ours from
              the file as it is written, and ONNX Runtime's with its optimisations from the same
    """

    layers: int
    largest: int
    share: float
    ends: tuple[float, float]


def steps(model: onnx.ModelProto, feed: Arrays) -> Steps:
    """The steps between our codes and those of ONNX Runtime without its optimisations."""
    names = [n.output[0] for n in model.graph.node if n.op_type == "QuantizeLinear"]
    outputs = [o.name for o in model.graph.output]
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.UINT8, None) for name in names)
    written = _run(shown, feed, optimised=False)
    cut = onnx.ModelProto()
    cut.CopyFrom(shown)
    for node in cut.graph.node:
        node.input[:] = [f"{name}{CUT}" if name in names else name for name in node.input]
    cut.graph.input.extend(
        helper.make_tensor_value_info(f"{name}{CUT}", TensorProto.UINT8, written[name].shape) for name in names
    )
    codes = {**feed, **{f"{name}{CUT}": written[name] for name in names}}
    ours = tw.compile(cut).run(codes)
    differences = [np.abs(np.asarray(ours[name], np.int32) - written[name]) for name in names]
    ends = [
        relative({k: run[k] for k in outputs}, written)
        for run in (tw.compile(model).run(dict(feed)), _run(model, feed, optimised=True))
    ]
    return Steps(
        len(names),
        max(int(a.max()) for a in differences),
        max(float((a > 0).mean()) for a in differences),
        (ends[0], ends[1]),
    )


def relative(arrays: Arrays, exact: Arrays) -> float:
    """The root of the mean square of the difference of arrays by that of the exact ones."""
    square = sum(float(np.sum((np.float64(a) - np.float64(exact[k])) ** 2)) for k, a in arrays.items())
    whole = sum(float(np.sum(np.float64(exact[k]) ** 2)) for k in arrays)
    return float(np.sqrt(square / whole))


def _run(model: onnx.ModelProto, feed: Arrays, *, optimised: bool) -> dict[str, Any]:
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feed)), strict=True))
