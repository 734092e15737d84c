"""Tilewright inside ONNX Runtime: an execution provider for programs that use `onnxruntime.InferenceSession`.

    import onnxruntime
    import tilewright.ort

    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices(tilewright.ort.register(), {})
    session = onnxruntime.InferenceSession("model.onnx", options)

What Tilewright does not take of a model runs on ONNX Runtime's own provider, node by node (docs/onnxruntime.md).
"""

from __future__ import annotations

from tilewright.ort.register import NAME as NAME
from tilewright.ort.register import TESTED as TESTED
from tilewright.ort.register import left as left
from tilewright.ort.register import register as register
from tilewright.ort.register import unregister as unregister
