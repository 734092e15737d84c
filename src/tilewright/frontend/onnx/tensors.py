"""ONNX tensors and element types to NumPy arrays, checked: a file may claim anything.

The number of elements that a tensor claims is compared with the bytes that are there before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx.external import Folder, read_external
from tilewright.ir import dtype as dtypes
from tilewright.ir.dtype import DType
from tilewright.support.errors import ModelError, UnsupportedError

_T = onnx.TensorProto

DTYPES: dict[int, DType] = {
    _T.FLOAT: dtypes.f32,
    _T.DOUBLE: dtypes.f64,
    _T.FLOAT16: dtypes.f16,
    _T.BFLOAT16: dtypes.bf16,
    _T.FLOAT4E2M1: dtypes.f4e2m1,
    _T.FLOAT8E4M3FN: dtypes.f8e4m3fn,
    _T.FLOAT8E4M3FNUZ: dtypes.f8e4m3fnuz,
    _T.FLOAT8E5M2: dtypes.f8e5m2,
    _T.FLOAT8E5M2FNUZ: dtypes.f8e5m2fnuz,
    _T.FLOAT8E8M0: dtypes.f8e8m0,
    _T.INT2: dtypes.i2,
    _T.INT4: dtypes.i4,
    _T.INT8: dtypes.i8,
    _T.INT16: dtypes.i16,
    _T.INT32: dtypes.i32,
    _T.INT64: dtypes.i64,
    _T.UINT2: dtypes.u2,
    _T.UINT4: dtypes.u4,
    _T.UINT8: dtypes.u8,
    _T.UINT16: dtypes.u16,
    _T.UINT32: dtypes.u32,
    _T.UINT64: dtypes.u64,
    _T.BOOL: dtypes.boolean,
}
MAX_RANK = 32
"""Dimensions of a tensor, as many as NumPy allows."""
MAX_ELEMENTS = 1 << 59
"""Elements that a tensor's shape may have, so that sizes in bytes fit 64 bits."""

# Fields that may hold a type's elements instead of raw_data, and how many elements one entry holds.
_FIELDS: dict[int, str] = {
    _T.FLOAT: "float_data",
    _T.DOUBLE: "double_data",
    _T.INT64: "int64_data",
    _T.UINT64: "uint64_data",
    _T.UINT32: "uint64_data",
}


def element_type(code: int, where: str | None = None) -> DType:
    """The element type of a code of `TensorProto.DataType`. Raises UnsupportedError, or ModelError for no code, about
    the place `where`."""
    entry = DTYPES.get(code)
    if entry is not None:
        return entry
    try:
        name = _T.DataType.Name(code)
    except ValueError:
        raise ModelError("unknown element type", where=where, got=code) from None
    if name == "UNDEFINED":
        raise ModelError("the element type is not given", where=where)
    raise UnsupportedError(f"the element type {name} is not supported", where=where)


def to_array(tensor: onnx.TensorProto, where: str, folder: Folder | None, raw: Any = None) -> Any:
    """The tensor's elements, from `raw` if those bytes are not in the message, or from a file in `folder`. Raises
    ModelError, about the place `where`, when the data does not fit what the tensor claims."""
    t = element_type(tensor.data_type, where)
    shape = tuple(tensor.dims)
    # NumPy multiplies the dimensions of an empty array too.
    if len(shape) > MAX_RANK or any(d < 0 for d in shape) or math.prod(max(d, 1) for d in shape) > MAX_ELEMENTS:
        raise ModelError("the tensor's dimensions make no sense", where=where, got=list(shape))
    count = math.prod(shape)
    if tensor.HasField("segment"):
        raise UnsupportedError("tensors in segments are not supported", where=where)
    if tensor.data_location == _T.EXTERNAL:
        raw = read_external(tensor, where, folder, _packed_bytes(t, count))
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
    elif raw is None:
        return _from_field(tensor, t, shape, count, where)
    if len(raw) != _packed_bytes(t, count):
        raise ModelError(
            "the tensor's data has the wrong length",
            where=where,
            expected=f"{_packed_bytes(t, count)} bytes for {t}{list(shape)}",
            got=f"{len(raw)} bytes",
        )
    if t.bits < 8:
        return _unpacked(np.frombuffer(raw, np.uint8), t, count).reshape(shape)
    array = np.frombuffer(raw, t.numpy.newbyteorder("<") if t.itemsize > 1 and t.name != "bf16" else t.numpy)
    if t is dtypes.boolean:
        array = np.frombuffer(raw, np.uint8) != 0
    return array.astype(t.numpy, copy=False).reshape(shape)


def _packed_bytes(t: DType, count: int) -> int:
    return -(-count * t.bits // 8)


def _unpacked(packed: Any, t: DType, count: int) -> Any:
    """The `count` elements of type `t`, of less than 8 bits each, in the bytes `packed`: several a byte, the first in
    its lowest bits."""
    mask = (1 << t.bits) - 1
    parts = np.stack([packed >> shift & mask for shift in range(0, 8, t.bits)], axis=-1).reshape(-1)[:count]
    if t.is_minifloat:
        return parts.view(t.numpy)
    if t.kind == "int":
        parts = parts.astype(np.int16)
        parts = np.where(parts > mask >> 1, parts - (mask + 1), parts)
    return parts.astype(t.numpy)


def _from_field(tensor: onnx.TensorProto, t: DType, shape: tuple[int, ...], count: int, where: str) -> Any:
    values = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
    expected = _packed_bytes(t, count) if t.bits < 8 and len(values) != count else count
    if len(values) != expected:
        raise ModelError(
            "the tensor's data has the wrong length",
            where=where,
            expected=f"{expected} elements for {t}{list(shape)}",
            got=f"{len(values)}",
        )
    array = np.array(values)
    if t.bits < 8:
        return _unpacked(array.astype(np.uint8), t, count).reshape(shape)
    if t.is_minifloat:
        return array.astype(np.uint8).view(t.numpy).reshape(shape)
    if t.is_float and t.bits == 16:
        return array.astype(np.uint16).view(t.numpy).reshape(shape)
    return array.astype(t.numpy).reshape(shape)


def embed(tensor: onnx.TensorProto, where: str, folder: Folder | Mapping[str, Any] | None) -> None:
    """Put the data of a tensor that is in another file into its message; nothing for others. Raises ModelError.

    Args:
        folder: where files may lie, or the contents of files by their names.
    """
    if tensor.data_location != _T.EXTERNAL:
        return
    t = DTYPES.get(tensor.data_type)
    expected = None if t is None or any(d < 0 for d in tensor.dims) else _packed_bytes(t, math.prod(tensor.dims))
    data = bytes(read_external(tensor, where, folder, expected))
    del tensor.external_data[:]
    tensor.data_location = _T.DEFAULT
    tensor.raw_data = data


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All tensors of a model: initializers and attributes, those of functions and of graphs inside nodes as well."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        yield from _tensors_of_nodes(function.node)


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for a in (a for node in nodes for a in node.attribute):
        yield from (a.t, *a.tensors)
        for sparse in (a.sparse_tensor, *a.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for graph in (a.g, *a.graphs):
            yield from _tensors_of_graph(graph)


def as_tensor(value: Any, name: str) -> onnx.TensorProto:
    """`value`, an array or a list, as an ONNX tensor called `name`; text becomes strings."""
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        return onnx.helper.make_tensor(
            name, onnx.TensorProto.STRING, array.shape, [str(v).encode() for v in array.reshape(-1).tolist()]
        )
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
