"""ONNX models to graphs: `import_onnx(model)` gives an `Imported` graph with its weights beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.ir.dim import DimSizes
from tilewright.ir.interface import Imported

if TYPE_CHECKING:
    from onnx import ModelProto


def import_onnx(model: ModelProto | bytes | str | Path, dims: DimSizes | None = None) -> Imported:
    """Read a model; see `importer.py`, which programs of known files (`model_files.py`) do without."""
    from tilewright.frontend.onnx import importer

    return importer.import_onnx(model, dims)


__all__ = ["Imported", "import_onnx"]
