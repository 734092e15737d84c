"""The description of a session's model: inputs and outputs with types as ONNX writes them, and the metadata in its
file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx.tensors import DTYPES
from tilewright.runtime.specs import InputSpec, OutputSpec
from tilewright.support.classes import dataclass

_T = onnx.TensorProto
_NAMES = {_T.FLOAT: "float", _T.DOUBLE: "double", _T.STRING: "string"}
CODES = {_NAMES.get(c, _T.DataType.Name(c).lower()): c for c in _T.DataType.values()}
"""ONNX's element types by the names that stand in "tensor(float)"."""
ELEMENTS: dict[int, str] = {code: name for name, code in CODES.items()}
_CODES_OF_OURS = {t.name: code for code, t in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output.

    Args:
        name: its name in the file.
        type: "tensor(float)", "seq(tensor(int64))", "optional(tensor(float))", "map(string,tensor(float))".
        shape: a number, a name or None (unknown) for each dimension; empty for scalars and where nothing is stated.
    """

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The file's metadata. `version` is the model's version, not that of the file format."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


def metadata_of(model: onnx.ModelProto) -> ModelMetadata:
    """The metadata of a file."""
    return ModelMetadata(
        model.producer_name,
        model.graph.name,
        model.domain,
        model.doc_string,
        model.graph.doc_string,
        model.model_version,
        {p.key: p.value for p in model.metadata_props},
    )


def node_arg(info: onnx.ValueInfoProto) -> NodeArg:
    """Name, type and shape of the value that `info` describes in a file."""
    return NodeArg(info.name, type_text(info.type), _shape(info.type))


def spec_arg(spec: InputSpec | OutputSpec) -> NodeArg:
    """Name, type and shape of an input or output of a compiled program."""
    code = _CODES_OF_OURS.get(spec.dtype)
    element = ELEMENTS[code] if code is not None else spec.dtype
    return NodeArg(spec.name, f"tensor({element})", list(spec.shape))


def type_text(kind: onnx.TypeProto) -> str:
    """A type as ONNX Runtime writes it."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            return f"tensor({ELEMENTS.get(kind.tensor_type.elem_type, 'undefined')})"
        case "sparse_tensor_type":
            return f"sparse_tensor({ELEMENTS.get(kind.sparse_tensor_type.elem_type, 'undefined')})"
        case "sequence_type":
            return f"seq({type_text(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_text(kind.optional_type.elem_type)})"
        case "map_type":
            key = ELEMENTS.get(kind.map_type.key_type, "undefined")
            return f"map({key},{type_text(kind.map_type.value_type)})"
    return ""


def element_of(type: str) -> str | None:
    """The element type in "tensor(float)" or "optional(tensor(float))"; None if the type is not a tensor."""
    inner = type.removeprefix("optional(") if type.startswith("optional(") else type
    return inner.removeprefix("tensor(").rstrip(")") if inner.startswith("tensor(") else None


def dtype_of(element: str) -> np.dtype[Any] | None:
    """NumPy's type for an element type; None for strings and what NumPy lacks."""
    known = DTYPES.get(CODES.get(element, 0))
    return None if known is None else np.dtype(known.numpy)


def element_name(dtype: np.dtype[Any]) -> str:
    """ONNX's name for a type of NumPy: "float" for float32."""
    if dtype.kind in "USOV" and dtype.names is None and dtype.name not in BY_NUMPY:
        return "string"
    return BY_NUMPY.get(dtype.name, dtype.name)


BY_NUMPY: dict[str, str] = {np.dtype(t.numpy).name: ELEMENTS[code] for code, t in DTYPES.items()}
"""ONNX's names by NumPy's."""


def with_inferred_shapes(outputs: Sequence[NodeArg], model: onnx.ModelProto) -> list[NodeArg]:
    """Outputs with the dimensions that the file leaves open, as far as shape inference knows them."""
    if all(o.shape and None not in o.shape for o in outputs):
        return list(outputs)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=False)
    except Exception:  # a model that its checker cannot read states what it states
        return list(outputs)
    known = {o.name: node_arg(o) for o in inferred.graph.output}
    return [_merged(o, known) for o in outputs]


def _merged(output: NodeArg, known: Mapping[str, NodeArg]) -> NodeArg:
    other = known.get(output.name)
    if other is None or not other.shape:
        return output
    kind = output.type if output.type not in ("", "tensor(undefined)") else other.type
    dims = [None if isinstance(d, str) and d.startswith("unk__") else d for d in other.shape]
    if not output.shape:
        return NodeArg(output.name, kind, dims)
    if len(output.shape) != len(dims):
        return output
    return NodeArg(output.name, kind, [d if a is None else a for a, d in zip(output.shape, dims, strict=True)])


def _shape(kind: onnx.TypeProto) -> list[int | str | None]:
    match kind.WhichOneof("value"):
        case "tensor_type":
            dims = kind.tensor_type.shape.dim
        case "optional_type":
            return _shape(kind.optional_type.elem_type)
        case _:
            return []
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]


__all__ = ["ModelMetadata", "NodeArg", "metadata_of", "node_arg", "spec_arg", "with_inferred_shapes"]
