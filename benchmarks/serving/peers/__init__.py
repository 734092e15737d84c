"""Other servers with ONNX Runtime, each in an environment of its own (`make bench-serve-peers`)."""
