"""Arrays in the device's memory, by DLPack: inputs and outputs of calls, and new weights."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.arguments import bind_inputs, describe_spec, separate
from tilewright.runtime.dlpack import DL_CODE, DL_DATA, DL_OFFSET, DL_RANK, DL_SHAPE, DL_STRIDES
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.native import CALL
from tilewright.runtime.interop import Array, as_numpy, describe, framework
from tilewright.runtime.outputs import uninitialised
from tilewright.runtime.specs import OutputSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, Problems

if TYPE_CHECKING:
    from tilewright.runtime.engine import Engine

CUDA, CUDA_MANAGED = 2, 13
"""DLPack's device types whose memory NVIDIA's driver manages."""
_NAMES = {
    **{code << 8 | bits: f"{kind}{bits}" for code, kind in ((0, "i"), (1, "u")) for bits in (8, 16, 32, 64)},
    **{2 << 8 | bits: f"f{bits}" for bits in (16, 32, 64)},
    4 << 8 | 16: "bf16",
    6 << 8 | 8: "bool",
}
"""Tilewright's type names by DLPack's code and bits."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceArray:
    """A dense array on the device: its address, with shape and type as NumPy's. `owner` keeps the memory alive."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: object

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def on_device(obj: object) -> bool:
    """Whether an array states by DLPack that it is in a GPU's memory."""
    if isinstance(obj, np.ndarray):
        return False
    where = getattr(obj, "__dlpack_device__", None)
    return where is not None and int(where()[0]) in (CUDA, CUDA_MANAGED)


def device_array(obj: Any, device: Device, where: str) -> DeviceArray:
    """A view of the array `obj` on the device, ordered after the work that computes it. Raises CallError, which names
    it by `where`, if it is not dense or has an unknown type."""
    if framework(obj) == "torch":
        obj = obj.detach()
    try:
        capsule = obj.__dlpack__(stream=device.own[CALL.stream])
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        raise CallError(f"its memory cannot be viewed: {error}", where=where) from None
    at = _pointer(capsule)
    word, half = ctypes.c_int64.from_address, ctypes.c_int32.from_address
    rank, code = half(at + DL_RANK).value, ctypes.c_uint32.from_address(at + DL_CODE).value
    name = _NAMES.get((code & 0xFF) << 8 | code >> 8 & 0xFF) if code >> 16 == 1 else None
    if name is None:
        raise CallError("an unknown element type", where=where, got=f"DLPack's {code:#x}")
    shape = tuple((ctypes.c_int64 * rank).from_address(word(at + DL_SHAPE).value)) if rank else ()
    strides = word(at + DL_STRIDES).value
    if strides and rank and not _dense(shape, tuple((ctypes.c_int64 * rank).from_address(strides))):
        raise CallError("an array on a GPU must be contiguous", where=where, hint="x.contiguous()")
    address = word(at + DL_DATA).value + word(at + DL_OFFSET).value
    return DeviceArray(address, shape, BY_NAME[name].numpy, capsule)


def _pointer(capsule: object) -> int:
    """The address of the DLTensor in a capsule."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return int(get(capsule, b"dltensor") or 0)


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    wanted = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != wanted:
            return False
        wanted *= size
    return True


def call_on_device(engine: Engine, device: Device, inputs: Sequence[Any], out: Any) -> tuple[Any, int]:
    """(result, version of the weights) of a call with arrays on the device, with all checks. Outputs are written to
    `out`, or are new: PyTorch tensors on the device if the first input is there, else NumPy arrays."""
    manifest = engine.manifest

    def view(obj: Any, where: str, written: bool) -> Any:
        return device_array(obj, device, where) if on_device(obj) else as_numpy(obj, where, written)

    bound = bind_inputs(manifest.inputs, manifest.symbols, inputs, view)
    shapes = engine.output_shapes(bound.dims)
    if out is None:
        first = next((x for x in inputs if on_device(x)), None)
        results = _new(manifest.outputs, shapes, bound.arrays, first)
    else:
        results = list(out) if isinstance(out, tuple | list) else [out]
    places = _outputs(manifest.outputs, shapes, results, view)
    with device.current():
        device.wait()
    hosts = [a for a in bound.arrays if isinstance(a, np.ndarray)]
    others = iter(separate(hosts, [p for p in places if isinstance(p, np.ndarray)]))
    arrays = [next(others) if isinstance(a, np.ndarray) else a for a in bound.arrays]
    version = engine.call_at([_address(a) for a in (*arrays, *places)], bound.dims)
    if out is not None:
        return out, version
    return results[0] if len(results) == 1 else tuple(results) or None, version


def _address(array: Array | DeviceArray) -> int:
    return array.address if isinstance(array, DeviceArray) else array.ctypes.data


def _new(outputs: Sequence[OutputSpec], shapes: Sequence[tuple[int, ...]], arrays: Sequence[Array], first: Any) -> Any:
    if framework(first) != "torch":
        return uninitialised(outputs, shapes, [a for a in arrays if isinstance(a, np.ndarray)])
    import torch

    names = [BY_NAME[o.dtype].numpy.name for o in outputs]
    return [
        torch.empty(shape, dtype=getattr(torch, name), device=first.device)
        for name, shape in zip(names, shapes, strict=True)
    ]


def _outputs(
    outputs: Sequence[OutputSpec], shapes: Sequence[tuple[int, ...]], results: Sequence[Any], view: Any
) -> list[Any]:
    """The caller's arrays `results` for the outputs as `view` gives them. Raises CallError if their number, dtypes or
    shapes are wrong."""
    if len(results) != len(outputs):
        raise CallError("wrong number of outputs", expected=len(outputs), got=len(results))
    problems, places = Problems(), []
    for spec, shape, obj in zip(outputs, shapes, results, strict=True):
        where = f"output {spec.name!r}"
        try:
            array = view(obj, where, True)
        except CallError as error:
            problems.add(error)
            continue
        if array.dtype != BY_NAME[spec.dtype].numpy or array.shape != shape:
            problems.add(CallError("does not fit", where=where, expected=describe_spec(spec), got=describe(array)))
        elif isinstance(array, np.ndarray) and not (array.flags.c_contiguous and array.flags.writeable):
            problems.add(CallError("beside arrays on a GPU it must be contiguous and writable", where=where))
        places.append(array)
    problems.raise_if_any("the outputs do not fit", kind=CallError)
    return places


def on_host(weights: Mapping[str, Any], device: Device) -> Mapping[str, Any]:
    """Weights, in which arrays on the device are replaced by copies on the host, where they are checked."""
    if not isinstance(weights, Mapping) or not any(on_device(x) for x in weights.values()):
        return weights
    results: dict[str, Any] = {}
    with device.current():
        for name, x in weights.items():
            if not on_device(x):
                results[name] = x
                continue
            source = device_array(x, device, f"weight {name!r}")
            results[name] = np.empty(source.shape, source.dtype)
            device.copy(results[name].ctypes.data, source.address, source.nbytes)
            device.wait()
    return results


__all__ = ["DeviceArray", "call_on_device", "device_array", "on_device", "on_host"]
