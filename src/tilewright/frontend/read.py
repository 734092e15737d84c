"""Import any model as a graph with its weights, by the frontend for its format."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.frontend import registry as frontends
from tilewright.frontend import stablehlo, tflite
from tilewright.frontend.common.contents import head_of, is_compiled, other_format, other_object
from tilewright.ir.dim import DimSizes, stated
from tilewright.ir.graph import Graph
from tilewright.ir.interface import Imported
from tilewright.support.errors import MissingPackageError, ModelError

Dynamic = str | Mapping[str, Mapping[int, str]] | None
"""Symbolic dimensions of a PyTorch module's inputs: "auto", none, or by input's name a map from axes to names."""


def import_model(
    model: Any,
    dims: DimSizes | None = None,
    example: Any = None,
    dynamic: Dynamic = "auto",
    params: Any = None,
) -> Imported:
    """The graph of `model`, with its weights by name. The other arguments are as in `tw.compile` (parts/entry.py).

    Raises ModelError (or a subclass) listing everything that is wrong with the model.
    """
    dims = stated(dims)
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], Graph):
        return Imported(model[0], dict(model[1]))
    if isinstance(model, Imported):
        return model
    if is_exported_file(model):
        model = load_exported(Path(model))
    if isinstance(model, Graph):
        if model.params:
            raise ModelError("a graph with parameters needs their values", expected="(graph, weights)")
        return Imported(model, {})
    if from_torch(model):
        from tilewright.frontend.torch import import_torch

        return import_torch(model, example, dims, dynamic)
    if stablehlo.reads(model):
        return stablehlo.import_stablehlo(model, example, dims, params)
    if tflite.reads(model):
        return tflite.import_tflite(model, dims, example)
    if params is not None:
        raise ModelError("only functions of JAX say which arguments are weights", got=type(model).__name__)
    frontend = frontends.find(model)
    if frontend is None and is_compiled_file(model):
        raise ModelError("the model is compiled already", where=str(model), hint="tw.load(path)")
    if frontend is not None:
        return frontend.load(model, dims, example)
    if example is not None:
        raise other_object("only PyTorch modules and functions of JAX need an example of their inputs", model)
    from tilewright.frontend.onnx import import_onnx

    return import_onnx(model, dims)


def is_onnx_file(model: Any) -> bool:
    """Whether `model` is the path of a file that the ONNX frontend reads."""
    is_path = isinstance(model, str | Path) and "\n" not in str(model) and os.path.isfile(model)
    others = is_compiled_file(model) or is_exported_file(model) or stablehlo.reads(model) or tflite.reads(model)
    return is_path and not others and frontends.find(model) is None


def is_compiled_file(model: Any) -> bool:
    """Whether `model` is the path of a file that is named .tw, or that begins as a compiled file does."""
    is_path = isinstance(model, str | Path) and "\n" not in str(model) and os.path.isfile(model)
    return is_path and is_compiled(Path(model))


def is_exported_file(model: Any) -> bool:
    """Whether `model` is the path of a file of `torch.export.save`: its name ends in .pt2, and no plug-in reads it."""
    is_path = isinstance(model, str | Path) and "\n" not in str(model) and str(model).endswith(".pt2")
    return is_path and frontends.find(model) is None


def load_exported(path: Path) -> Any:
    """The `torch.export.ExportedProgram` in a file of `torch.export.save`. Raises ModelError if there is no such file,
    or if it holds no program; MissingPackageError without PyTorch."""
    if not os.path.isfile(path):  # which, unlike Path's, is false for a name that is too long as well
        raise ModelError("it is a folder" if os.path.isdir(path) else "no such file", where=str(path))
    try:
        import torch
    except ImportError:
        raise MissingPackageError(
            "reading a .pt2 file needs PyTorch", where=str(path), hint="pip install 'tilewright[torch]'"
        ) from None
    from tilewright.frontend.torch.export import quietly

    try:
        with quietly():  # PyTorch logs where reading fails in one way, before it tries another
            return torch.export.load(path)
    except Exception as error:  # of many kinds
        got = "".join(str(error).strip().splitlines()[:1])[:200]
        message = "the file is no program of torch.export"
        data = head_of(path) or (None if os.path.getsize(path) else b"")
        if zipfile.is_zipfile(path):  # as files of torch.export are
            if _is_saved(path):
                hint = "pass the PyTorch module itself, with an example of its inputs"
                raise ModelError(message, where=str(path), got="a file of torch.save", hint=hint) from None
            data = None
        raise other_format(message, data, where=str(path), got=got) from None


def _is_saved(archive: Path) -> bool:
    """Whether a zip archive is of `torch.save`, which pickles one object into it."""
    try:
        with zipfile.ZipFile(archive) as file:
            return any(name.count("/") == 1 and name.endswith("/data.pkl") for name in file.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def from_torch(model: Any) -> bool:
    """Whether `model` is a PyTorch object. PyTorch is not imported for the test: a caller with a module has done so."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)
