"""ONNX models to graphs: `import_onnx(model)` gives an `Imported` graph with its weights beside it."""

from __future__ import annotations

from tilewright.frontend.onnx.importer import Imported, import_onnx

__all__ = ["Imported", "import_onnx"]
