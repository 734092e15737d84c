"""Arrays of other packages: NumPy views of PyTorch, JAX and DLPack tensors, and results in the caller's kind of
array."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME, bf16, dtype
from tilewright.support.errors import CallError

Array = np.ndarray[Any, Any]


def array_at(address: int, kind: np.dtype[Any], shape: Sequence[int]) -> Array:
    """A NumPy array of type `kind` and shape `shape`, contiguous in row-major order, that views memory at `address`."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if not nbytes:
        return np.empty(tuple(shape), kind)
    memory: Any = (ctypes.c_byte * nbytes).from_address(address)
    array: Array = np.frombuffer(memory, kind).reshape(shape)
    return array


def framework(obj: object) -> str:
    """The name of the package that an array's type comes from: "numpy", "torch", "jaxlib", ..."""
    return type(obj).__module__.partition(".")[0]


def as_numpy(obj: Any, where: str, written: bool = False) -> Array:
    """A NumPy view of the array `obj` in CPU memory; only PyTorch's lazy negatives and zeros are copied. Raises
    CallError, which names it by `where`, for objects of other kinds, and if the array will be `written` but would be a
    copy."""
    if isinstance(obj, (np.ndarray, np.generic)):
        return np.asarray(obj)
    kind = framework(obj)
    try:
        if kind == "torch":
            return _torch_view(obj, where, written)
        if kind in ("jax", "jaxlib"):
            return _jax_view(obj, where)
        if hasattr(obj, "__dlpack__"):
            return _dlpack_view(obj, where)
    except (AttributeError, BufferError, TypeError, ValueError, RuntimeError) as error:
        raise CallError(f"its memory cannot be viewed: {error}", where=where) from None
    by_name = isinstance(obj, Mapping) and where.startswith("input")
    hint = "inputs by name: model(name=x), or model.run({name: x})" if by_name else None
    got = type(obj).__qualname__
    raise CallError("not an array", where=where, expected="a NumPy, PyTorch or JAX array", got=got, hint=hint)


def _on_cpu(device: str, where: str) -> None:
    if device != "cpu":
        raise CallError("on the wrong device", where=where, expected="cpu", got=device)


def on_cpu(obj: Any) -> Any:
    """The array itself; a PyTorch tensor on another device is copied to CPU memory, as learners train on GPUs."""
    if framework(obj) == "torch" and not getattr(obj, "is_cpu", True) and not obj.is_meta:
        return obj.detach().cpu()
    return obj


def _torch_view(tensor: Any, where: str, written: bool) -> Array:
    import torch

    try:
        ordinary: Array = tensor.numpy()  # most often this is all
        return ordinary
    except (RuntimeError, TypeError):
        pass
    _on_cpu(tensor.device.type, where)
    if tensor.layout != torch.strided:
        raise CallError("not a dense tensor", where=where, got=str(tensor.layout))
    if written and (tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()):
        hint = "x.clone()" if tensor._is_zerotensor() else "x.resolve_neg()"
        raise CallError("a lazy conjugate, negative or zero cannot be written to", where=where, hint=hint)
    if tensor._is_zerotensor():  # it has no memory
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        view: Array = tensor.view(torch.int16).numpy().view(bf16.numpy)
        return view
    small = _SMALL_FLOATS.get(str(tensor.dtype))
    if small is not None:
        bits: Array = tensor.view(torch.uint8).numpy().view(BY_NAME[small].numpy)
        return bits
    return np.asarray(tensor.numpy())


_SMALL_FLOATS = {
    "torch.float8_e4m3fn": "f8e4m3fn",
    "torch.float8_e4m3fnuz": "f8e4m3fnuz",
    "torch.float8_e5m2": "f8e5m2",
    "torch.float8_e5m2fnuz": "f8e5m2fnuz",
    "torch.float8_e8m0fnu": "f8e8m0",
}
"""PyTorch's small floats, which NumPy lacks, with Tilewright's names."""


def _jax_view(array: Any, where: str) -> Array:
    for device in array.devices():
        _on_cpu(device.platform, where)
    return np.asarray(array)


def _dlpack_view(obj: Any, where: str) -> Array:
    _on_cpu("cpu" if int(obj.__dlpack_device__()[0]) == 1 else f"DLPack device {obj.__dlpack_device__()}", where)
    return np.from_dlpack(obj)


def in_kind_of(obj: object, array: Array) -> Any:
    """`array` converted to the kind of array that `obj` is; unchanged if that kind is not known."""
    if framework(obj) == "torch":
        import torch

        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if f"torch.{array.dtype.name}" in _SMALL_FLOATS:
            return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, array.dtype.name))
        return torch.from_numpy(array)
    if framework(obj) in ("jax", "jaxlib"):
        import jax  # type: ignore[import-not-found,unused-ignore]

        return jax.numpy.asarray(array)
    return array


def describe(array: Array) -> str:
    """The type and shape of `array` as text for messages: "f32[3, 17]"."""
    try:
        name = dtype(array.dtype).name if array.dtype.isnative else array.dtype.str
    except TypeError:
        name = str(array.dtype)
    return f"{name}[{', '.join(map(str, array.shape))}]"
