"""Where ONNX Runtime keeps its errors and classes, for programs that import them from there."""
