"""Models of the suite in narrower types, as ONNX Runtime's tools write them: `<model>-qdq`, `-qop`, `-qdyn`, `-f16`.

    qdq     QuantizeLinear and DequantizeLinear around float operators, one scale a filter      static
    qop     QLinearConv, QLinearMatMul and their like                                           static
    qdyn    DynamicQuantizeLinear, MatMulInteger, ConvInteger                                   ranges by each input
    f16     all floats of 16 bits

Static ranges come from three random inputs. Activations have 8 bits without a sign, weights 8 with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

KINDS = ("qdq", "qop", "qdyn", "f16")
CALIBRATION = 3
"""Random inputs by which static ranges are found."""

Inputs = Callable[[onnx.ModelProto, int, int], dict[str, np.ndarray[Any, Any]]]
"""Inputs of a model for a batch and a seed."""


def split(name: str) -> tuple[str, str] | None:
    """(model, kind) of a narrow model's name; None for other names."""
    model, _, kind = name.rpartition("-")
    return (model, kind) if kind in KINDS else None


def narrowed(source: Path, kind: str, example: Inputs) -> onnx.ModelProto:
    """The model in a file, in the types of `kind`."""
    if kind == "f16":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        return convert_float_to_float16(onnx.load(source))
    return _quantised(source, kind, example)


def _quantised(source: Path, kind: str, example: Inputs) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with TemporaryDirectory() as folder:
        ready, done = Path(folder) / "ready.onnx", Path(folder) / "done.onnx"
        quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        if kind == "qdyn":
            quantize_dynamic(str(ready), str(done), weight_type=QuantType.QInt8)
        else:
            model = onnx.load(ready)
            quantize_static(
                str(ready),
                str(done),
                _Reader(example(model, 1, seed) for seed in range(CALIBRATION)),
                quant_format=QuantFormat.QDQ if kind == "qdq" else QuantFormat.QOperator,
                per_channel=kind == "qdq",
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        return onnx.load(done)


class _Reader:
    """The reader from which the quantiser takes inputs."""

    def __init__(self, inputs: Iterator[dict[str, np.ndarray[Any, Any]]]) -> None:
        self.inputs = inputs

    def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
        return next(self.inputs, None)
