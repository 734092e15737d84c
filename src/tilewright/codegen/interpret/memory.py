"""The interpreter's memory: elements in lists, with every index checked, and unwritten elements poisoned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.codegen.interpret.scalars import poison
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, Error

Array = np.ndarray[Any, Any]
Thunk = Callable[[], Any]


class InterpretError(Error):
    """The error of a program that reads or writes outside of a buffer, or uses a name that is not defined."""


@dataclass(slots=True)
class Memory:
    """The elements of a buffer as a flat list, and the buffer's shape. `data` is the same list as long as the buffer
    lives, so that closures may hold it."""

    buffer: Buffer
    data: list[Any]
    shape: tuple[int, ...]

    def array(self, shape: tuple[int, ...]) -> Array:
        """The elements as a NumPy array of this shape."""
        kind = self.buffer.dtype
        if kind.is_minifloat:
            return np.array(self.data, np.uint8).view(kind.numpy).reshape(shape)
        wide = kind.numpy if kind.bits >= 8 else np.dtype(np.int8)
        return np.array(self.data, wide).astype(kind.numpy, copy=False).reshape(shape)

    def fill(self, shape: tuple[int, ...]) -> None:
        """Reset the content to unwritten elements, for a buffer of this shape."""
        self.shape = shape
        self.data[:] = [poison(self.buffer.dtype)] * max(0, math.prod(shape))

    def position(self, index: tuple[int, ...]) -> int:
        """The flat position of an index. Raises InterpretError outside of the shape."""
        at = 0
        for i, extent in zip(index, self.shape, strict=True):
            if not 0 <= i < extent:
                raise self.outside(index)
            at = at * extent + i
        return at

    def outside(self, index: tuple[int, ...]) -> InterpretError:
        inside = ", ".join(str(i) for i in index)
        return InterpretError(f"index [{inside}] outside", where=f"buffer {self.buffer.name!r} {list(self.shape)}")


def elements_of(array: Array, kind: DType) -> list[Any]:
    """The elements of an array of type `kind` as the list of values that the interpreter computes with, in row-major
    order."""
    flat = array.ravel()
    if kind.is_float:
        return list(flat)
    if kind.is_minifloat:
        bits: list[Any] = flat.view(np.uint8).tolist()
        return bits
    return flat.astype(np.int8).tolist() if kind.bits < 8 else flat.tolist()


def gather(memory: Memory, positions: Array) -> Array:
    """The elements of `memory` at the flat `positions`, as an array of the shape of `positions`."""
    values = [memory.data[at] for at in positions.ravel().tolist()]
    return Memory(memory.buffer, values, positions.shape).array(positions.shape)


def same_place(a: Array, b: Array) -> bool:
    """Whether two arrays lie in the same memory. Raises CallError if they overlap in part."""
    if a is b or (a.__array_interface__ == b.__array_interface__ and a.size):
        return True
    if np.may_share_memory(a, b) and a.size and b.size:
        raise CallError("two arrays overlap in part")
    return False


def position_in(memory: Memory, index: list[Thunk]) -> Thunk:
    """A closure that computes the flat position of an index in a buffer of fixed shape. Each rank has a separate
    closure, for speed."""
    shape = memory.shape
    match index:
        case [i0]:
            (n0,) = shape

            def one() -> int:
                a: int = i0()
                if 0 <= a < n0:
                    return a
                raise memory.outside((a,))

            return one
        case [i0, i1]:
            n0, n1 = shape

            def two() -> int:
                a: int = i0()
                b: int = i1()
                if 0 <= a < n0 and 0 <= b < n1:
                    return a * n1 + b
                raise memory.outside((a, b))

            return two
        case [i0, i1, i2]:
            n0, n1, n2 = shape

            def three() -> int:
                a: int = i0()
                b: int = i1()
                c: int = i2()
                if 0 <= a < n0 and 0 <= b < n1 and 0 <= c < n2:
                    return (a * n1 + b) * n2 + c
                raise memory.outside((a, b, c))

            return three
        case [i0, i1, i2, i3]:
            n0, n1, n2, n3 = shape

            def four() -> int:
                a: int = i0()
                b: int = i1()
                c: int = i2()
                d: int = i3()
                if 0 <= a < n0 and 0 <= b < n1 and 0 <= c < n2 and 0 <= d < n3:
                    return ((a * n1 + b) * n2 + c) * n3 + d
                raise memory.outside((a, b, c, d))

            return four
    raise AssertionError(len(index))
