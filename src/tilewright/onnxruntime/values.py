"""Values with ONNX's types: `OrtValue`. All memory is the processor's."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.onnxruntime.description import CODES, ELEMENTS, dtype_of, element_name
from tilewright.onnxruntime.devices import OrtDevice, check_device
from tilewright.onnxruntime.errors import InvalidArgument
from tilewright.runtime.interop import Array
from tilewright.support.classes import dataclass


class OrtValue:
    """A tensor, with its type in ONNX's words, or a sequence of tensors, a map or nothing, as runs give them."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @classmethod
    def ortvalue_from_numpy(cls, array: Array, device: str | OrtDevice = "cpu", device_id: int = 0) -> OrtValue:
        """A value in the memory of this array."""
        check_device(device)
        return cls(np.asarray(array))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, onnx_element_type: int) -> OrtValue:
        """A value in the memory of this array, whose bytes are read as another type of the same size."""
        dtype = element_dtype(onnx_element_type)
        if dtype.itemsize != data.dtype.itemsize:
            raise InvalidArgument("the types differ in size", expected=data.dtype, got=dtype)
        return cls(data.view(dtype))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device: str | OrtDevice = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A tensor whose elements have no values yet; the type is NumPy's, or ONNX's number of one. Raises an error for
        a device other than the CPU."""
        check_device(device)
        return cls(np.empty(tuple(shape), element_dtype(element_type)))

    @classmethod
    def from_dlpack(cls, capsule: Any, is_bool_tensor: bool = False) -> OrtValue:
        """A value in the memory that a capsule of DLPack describes, or an array that gives one."""
        array = np.from_dlpack(capsule if hasattr(capsule, "__dlpack__") else _Capsule(capsule))
        return cls(array.view(np.bool_) if is_bool_tensor else array)

    def to_dlpack(self) -> Any:
        """A capsule of DLPack for the value's memory."""
        return self.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype, copy=copy)

    def numpy(self) -> Array:
        """The tensor's memory as an array; RuntimeError for what is no tensor."""
        if not isinstance(self._value, np.ndarray):
            raise RuntimeError("Only OrtValues that are Tensors/SparseTensors are currently supported")
        return self._value

    def update_inplace(self, array: Array) -> None:
        """Copy other elements into the value's memory; the shape and the type stay."""
        if array.shape != self.numpy().shape or array.dtype != self.numpy().dtype:
            raise RuntimeError("The input array must have the shape and the type of the OrtValue")
        np.copyto(self.numpy(), array)

    def shape(self) -> list[int]:
        """The tensor's dimensions."""
        return list(self.numpy().shape)

    def data_type(self) -> str:
        """The type as ONNX writes it: "tensor(float)", "seq(tensor(float))"."""
        if isinstance(self._value, list):
            return f"seq({OrtValue(self._value[0]).data_type() if self._value else 'tensor(float)'})"
        return f"tensor({element_name(self.numpy().dtype)})"

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return int(CODES[element_name(self.numpy().dtype)])

    def tensor_size_in_bytes(self) -> int:
        """Bytes of the tensor."""
        return int(self.numpy().nbytes)

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self.numpy().ctypes.data)

    def device_name(self) -> str:
        """Where the value lies."""
        return "cpu"

    def has_value(self) -> bool:
        """Whether the value is there: an optional may be empty."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """Whether the value is a sparse tensor, which is never the case here."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether it is a sequence of tensors."""
        return isinstance(self._value, list)

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def _get_c_value(self) -> OrtValue:
        return self


class OrtValueVector(list[OrtValue]):
    """The values that a run gives, in the order of its outputs."""

    def dlpack_at(self, k: int) -> Any:
        """A capsule of DLPack for the k-th value."""
        return self[k].to_dlpack()

    def to_dlpacks(self, *_: Any) -> Iterator[Any]:
        """A capsule of DLPack for each value."""
        return (value.to_dlpack() for value in self)

    def element_type_at(self, k: int) -> int:
        """ONNX's number of the element type of the k-th value."""
        return self[k].element_type()


@dataclass(frozen=True, slots=True)
class _Capsule:
    """A DLPack capsule with the methods that NumPy expects of an array."""

    capsule: Any

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def element_dtype(kind: Any) -> np.dtype[Any]:
    """The NumPy type for `kind`: NumPy's own name or type, or ONNX's number of an element type."""
    if not isinstance(kind, int):
        named: np.dtype[Any] = np.dtype(kind)
        return named
    dtype = dtype_of(ELEMENTS.get(kind, ""))
    if dtype is None:
        raise InvalidArgument("not an element type of tensors in memory", got=kind)
    return dtype


def view_memory(address: int, shape: Sequence[int], kind: Any) -> Array:
    """The memory at `address` as an array of shape `shape`, without a copy and without keeping the memory alive. `kind`
    is an element type, NumPy's or ONNX's number."""
    dtype = element_dtype(kind)
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(tuple(shape), dtype)
    memory: Any = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    view: Array = np.frombuffer(memory, np.uint8).view(dtype).reshape(tuple(shape))
    return view


__all__ = ["OrtValue", "OrtValueVector", "view_memory"]
