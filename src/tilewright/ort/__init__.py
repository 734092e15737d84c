"""Tilewright inside ONNX Runtime: an execution provider for programs that use `onnxruntime.InferenceSession`.

    import onnxruntime
    import tilewright.ort

    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices(tilewright.ort.register(), {})
    session = onnxruntime.InferenceSession("model.onnx", options)

Nodes that Tilewright does not take run on ONNX Runtime's own provider (docs/onnxruntime.md).
"""

from __future__ import annotations

from tilewright.ort.registration import NAME as NAME
from tilewright.ort.registration import TESTED as TESTED
from tilewright.ort.registration import left as left
from tilewright.ort.registration import register as register
from tilewright.ort.registration import unregister as unregister
