"""The names of ONNX Runtime's module of this name: those of `onnxruntime_pybind11_state`."""

from tilewright.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
