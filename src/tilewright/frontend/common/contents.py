"""Formats of files by their first bytes, for messages about files of another format than was expected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tilewright.support.errors import ModelError

_HEAD = 32
"""How many bytes tell the format of a file."""
COMPILED = b"TWMODEL\x1a"
"""The first bytes of a compiled file (runtime/artifact.py)."""

FORMATS: tuple[tuple[bytes, str, str], ...] = (
    (COMPILED, "a compiled file of Tilewright", "tw.load(path)"),
    (
        b"PK\x03\x04",
        "a zip archive, as torch.save and torch.export.save write",
        "tw.compile reads files of torch.export.save that are named .pt2",
    ),
    (b"\x80", "a pickle, as torch.save wrote once", "pass the PyTorch module itself, with an example of its inputs"),
    (b"\x89HDF", "an HDF5 file, as Keras writes", "convert the model to ONNX"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself", "git lfs pull"),
    (b"\x1f\x8b", "a compressed file (gzip)", "uncompress it"),
    (b"ML\xefR", "StableHLO in bytes", "tw.compile reads it if it is named .mlir"),
    (b"module", "text of MLIR", "tw.compile reads it if it is named .mlir"),
    (b"<", "a text in HTML or XML", "look at what was downloaded"),
)
"""(first bytes, what a file that begins with them is, what to do with it). Sources: the formats' own descriptions."""


def other_format(message: str, data: bytes | None, *, where: str | None = None, got: str | None = None) -> ModelError:
    """The error for a file that is not of the format that `message` names. `data` is the file or its beginning, None
    for a model that is no file; `got` is what the reader said, which stands there if the format is not known."""
    what, hint = (None if data is None else _described(data[:_HEAD])) or (got, None)
    return ModelError(message, where=where, got=what, hint=hint)


def _described(head: bytes) -> tuple[str, str] | None:
    if not head:
        return "an empty file", "write or download it again"
    if head[4:8] == b"TFL3":
        return "a TFLite file", "tw.compile reads it if it is named .tflite"
    if head[8:9] == b"{" and not any(head[4:8]):
        return (
            "a safetensors file, which holds weights and no model",
            "pass the PyTorch module itself, with these weights",
        )
    if b"\0" in head and head.startswith(b"<"):  # no text: a FlatBuffer may begin so
        return None
    return next(((what, hint) for start, what, hint in FORMATS if head.lstrip().startswith(start)), None)


def other_object(message: str, model: object, *, where: str | None = None) -> ModelError:
    """The error for an object that is no model that `message` asks for, with what to pass instead of it."""
    hint = None
    if isinstance(model, type):
        hint = "pass an instance of the class, with an example of its inputs"
    elif hasattr(model, "as_text") and hasattr(model, "compile"):  # jax.stages.Lowered
        hint = "pass its text: lowered.as_text()"
    elif isinstance(model, bytearray | memoryview):
        hint = "pass bytes(model), or jax.export.deserialize(model) of what jax.export has serialized"
    elif isinstance(model, Mapping):
        hint = "weights alone are no model: pass the PyTorch module itself, with an example of its inputs"
    elif type(model).__module__.startswith("tilewright."):
        hint = "it is compiled already: call it, or pass what it was compiled from"
    elif callable(model):
        hint = "compile a function of JAX as tw.compile(jax.jit(f), example)"
    return ModelError(message, where=where, got=type(model).__name__, hint=hint)


def head_of(path: Path) -> bytes:
    """The first bytes of a file; none of what cannot be read or is no file (a pipe would be emptied)."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_HEAD)
    except (OSError, ValueError):  # ValueError: a character that no path has
        return b""


def is_compiled(path: Path) -> bool:
    """Whether the file is named .tw, or begins as a compiled file does."""
    return path.suffix == ".tw" or head_of(path).startswith(COMPILED)
