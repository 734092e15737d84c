"""Frontends that are not part of Tilewright: registered by a program, or provided by plug-ins. They are tried for
models that neither the ONNX nor the PyTorch frontend recognises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.ir.dim import DimSizes
from tilewright.ir.interface import Imported
from tilewright.support import plugins
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Frontend:
    """A reader of one more model format.

    Args:
        name: of the format.
        reads: whether a model, an object or a path, is of this format.
        load: from the model, values of symbolic dimensions by name, and the example that the caller gave (None:
            without one), to a graph and its weights. Raises ModelError, which lists everything that is wrong.
    """

    name: str
    reads: Callable[[Any], bool]
    load: Callable[[Any, DimSizes, Any], Imported]


_extra: list[Frontend] = []


def register(frontend: Frontend) -> Frontend:
    """Add a frontend for a format. Raises PluginError if another registered frontend has its name."""
    plugins.check_new("frontend", [frontend.name], [f.name for f in _extra])
    _extra.append(frontend)
    return frontend


def unregister(name: str) -> None:
    """Remove a registered frontend."""
    _extra[:] = [f for f in _extra if f.name != name]


def names() -> tuple[str, ...]:
    """The names of the registered and plugged-in frontends."""
    plugins.load_group("frontends", _register)
    return tuple(f.name for f in _extra)


def find(model: Any) -> Frontend | None:
    """The first registered or plugged-in frontend that reads `model`; None for ONNX models."""
    names()
    return None if _is_onnx(model) else next((f for f in _extra if f.reads(model)), None)


def _register(plugin: plugins.Plugin, loaded: object) -> tuple[str, ...]:
    items = plugins.several(loaded, Frontend)
    plugins.check_new("frontend", [f.name for f in items], ["onnx", "torch", *(f.name for f in _extra)])
    for frontend in items:
        register(frontend)
    return tuple(f"frontend {f.name}" for f in items)


def _is_onnx(model: Any) -> bool:
    """Whether a model is ONNX by its type or its file's name."""
    if isinstance(model, str | Path):
        return Path(model).suffix == ".onnx"
    return isinstance(model, bytes) or type(model).__module__.partition(".")[0] == "onnx"


__all__ = ["Frontend", "find", "names", "register", "unregister"]
