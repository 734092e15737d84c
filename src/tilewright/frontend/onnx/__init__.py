"""ONNX models to graphs: `import_onnx(model)` gives an `Imported` graph with its weights beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.ir.dim import DimSizes
from tilewright.ir.interface import Imported

if TYPE_CHECKING:
    from onnx import ModelProto


def import_onnx(model: ModelProto | bytes | str | Path, dims: DimSizes | None = None) -> Imported:
    """Import an ONNX model as a graph. `importer.py` is only loaded by this call, as programs that load known files
    (`model_files.py`) do without it."""
    from tilewright.frontend.onnx import importer

    return importer.import_onnx(model, dims)


__all__ = ["Imported", "import_onnx"]
