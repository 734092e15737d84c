"""Calls of a node that native code leaves to Python: new large sizes, sizes that data decides, sizes for which the
program was not made, and invalid arguments, for which this module raises the errors."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.frontend.onnx import import_onnx
from tilewright.ir.dtype import BY_NAME
from tilewright.ort.api import Api
from tilewright.ort.graph import shape_of
from tilewright.ort.groups import Build, Group
from tilewright.parts.variants import observed
from tilewright.runtime.model import Model
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError

Shapes = tuple[tuple[int, ...], ...]

MAX_VARIANTS = 16
"""The number of programs for single sizes that a node keeps; the oldest is dropped first."""


@dataclass(slots=True)
class Computed:
    """The computation of a fused node: its program (in `group`), and `variants`, further programs, one for each choice
    of shapes that the first does not accept, such as shapes with a size of 0. `inputs` and `outputs` map positions of
    the program's inputs and outputs to positions of the node's."""

    group: Group
    build: Build
    inputs: list[int]
    outputs: list[int]
    variants: dict[Shapes, Model] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, api: Api, context: int) -> None:
        """Run on the tensors of a kernel's context. Raises Error if they are invalid."""
        model, arrays = self.group.model, dict[str, np.ndarray[Any, Any]]()
        for spec, number in zip(model.inputs, self.inputs, strict=True):
            value = api.handle("KernelContext_GetInput", context, number)
            if not value:
                raise CallError("the input is missing", where=f"input {spec.name!r}")
            arrays[spec.name] = _array(api, value, shape_of(api, value)[1], spec.dtype)
        results = self.model_for(arrays).run(arrays)
        for output, number in zip(model.outputs, self.outputs, strict=True):
            result = results[output.name]
            shape = (ctypes.c_int64 * max(result.ndim, 1))(*result.shape)
            value = api.handle("KernelContext_GetOutput", context, number, shape, result.ndim)
            np.copyto(_array(api, value, result.shape, output.dtype), result)

    def model_for(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Model:
        """The program that accepts inputs of these shapes, compiled if there is none yet."""
        model, section = self.group.model, self.group.section
        if section is None or _takes(model, arrays):
            return model
        shapes = tuple(a.shape for a in arrays.values())
        with self.lock:
            if shapes not in self.variants:
                model = self.build(import_onnx(section.model(observed(arrays, section.inputs))), section.name)
                newest = list(self.variants.items())[1 - MAX_VARIANTS :]
                self.variants = dict(newest) | {shapes: model}
            return self.variants[shapes]


def _takes(model: Model, arrays: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    """Whether the program `model` accepts arrays of these sizes."""
    symbols = {s.name: s for s in model.manifest.symbols}
    sizes = [
        (symbols[dim], size)
        for spec in model.inputs
        for dim, size in zip(spec.shape, arrays[spec.name].shape, strict=False)
        if isinstance(dim, str)
    ]
    return all(s.lo <= size <= s.hi and size % s.multiple == 0 for s, size in sizes)


def _array(api: Api, value: int, shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    """The memory of ONNX Runtime's tensor `value` as an array of `shape` and `dtype`, which is valid during the
    call."""
    kind = BY_NAME[dtype].numpy
    nbytes = math.prod(shape) * kind.itemsize
    if not nbytes:
        return np.empty(shape, kind)
    address = api.handle("GetTensorMutableData", value)
    memory = memoryview((ctypes.c_uint8 * nbytes).from_address(address))
    array: np.ndarray[Any, Any] = np.frombuffer(memory, np.uint8).view(kind).reshape(shape)
    return array


__all__ = ["Computed"]
