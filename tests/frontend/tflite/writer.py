"""TFLite files for tests, written by the `flatbuffers` package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np

TYPES = {"float32": 0, "int32": 2, "uint8": 3, "int64": 4, "int8": 9}
OPERATORS = {
    "ADD": (0, 11), "AVERAGE_POOL_2D": (1, 5), "CONCATENATION": (2, 10), "CONV_2D": (3, 1), "DEPTHWISE_CONV_2D": (4, 2),
    "DEQUANTIZE": (6, 0), "FULLY_CONNECTED": (9, 8), "LOGISTIC": (14, 0), "MAX_POOL_2D": (17, 5), "MUL": (18, 21),
    "RELU": (19, 0), "RELU6": (21, 0), "RESHAPE": (22, 17), "SOFTMAX": (25, 9), "TANH": (28, 0), "PAD": (34, 22),
    "TRANSPOSE": (39, 26), "MEAN": (40, 27), "QUANTIZE": (114, 0),
}  # fmt: skip
"""The code of each operator and that of its options' table."""
Field = tuple[int, str, Any]
"""A field of a table: its number in the schema, its kind, its value."""


class Writer:
    """Collects tensors and operators of one subgraph."""

    def __init__(self) -> None:
        self.tensors: list[tuple[str, tuple[int, ...], str, Any, Any]] = []
        self.operators: list[tuple[str, Sequence[int], int, Sequence[Field]]] = []
        self.inputs: list[int] = []

    def tensor(self, shape: Sequence[int], dtype: str, scale: Any = None, zero: Any = 0, axis: int = 0) -> int:
        """A tensor that is computed or given. `scale` and `zero`: numbers, or one for each entry along an axis."""
        scales = None if scale is None else (np.atleast_1d(scale), np.atleast_1d(zero), axis)
        self.tensors.append((f"t{len(self.tensors)}", tuple(shape), dtype, scales, None))
        return len(self.tensors) - 1

    def input(self, shape: Sequence[int], dtype: str, scale: Any = None, zero: Any = 0) -> int:
        self.inputs.append(self.tensor(shape, dtype, scale, zero))
        return self.inputs[-1]

    def constant(self, array: Any, scale: Any = None, zero: Any = 0, axis: int = 0) -> int:
        array = np.ascontiguousarray(array)
        index = self.tensor(array.shape, array.dtype.name, scale, zero, axis)
        self.tensors[index] = (*self.tensors[index][:4], array)
        return index

    def add(self, name: str, inputs: Sequence[int], output: int, *options: Field) -> int:
        self.operators.append((name, inputs, output, options))
        return output

    def file(self, *outputs: int) -> bytes:
        b = flatbuffers.Builder(1024)
        buffers = [self._table(b, [])]
        tensors = []
        for name, shape, dtype, scales, array in self.tensors:
            buffer = 0
            if array is not None:
                buffer = len(buffers)
                buffers.append(self._table(b, [(0, "bytes", array.tobytes())]))
            fields: list[Field] = [(0, "i4", shape), (1, "b", TYPES[dtype]), (2, "I", buffer), (3, "text", name)]
            if scales is not None:
                scale, zero, axis = scales
                zero = np.broadcast_to(zero, scale.shape)
                quantised = [(2, "f4", scale), (3, "i8", zero), (6, "i", axis)]
                fields.append((4, "table", self._table(b, quantised)))
            tensors.append(self._table(b, fields))
        kinds = sorted({o[0] for o in self.operators})
        codes = [
            self._table(b, [(0, "b", min(OPERATORS[k][0], 127)), (2, "i", 1), (3, "i", OPERATORS[k][0])]) for k in kinds
        ]
        operators = []
        for name, inputs, output, options in self.operators:
            fields = [(0, "I", kinds.index(name)), (1, "i4", inputs), (2, "i4", [output])]
            if OPERATORS[name][1]:
                fields += [(3, "B", OPERATORS[name][1]), (4, "table", self._table(b, options))]
            operators.append(self._table(b, fields))
        graph: list[Field] = [
            (0, "tables", tensors),
            (1, "i4", self.inputs),
            (2, "i4", outputs),
            (3, "tables", operators),
        ]
        model: list[Field] = [
            (0, "I", 3), (1, "tables", codes), (2, "tables", [self._table(b, graph)]), (4, "tables", buffers),
        ]  # fmt: skip
        b.Finish(self._table(b, model), file_identifier=b"TFL3")
        return bytes(b.Output())

    def _table(self, b: flatbuffers.Builder, fields: Sequence[Field]) -> int:
        """A table with these fields; what they point to is written before."""
        placed = [(k, kind, self._placed(b, kind, value)) for k, kind, value in fields]
        b.StartObject(max((k for k, _, _ in fields), default=-1) + 1)
        scalars = {
            "b": b.PrependInt8Slot, "B": b.PrependUint8Slot, "i": b.PrependInt32Slot, "I": b.PrependUint32Slot,
            "f": b.PrependFloat32Slot, "?": b.PrependBoolSlot,
        }  # fmt: skip
        for k, kind, value in placed:
            if kind in scalars:
                scalars[kind](k, value, None)
            else:
                b.PrependUOffsetTRelativeSlot(k, value, 0)
        return int(b.EndObject())

    def _placed(self, b: flatbuffers.Builder, kind: str, value: Any) -> Any:
        if kind == "text":
            return b.CreateString(value)
        if kind == "bytes":
            return b.CreateByteVector(value)
        if kind == "tables":
            b.StartVector(4, len(value), 4)
            for offset in reversed(value):
                b.PrependUOffsetTRelative(offset)
            return b.EndVector()
        if kind in ("i4", "i8", "f4"):
            return b.CreateNumpyVector(np.asarray(value, f"<{kind}"))
        return value
