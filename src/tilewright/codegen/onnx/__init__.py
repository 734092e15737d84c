"""Source operators as an ONNX model, for ONNX Runtime and other readers of ONNX."""

from tilewright.codegen.onnx.emit import onnx_model

__all__ = ["onnx_model"]
