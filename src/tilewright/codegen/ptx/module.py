"""The result of code generation for a GPU: LLVM text, and how each of its kernels is launched."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Map:
    """A tensor map that a kernel takes as a parameter: the position of the array among the function's parameters, its
    type, its sizes in terms of the function's symbols, and the sizes of the tiles that are copied."""

    buffer: int
    dtype: DType
    sizes: tuple[Expr, ...]
    box: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched.

    Args:
        kernel: its name.
        buffers: positions of its pointers among the function's parameters, in order.
        symbols: positions of its integers among the function's symbols, in order, which come after the pointers.
        grid: blocks in directions x, y, z, by the function's symbols.
        block: threads of a block in each direction.
        shared: bytes of shared memory that the launch asks for, beyond what the kernel states itself.
        stated: bytes of shared memory that the kernel states itself.
        maps: tensor maps, the last arguments.
    """

    kernel: str
    buffers: tuple[int, ...]
    symbols: tuple[int, ...]
    grid: tuple[Expr, Expr, Expr]
    block: tuple[int, int, int]
    shared: int = 0
    stated: int = 0
    maps: tuple[Map, ...] = ()

    @property
    def threads(self) -> int:
        """The number of threads in a block."""
        x, y, z = self.block
        return x * y * z


@dataclass(frozen=True, slots=True)
class Module:
    """The kernels of a function: LLVM text, and their launches in order."""

    text: str
    launches: tuple[Launch, ...]


__all__ = ["Launch", "Map", "Module"]
