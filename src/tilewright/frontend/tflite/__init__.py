"""TFLite files (LiteRT's): a reader of their flatbuffers, and rules for their operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.ir.dim import DimSizes
from tilewright.ir.interface import Imported

IDENTIFIER = b"TFL3"


def reads(model: Any) -> bool:
    """Whether a model is a TFLite file: bytes that say so, or the path of a file with the suffix .tflite."""
    if isinstance(model, bytes | bytearray):
        return bytes(model[4:8]) == IDENTIFIER
    return isinstance(model, str | Path) and str(model).endswith(".tflite")


def import_tflite(model: bytes | str | Path, dims: DimSizes | None = None, example: Any = None) -> Imported:
    """Import a TFLite file as a graph. `importer.py` is only loaded by this call, as programs with models of other
    formats do without it."""
    from tilewright.frontend.tflite import importer

    return importer.import_tflite(model, dims, example)


__all__ = ["IDENTIFIER", "import_tflite", "reads"]
