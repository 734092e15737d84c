"""Models of several parts: some compiled by Tilewright, the others run by ONNX Runtime, ONNX's reference or Python."""
