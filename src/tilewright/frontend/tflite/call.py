"""`Call`: an operator of a TFLite file that is being imported, as its rule sees it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.tflite import fixed
from tilewright.frontend.tflite.schema import File, Operator, Scales, Tensor
from tilewright.ir.dtype import f32, i8, i16, i32, i64, u8
from tilewright.ir.graph import Value
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, UnsupportedError

CODES = (i8, u8)
NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)
BOUNDS: dict[int, tuple[float | None, float | None]] = {
    NONE: (None, None),
    RELU: (0.0, None),
    RELU_N1_TO_1: (-1.0, 1.0),
    RELU6: (0.0, 6.0),
}
"""The lower and upper bound of each fused activation."""


@dataclass(slots=True)
class Call(Emitter):
    """An operator that is being imported, its file, and the values of the tensors imported so far."""

    file: File
    node: Operator
    values: dict[int, Value]

    def tensor(self, i: int) -> Tensor:
        """The description of input `i`."""
        return self.file.tensors[self.node.inputs[i]]

    @property
    def out(self) -> Tensor:
        return self.file.tensors[self.node.outputs[0]]

    def has(self, i: int) -> bool:
        return i < len(self.node.inputs) and self.node.inputs[i] != -1

    def value(self, i: int) -> Value:
        """Input `i`, as a constant if the file holds its numbers."""
        index = self.node.inputs[i]
        if index not in self.values:
            array = self.tensor(i).array
            if array is None:
                raise ModelError("nothing computes an input", got=self.tensor(i).name)
            self.values[index] = self.constant(array)
        return self.values[index]

    def known(self, i: int) -> Any:
        """The numbers of input `i`, which must be a constant."""
        array = self.tensor(i).array
        if array is None:
            raise UnsupportedError("an input that must be a constant is computed", got=self.tensor(i).name)
        return array

    def option(self, field: int, code: str, default: Any = 0) -> Any:
        """Field number `field` of the operator's options, of the `struct` type `code`; `default` if it is absent."""
        return default if self.node.options is None else self.node.options.number(field, code, default)

    # --- codes --------------------------------------------------------------------------------------------------------

    @property
    def is_coded(self) -> bool:
        """Whether the operator computes with quantised numbers, 8-bit codes."""
        first, out = self.tensor(0), self.out
        if i16 in (first.dtype, out.dtype):
            raise UnsupportedError("operators on 16 bits are not read", got=first.name)
        if first.dtype in CODES and (first.scales is None or out.scales is None):
            raise ModelError("a tensor of 8 bits has no scale", got=first.name if first.scales is None else out.name)
        return first.dtype in CODES

    def single(self, t: Tensor) -> tuple[np.float32, int]:
        """(scale, zero point) of a tensor. Raises UnsupportedError if it has several, or none."""
        if t.scales is None or not t.scales.is_single:
            raise UnsupportedError("a tensor needs one scale", got=t.name)
        return np.float32(t.scales.scale[0]), int(t.scales.zero[0])

    def scales(self, t: Tensor) -> Scales:
        if t.scales is None:
            raise ModelError("a tensor of 8 bits has no scale", got=t.name)
        return t.scales

    def centred(self, x: Value, t: Tensor) -> Value:
        """The codes `x` of tensor `t` as i32, minus its zero point. Raises UnsupportedError if zero points differ along
        a dimension."""
        zeros = self.scales(t).zero
        if (zeros != zeros[0]).any():
            raise UnsupportedError("zero points that differ along a dimension are not read", got=t.name)
        wide = self.emit("cast", x, dtype=i32)
        return self.emit("sub", wide, self.constant(int(zeros[0]), i32)) if zeros[0] else wide

    def coded(self, x: Value, activation: int = NONE) -> Value:
        """`x`, sums in the output's scale (i64), as codes of the output: plus its zero point, clamped to its type and
        to the bounds of the fused activation."""
        scale, zero = self.single(self.out)
        low, high = (int(n) for n in (np.iinfo(self.out.dtype.numpy).min, np.iinfo(self.out.dtype.numpy).max))
        least, most = BOUNDS[self.activation(activation)]
        low = low if least is None else max(low, zero + _rounded(np.float32(least) / scale))
        high = high if most is None else min(high, zero + _rounded(np.float32(most) / scale))
        shifted = self.emit("add", x, self.constant(zero, i64)) if zero else x
        bounded = self.emit("min", self.emit("max", shifted, self.constant(low, i64)), self.constant(high, i64))
        return self.emit("cast", bounded, dtype=self.out.dtype)

    def multiplied(self, x: Value, numbers: Any, shape: tuple[int, ...] = (), once: bool = False) -> Value:
        """`x`, integers, times the real `numbers`, which broadcast in `shape`; rounded to i64 as the reference kernels
        do, in two steps or, with `once`, in one."""
        multiplied = fixed.multiplied_once if once else fixed.multiplied
        return multiplied(self, self.emit("cast", x, dtype=i64), numbers, shape)

    def real(self, x: Value, t: Tensor) -> Value:
        """The f32 numbers that the codes `x` of tensor `t` represent."""
        scales = self.scales(t)
        shape = [1] * x.type.rank
        if not scales.is_single:
            shape[scales.dimension] = len(scales.scale)
        wide = self.emit("cast", x, dtype=i32)
        if scales.zero.any():
            zero = scales.zero.reshape(() if scales.is_single else shape)
            wide = self.emit("sub", wide, self.constant(zero.astype(np.int32), i32))
        scale = scales.scale.reshape(() if scales.is_single else shape)
        return self.emit("mul", self.emit("cast", wide, dtype=f32), self.constant(scale))

    def nearest(self, x: Value) -> Value:
        """f32 numbers quantised to the output's codes: divided by its scale, rounded with halves away from zero, plus
        its zero point (`AffineQuantize`)."""
        scale, zero = self.single(self.out)
        low, high = (int(n) for n in (np.iinfo(self.out.dtype.numpy).min, np.iinfo(self.out.dtype.numpy).max))
        levels = self.emit("div", x, self.constant(scale))
        shifted = self.emit("add", fixed.nearest(self, levels), self.like(zero, levels))
        bounded = self.emit("min", self.emit("max", shifted, self.like(low, levels)), self.like(high, levels))
        return self.emit("cast", bounded, dtype=self.out.dtype)

    # --- numbers ------------------------------------------------------------------------------------------------------

    def activation(self, code: int) -> int:
        if code not in BOUNDS:
            raise UnsupportedError("a fused activation is not read", got=f"activation {code}")
        return code

    def activated(self, x: Value, code: int) -> Value:
        """The f32 numbers `x` after the fused activation with number `code`."""
        least, most = BOUNDS[self.activation(code)]
        if least == 0 and most is None:
            return self.emit("relu", x)
        x = x if least is None else self.emit("max", x, self.like(least, x))
        return x if most is None else self.emit("min", x, self.like(most, x))


def _rounded(number: Any) -> int:
    """The nearest whole number, halves away from zero."""
    return int(np.trunc(number + np.copysign(np.float32(0.5), number)))
