"""A weight as codes with scales, and the nodes of a graph that compute its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.dtype import f32, i8, u8
from tilewright.ir.expr import const
from tilewright.ir.graph import TensorType, Value
from tilewright.support.classes import dataclass

Array = np.ndarray[Any, Any]

NF4: Array = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""The levels of nf4: quantiles of a normal distribution (Dettmers et al., 2023, arXiv 2305.14314, appendix E)."""


@dataclass(frozen=True, slots=True, eq=False)
class CodedWeight:
    """A quantised matrix [rows, depth] of outputs by inputs, `level(code) * scale - offset`; each group of a row has a
    scale.

    codes    u8[rows, groups, group/2], two codes a byte, the first in the low half; or u8 or i8[rows, groups, group]
    scales   f32[rows, groups]
    zeros    f32[rows, groups], the levels of 0; None: `zero` everywhere
    offsets  f32[rows, groups], taken off the scaled numbers; None: nothing
    book     f32[16], the levels of the codes; None: a code is its level
    paired   whether a byte holds two codes
    """

    codes: Array
    scales: Array
    zeros: Array | None = None
    offsets: Array | None = None
    zero: float = 0.0
    book: Array | None = None
    paired: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        rows, groups, width = self.codes.shape
        return rows, groups * width * (2 if self.paired else 1)

    @property
    def nbytes(self) -> int:
        """The bytes of codes, scales, zeros and offsets together."""
        return sum(a.nbytes for a in (self.codes, self.scales, self.zeros, self.offsets) if a is not None)

    def numpy(self) -> Array:
        """The dequantised numbers, f32[rows, depth]."""
        codes = self.codes
        if self.paired:
            codes = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:2], -1)
        levels = codes.astype(np.float32) if self.book is None else self.book[codes & 15]
        levels = levels - (np.float32(self.zero) if self.zeros is None else self.zeros[..., None])
        numbers = levels * self.scales[..., None]
        return (numbers if self.offsets is None else numbers - self.offsets[..., None]).reshape(self.shape)

    def emit(self, n: Emitter, name: str) -> Value:
        """Emit nodes that dequantise the matrix, f32[rows, depth], from parameters that are named after the weight."""

        def param(suffix: str, array: Array) -> Value:
            kind = {np.dtype(np.uint8): u8, np.dtype(np.int8): i8}.get(array.dtype, f32)
            value = n.builder.param(f"{name}.{suffix}", TensorType(kind, tuple(const(d) for d in array.shape)))
            n.weights[value.name] = np.ascontiguousarray(array)
            return value

        def each(suffix: str, array: Array) -> Value:
            value = param(suffix, np.asarray(array, np.float32))
            return n.reshape(value, (*value.shape, 1))

        codes = param("codes", self.codes)
        rows, groups, width = self.codes.shape
        if self.paired:
            nibbles = (n.emit("bitand", codes, n.constant(15, u8)), n.emit("shr", codes, n.constant(4, u8)))
            both = n.emit("concat", *(n.reshape(nibble, (rows, groups, width, 1)) for nibble in nibbles), axis=3)
            codes = n.reshape(both, (rows, groups, 2 * width))
        if self.book is None:
            levels = n.cast(codes, f32)
        else:
            levels = n.emit("book_levels", codes, book=np.asarray(self.book, np.float32))
        if self.zeros is not None:
            levels = n.emit("sub", levels, each("zeros", self.zeros))
        elif self.zero:
            levels = n.emit("sub", levels, n.constant(self.zero, f32))
        numbers = n.emit("mul", levels, each("scales", self.scales))
        if self.offsets is not None:
            numbers = n.emit("sub", numbers, each("offsets", self.offsets))
        return n.reshape(numbers, self.shape)


def paired(codes: Array) -> Array:
    """Codes from 0 to 15, u8[..., even], two to a byte, the first in the low half."""
    return np.ascontiguousarray(codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)
