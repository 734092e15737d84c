"""A TFLite file as dataclasses. Numbers of fields and codes are those of tensorflow/lite/schema/schema.fbs, version
3."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.common.contents import other_format
from tilewright.frontend.tflite import IDENTIFIER
from tilewright.frontend.tflite.flatbuffer import Table
from tilewright.ir.dtype import DType, dtype
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, UnsupportedError

VERSION = 3
_TYPES = {0: "f32", 1: "f16", 2: "i32", 3: "u8", 4: "i64", 6: "bool", 7: "i16", 9: "i8", 10: "f64"}
OPERATORS = {
    0: "ADD", 1: "AVERAGE_POOL_2D", 2: "CONCATENATION", 3: "CONV_2D", 4: "DEPTHWISE_CONV_2D", 6: "DEQUANTIZE",
    9: "FULLY_CONNECTED", 14: "LOGISTIC", 17: "MAX_POOL_2D", 18: "MUL", 19: "RELU", 21: "RELU6", 22: "RESHAPE",
    25: "SOFTMAX", 28: "TANH", 34: "PAD", 39: "TRANSPOSE", 40: "MEAN", 114: "QUANTIZE",
}  # fmt: skip
"""The supported operators, by code."""


@dataclass(frozen=True, slots=True)
class Scales:
    """The quantisation of a tensor, `number = (code - zero) * scale`: f32 and i64, one or one for each entry along a
    dimension."""

    scale: Any
    zero: Any
    dimension: int

    @property
    def is_single(self) -> bool:
        return len(self.scale) == 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a TFLite graph. `array`: its numbers, if it is a constant."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    scales: Scales | None
    array: Any


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a TFLite graph: `inputs` and `outputs` are indices of tensors; an input of -1 is absent."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Table | None


@dataclass(frozen=True, slots=True)
class File:
    """A TFLite file: the tensors and operators of its only subgraph."""

    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


def parse(data: bytes) -> File:
    """Parse a file. Raises ModelError if it is damaged, UnsupportedError for several subgraphs or unsupported types."""
    view = memoryview(data)
    if bytes(view[4:8]) != IDENTIFIER:
        raise other_format("the file is no TFLite file", data, got=repr(bytes(view[4:8])))
    root = Table.root(view)
    if (version := root.number(0, "I")) != VERSION:
        raise UnsupportedError("the version of the schema is not read", expected=VERSION, got=version)
    graphs = root.tables(2)
    if len(graphs) != 1:
        raise UnsupportedError("a file of several subgraphs is not read", expected=1, got=len(graphs))
    codes = [max(c.number(0, "b"), c.number(3, "i")) for c in root.tables(1)]
    buffers = root.tables(4)
    tensors = tuple(_tensor(t, buffers) for t in graphs[0].tables(0))
    operators = tuple(_operator(o, codes) for o in graphs[0].tables(3))
    inputs, outputs = (tuple(graphs[0].numbers(k, "<i4").tolist()) for k in (1, 2))
    used = [*inputs, *outputs, *(k for o in operators for k in (*o.inputs, *o.outputs) if k != -1)]
    if any(not 0 <= k < len(tensors) for k in used):
        raise ModelError("the file names a tensor that there is not", expected=f"0 to {len(tensors) - 1}")
    return File(tensors, inputs, outputs, operators)


def _tensor(table: Table, buffers: list[Table]) -> Tensor:
    name, code, shape = table.text(3), table.number(1, "b"), tuple(table.numbers(0, "<i4").tolist())
    if code not in _TYPES:
        raise UnsupportedError("a tensor has a type that is not read", where=name, got=f"type {code}")
    kind, buffer = dtype(_TYPES[code]), table.number(2, "I")
    if any(d < 0 for d in shape) or buffer >= max(len(buffers), 1):
        raise ModelError("a tensor makes no sense", where=name, got=f"shape {shape}, buffer {buffer}")
    raw = buffers[buffer].numbers(0, "u1") if buffers else np.empty(0, np.uint8)
    array = None
    if raw.size:
        expected = int(np.prod(shape, dtype=object)) * kind.numpy.itemsize
        if raw.size != expected:
            raise ModelError("a constant has another size", where=name, expected=expected, got=raw.size)
        array = np.frombuffer(raw.tobytes(), kind.numpy).reshape(shape)
    return Tensor(name, shape, kind, _scales(table.table(4), name, shape), array)


def _scales(table: Table | None, name: str, shape: tuple[int, ...]) -> Scales | None:
    if table is None:
        return None
    scale, zero, dimension = table.numbers(2, "<f4"), table.numbers(3, "<i8"), table.number(6, "i")
    if not scale.size:
        return None
    zero = zero if zero.size else np.zeros(scale.size, np.int64)
    fits = scale.size == 1 or (0 <= dimension < len(shape) and shape[dimension] == scale.size)
    if not fits or zero.size != scale.size or not (np.isfinite(scale).all() and (scale > 0).all()):
        raise ModelError("scales do not fit their tensor", where=name, got=f"{scale.size} scales, {zero.size} zeros")
    return Scales(scale, zero, dimension)


def _operator(table: Table, codes: list[int]) -> Operator:
    index = table.number(0, "I")
    if index >= len(codes):
        raise ModelError("an operator has no code", expected=f"less than {len(codes)}", got=index)
    name = OPERATORS.get(codes[index], f"operator {codes[index]}")
    inputs, outputs = (tuple(table.numbers(k, "<i4").tolist()) for k in (1, 2))
    return Operator(name, inputs, outputs, table.table(4))
