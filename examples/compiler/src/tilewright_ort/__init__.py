"""ONNX Runtime as a compiler of parts: `tw.compile(model, compilers=["onnxruntime"])`."""
