"""Parts that the peers share: a model's file and inputs, that file with its shapes fixed, folders for what they
make."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks import models

Arrays = dict[str, np.ndarray[Any, Any]]


def load(model: str, batch: int) -> tuple[str, Arrays]:
    """The model's file and its inputs."""
    path = models.load(model)
    return str(path), models.example_inputs(onnx.load(path, load_external_data=False), batch)


def fixed_shapes(model: str, batch: int) -> onnx.ModelProto:
    """The model with its symbolic dimension "batch" replaced by a number."""
    proto = onnx.load(models.load(model))
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "batch":
                dim.dim_value = batch
    retained = [v for v in proto.graph.value_info if not any(d.dim_param for d in v.type.tensor_type.shape.dim)]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(retained)
    return proto


def floats_for_bytes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Inputs of bytes become floats and their casts go, for frameworks without a cast."""
    names = set()
    for value in proto.graph.input:
        if value.type.tensor_type.elem_type == TensorProto.UINT8:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            names.add(value.name)
    retained = [n for n in proto.graph.node if not (n.op_type == "Cast" and n.input[0] in names)]
    renamed = {n.output[0]: n.input[0] for n in proto.graph.node if n.op_type == "Cast" and n.input[0] in names}
    for node in retained:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    del proto.graph.node[:]
    proto.graph.node.extend(retained)
    return proto


def converted(peer: str, model: str, batch: int, convert: Callable[[Path], None]) -> Path:
    """The folder with what `convert` makes of a model (it is given an empty folder), made once.

    Like the models, these files are kept under `build`; a new version of the model or the framework gets a new folder.
    """
    source = models.load(model)
    folder = models.ROOT / "build" / "peers" / peer / f"{source.stem}-{batch}"
    if folder.exists() and folder.stat().st_mtime >= source.stat().st_mtime:
        return folder
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        convert(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
