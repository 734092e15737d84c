"""Compiles the model that a session is given: the file is read, options are applied, and the model is described."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from tilewright.frontend.onnx.load import Loaded, load
from tilewright.frontend.onnx.tensors import embed, tensors_of
from tilewright.onnxruntime.description import (
    ModelMetadata,
    NodeArg,
    metadata_of,
    node_arg,
    spec_arg,
    with_inferred_shapes,
)
from tilewright.onnxruntime.errors import of_model
from tilewright.onnxruntime.options import SessionOptions, configure
from tilewright.parts.composite import Composite
from tilewright.parts.entry import compile
from tilewright.runtime.model import Model
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error
from tilewright.support.machine import usable_cpus

Compiled = Model | Composite


@dataclass(frozen=True, slots=True)
class Source:
    """A compiled model and what its file says.

    Args:
        overridable: initializers that the file lists as inputs, which a feed may have.
        variant: compiles the model once more with some of those as inputs.
    """

    model: Compiled
    inputs: list[NodeArg]
    outputs: list[NodeArg]
    overridable: list[NodeArg]
    metadata: ModelMetadata
    variant: Callable[[frozenset[str]], Compiled] | None = None


def source_of(value: Any, options: SessionOptions, from_model: bool, compile_options: Mapping[str, Any]) -> Source:
    """Read a session's model, apply options to it and compile it.

    Args:
        value: the path of an ONNX file or a .tw file, the bytes of an ONNX file, an `onnx.ModelProto`, or a model that
            is compiled already.
        from_model: take options from the model's metadata.
        compile_options: further options of `tw.compile`.
    """
    if isinstance(value, Model | Composite):
        return _of_compiled(value)
    if not isinstance(value, str | os.PathLike | bytes | onnx.ModelProto):
        raise TypeError(f"Unable to load from type '{type(value)}'")
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    try:
        if path is not None and str(path).endswith(".tw"):
            return _of_compiled(Model.load(path, _threads(options)))
        return _read(Path(path) if path is not None else value, options, from_model, dict(compile_options))
    except Error as error:
        raise of_model(error, None if path is None else str(path)) from error


def _of_compiled(model: Compiled) -> Source:
    inputs, outputs = [spec_arg(i) for i in model.inputs], [spec_arg(o) for o in model.outputs]
    return Source(model, inputs, outputs, [], ModelMetadata(graph_name=model.name))


def _read(value: Any, options: SessionOptions, from_model: bool, compile_options: dict[str, Any]) -> Source:
    loaded = load(value)
    proto = loaded.model
    if from_model:
        _configure(options, proto)
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    sizes = _fix_sizes(changed.graph, options)
    replaced = _replace_initializers(changed.graph, options)
    is_changed = bool(sizes or replaced or options.files)
    if is_changed or options.optimized_model_filepath:
        _embed_external(changed, loaded, options)
    if options.optimized_model_filepath:
        _write(changed, options)
    threads = _threads(options)

    def build(model: Any) -> Compiled:
        return compile(model, threads=threads, **compile_options)

    def variant(names: frozenset[str]) -> Compiled:
        _embed_external(changed, loaded, options)
        other = onnx.ModelProto()
        other.CopyFrom(changed)
        _drop_initializers(other.graph, names)
        return build(other)

    initialized = {t.name for t in proto.graph.initializer}
    return Source(
        build(changed if is_changed else value),
        [node_arg(i) for i in changed.graph.input if i.name not in initialized],
        with_inferred_shapes([node_arg(o) for o in changed.graph.output], changed),
        [node_arg(i) for i in changed.graph.input if i.name in initialized],
        metadata_of(proto),
        variant if any(i.name in initialized for i in changed.graph.input) else None,
    )


def _threads(options: SessionOptions) -> int:
    return options.intra_op_num_threads or max(1, int(usable_cpus()))


def _configure(options: SessionOptions, model: onnx.ModelProto) -> None:
    entry = next((p.value for p in model.metadata_props if p.key == "ort_config"), None)
    if entry is not None:
        configure(options, json.loads(entry).get("session_options", {}))


def _fix_sizes(graph: onnx.GraphProto, options: SessionOptions) -> bool:
    """Replace the dimensions that `options` fix by numbers, in the graph's inputs, outputs and values. Returns whether
    options fix any."""
    by_name = dict(options.sizes_by_name)
    for info in graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.denotation in options.sizes_by_denotation:
                size = options.sizes_by_denotation[dim.denotation]
                if dim.dim_param:
                    by_name[dim.dim_param] = size
                elif not dim.HasField("dim_value"):
                    dim.dim_value = size
    for info in (*graph.input, *graph.output, *graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in by_name:
                dim.dim_value = by_name[dim.dim_param]
    return bool(by_name or options.sizes_by_denotation)


def _replace_initializers(graph: onnx.GraphProto, options: SessionOptions) -> bool:
    """Replace initializers of the graph by the values that `options` have for them. Returns whether there are any."""
    for tensor in graph.initializer:
        if tensor.name in options.initializers:
            value = options.initializers[tensor.name].numpy()
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return bool(options.initializers)


def _embed_external(model: onnx.ModelProto, loaded: Loaded, options: SessionOptions) -> None:
    """Copy tensor elements from external files, on disk or in memory, into the model."""
    for tensor in tensors_of(model):
        location = {e.key: e.value for e in tensor.external_data}.get("location", "")
        files = options.files if location in options.files else loaded.folder
        embed(tensor, f"{loaded.label}: tensor {tensor.name!r}", files)


def _drop_initializers(graph: onnx.GraphProto, names: frozenset[str]) -> None:
    retained = [t for t in graph.initializer if t.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(retained)


def _write(model: onnx.ModelProto, options: SessionOptions) -> None:
    """Write the model as it was read, large initializers to a file of their own if options say so."""
    entries: Sequence[str] = [_entry(options, f"session.optimized_model_external_initializers_{n}") for n in _ENTRIES]
    file, least = entries
    written = onnx.ModelProto()
    written.CopyFrom(model)
    if not file:
        onnx.save(written, options.optimized_model_filepath)
        return
    for tensor in written.graph.initializer:  # onnx.save moves those alone whose elements are bytes
        if not tensor.HasField("raw_data") and tensor.data_type != onnx.TensorProto.STRING:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(
        written,
        options.optimized_model_filepath,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=file,
        size_threshold=int(least or 0),
    )


_ENTRIES = ("file_name", "min_size_in_bytes")


def _entry(options: SessionOptions, key: str) -> str:
    try:
        return options.get_session_config_entry(key)
    except RuntimeError:
        return ""


__all__ = ["Compiled", "Source", "source_of"]
