"""Import any model as a graph with its weights, by the frontend for its format."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.frontend import registry as frontends
from tilewright.frontend import stablehlo, tflite
from tilewright.ir.dim import DimSizes, stated
from tilewright.ir.graph import Graph
from tilewright.ir.interface import Imported
from tilewright.support.errors import ModelError

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
    if frontend is None and isinstance(model, str | Path) and str(model).endswith(".tw") and os.path.isfile(model):
        raise ModelError("the model is compiled already", where=str(model), hint="tw.load(path)")
    if frontend is not None:
        return frontend.load(model, dims, example)
    if example is not None:
        raise ModelError(
            "only PyTorch modules and functions of JAX need an example of their inputs", got=type(model).__name__
        )
    from tilewright.frontend.onnx import import_onnx

    return import_onnx(model, dims)


def is_onnx_file(model: Any) -> bool:
    """Whether `model` is the path of a file that the ONNX frontend reads."""
    is_path = isinstance(model, str | Path) and "\n" not in str(model) and os.path.isfile(model)
    return is_path and not stablehlo.reads(model) and not tflite.reads(model) and frontends.find(model) is None


def from_torch(model: Any) -> bool:
    """Whether `model` is a PyTorch object. PyTorch is not imported for the test: a caller with a module has done so."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)
