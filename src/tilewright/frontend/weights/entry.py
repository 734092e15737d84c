"""`tw.read_weights`: the tensors of a file; `tw.with_weights`: a model with them in place of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.read import Dynamic, import_model
from tilewright.frontend.weights.coded import Array, CodedWeight
from tilewright.frontend.weights.gguf import read_gguf
from tilewright.frontend.weights.packed import unpack
from tilewright.frontend.weights.safetensors import read_safetensors
from tilewright.ir.dim import DimSizes
from tilewright.ir.expr import as_int
from tilewright.ir.graph import GraphBuilder, Value
from tilewright.ir.interface import Imported
from tilewright.support.errors import ModelError, Problems
from tilewright.transform.regions.captures import names_of

Tensors = Mapping[str, Array | CodedWeight]


def read_weights(path: str | Path) -> dict[str, Array | CodedWeight]:
    """The tensors of a .gguf or .safetensors file by name: arrays, or `CodedWeight` where they are quantised.

    Raises ModelError or WeightError where the file is damaged or neither of these, UnsupportedError for types that are
    not read.
    """
    suffix = Path(path).suffix
    try:
        if suffix == ".gguf":
            return read_gguf(path)
        if suffix == ".safetensors":
            return unpack(read_safetensors(path), str(path))
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", where=str(path)) from None
    raise ModelError(
        "is no file of weights", where=str(path), expected=".gguf or .safetensors", got=suffix or "no suffix"
    )


def with_weights(
    model: Any,
    weights: Tensors | str | Path,
    example: Any = None,
    *,
    rename: Callable[[str], str | None] | Mapping[str, str] | None = None,
    dims: DimSizes | None = None,
    dynamic: Dynamic = "auto",
) -> Imported:
    """A model for `tw.compile` with other weights; quantised ones stay quantised.

    Args:
        model, example, dims, dynamic: as for `tw.compile`.
        weights: a file that `read_weights` reads, or its tensors. A matrix may lie as the transpose of the model's.
        rename: the model's name of a tensor of the file, by a function or a dictionary; None, or no entry: the tensor
            is left out. Without it the names must be the model's.

    Raises ModelError, which lists every tensor that the model does not have, or has with another shape.
    """
    read = import_model(model, dims, example, dynamic)
    tensors = read_weights(weights) if isinstance(weights, str | Path) else weights
    rename = rename.get if isinstance(rename, Mapping) else rename
    named = {name if rename is None else rename(name): tensor for name, tensor in tensors.items()}
    params = {p.name: p for p in read.graph.params}
    problems, chosen = Problems(), dict[str, Array | CodedWeight]()
    for name, tensor in named.items():
        if name is None:
            continue
        shape = tuple(as_int(d) for d in params[name].shape) if name in params else None
        transposed = len(tensor.shape) == 2 and tensor.shape[::-1] == shape
        if shape is None or not (transposed or tuple(tensor.shape) == shape):
            what = "the model has no such weight" if shape is None else "the weight has another shape"
            problems.add(ModelError(what, where=name, expected=shape, got=tuple(tensor.shape)))
        chosen[name] = tensor
    problems.raise_if_any("the weights do not fit the model")
    return _replaced(read, chosen)


def _replaced(read: Imported, chosen: Tensors) -> Imported:
    graph, arrays = read.graph, {n: a for n, a in read.weights.items() if n not in chosen}
    builder = GraphBuilder(graph.name, list(graph.inputs), reserved=names_of(graph))
    numbers: dict[Value, Value] = {}
    for p in graph.params:
        tensor = chosen.get(p.name)
        if not isinstance(tensor, CodedWeight):
            builder.params.append(p)
            if tensor is not None:
                array = tensor if tuple(as_int(d) for d in p.shape) == tensor.shape else tensor.T
                arrays[p.name] = np.ascontiguousarray(array).astype(p.dtype.numpy)
            continue
        emitter = Emitter(builder, arrays, p.name)
        value = tensor.emit(emitter, p.name)
        if value.shape != p.shape:
            value = emitter.transpose(value, (1, 0))
        numbers[p] = emitter.cast(value, p.dtype)

    def used(v: Value | None) -> Value | None:
        return None if v is None else numbers.get(v, v)

    for node in graph.nodes:
        builder.nodes.append(replace(node, inputs=tuple(used(v) for v in node.inputs)))
    outputs = tuple(numbers.get(v, v) for v in graph.outputs)
    new = replace(graph, params=tuple(builder.params), nodes=tuple(builder.nodes), outputs=outputs)
    return replace(read, graph=new, weights=arrays)
