"""Sparse tensors of a file as tensors with their zeros, before anything else is read.

A file of a few bytes may claim any number of zeros: what all of its sparse tensors take together is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import onnx

from tilewright.frontend.onnx.order import graphs
from tilewright.frontend.onnx.tensors import as_tensor, element_type, to_array
from tilewright.support.errors import ModelError

MAX_DENSE = 1 << 30
"""Bytes of all sparse tensors of a model with their zeros."""

_Body: TypeAlias = onnx.GraphProto | onnx.FunctionProto


def without_sparse(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """The model with tensors of all elements in place of sparse ones: a copy if it has any. Raises ModelError, about
    the model `label`, for invalid ones."""
    if not any(_sparse(body) or _references(body) for body in _bodies(model)):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _check_bytes([s for body in _bodies(result) for s in _sparse(body)], label)
    for body in _bodies(result):
        if isinstance(body, onnx.GraphProto):
            for sparse in body.sparse_initializer:
                body.initializer.append(_dense(sparse, f"{label}: initializer {sparse.values.name!r}"))
            del body.sparse_initializer[:]
        for a in _attributes(body):
            tensor = _dense(a.sparse_tensor, f"{label}: attribute {a.name!r}")
            a.CopyFrom(onnx.AttributeProto(name=_name(a), type=onnx.AttributeProto.TENSOR, t=tensor))
        for a in _references(body):
            a.name, a.type = _name(a), onnx.AttributeProto.TENSOR
    return result


def _bodies(model: onnx.ModelProto) -> Iterator[_Body]:
    """The model's graph, its functions, and the graphs inside of their nodes."""
    stack: list[_Body] = [model.graph, *model.functions]
    while stack:
        body = stack.pop()
        yield body
        stack += [graph for node in body.node for graph in graphs(node)]


def _all_attributes(body: _Body) -> Iterator[onnx.AttributeProto]:
    if isinstance(body, onnx.FunctionProto):
        yield from body.attribute_proto
    for node in body.node:
        yield from node.attribute


def _attributes(body: _Body) -> list[onnx.AttributeProto]:
    """The attributes that are sparse tensors: of Constant, and of calls of functions that have such nodes."""
    kind = onnx.AttributeProto.SPARSE_TENSOR
    return [a for a in _all_attributes(body) if a.type == kind and not a.ref_attr_name]


def _references(body: _Body) -> list[onnx.AttributeProto]:
    """The attributes that are a function's sparse tensors."""
    kind = onnx.AttributeProto.SPARSE_TENSOR
    return [a for a in _all_attributes(body) if a.type == kind and a.ref_attr_name]


def _name(a: onnx.AttributeProto) -> str:
    return "value" if a.name == "sparse_value" else str(a.name)


def _sparse(body: _Body) -> list[onnx.SparseTensorProto]:
    own = list(body.sparse_initializer) if isinstance(body, onnx.GraphProto) else []
    return [*own, *(a.sparse_tensor for a in _attributes(body))]


def _check_bytes(several: list[onnx.SparseTensorProto], label: str) -> None:
    total = 0
    for sparse in several:
        where = f"{label}: sparse tensor {sparse.values.name!r}"
        shape = list(sparse.dims)
        size = math.prod(shape) * element_type(sparse.values.data_type, where).itemsize
        total += size
        if any(d < 0 for d in shape) or size > MAX_DENSE:
            raise ModelError("the tensor's dimensions make no sense", where=where, got=shape)
    if total > MAX_DENSE:
        what = "the sparse tensors are too large together"
        raise ModelError(what, where=label, expected=f"at most {MAX_DENSE} bytes", got=total)


def _dense(sparse: onnx.SparseTensorProto, where: str) -> onnx.TensorProto:
    shape = tuple(sparse.dims)
    values, places = to_array(sparse.values, where, None), to_array(sparse.indices, where, None)
    flat = np.zeros(math.prod(shape), values.dtype)
    try:
        if places.dtype.kind not in "iu":
            raise IndexError("they are no integers")
        if places.ndim == 2:
            places = np.ravel_multi_index(tuple(places.T), shape)
        if values.ndim != 1 or places.shape != values.shape:
            raise IndexError(f"there are {places.shape} for values of shape {values.shape}")
        if np.any(places < 0):
            raise IndexError("there are negative ones")
        flat[places] = values
        array = flat.reshape(shape)  # NumPy refuses [2**62, 0, 2**62]
    except (ValueError, IndexError) as error:
        raise ModelError("the sparse tensor's indices do not fit", where=where, got=str(error)) from None
    return as_tensor(array, sparse.values.name)


__all__ = ["MAX_DENSE", "without_sparse"]
