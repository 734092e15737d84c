"""Stages that functions from outside compute: C functions, Python functions, LLVM text.

    y = te.extern((n,), [x], scale, sizes=[n], name="y")        # void scale(const float *x, float *y, int64_t n)
    z = te.extern((n,), [y], lambda y, z: np.sort(y, out=z))    # arrays in, written in place

The function sees whole arrays, dense and row by row, so such a stage stands where it was written, and its inputs and
outputs lie in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilewright.arith import prove_equal
from tilewright.ir.dtype import DType, f32
from tilewright.ir.dtype import dtype as _dtype
from tilewright.ir.expr import Expr, as_expr, as_int
from tilewright.ir.op_types import readable
from tilewright.native.toolchain import has_assembly
from tilewright.schedule.external import C_NAME, External, Size, register_external
from tilewright.support.classes import dataclass
from tilewright.support.errors import ExpressionError, user_line
from tilewright.te.tensors import IterVar, Tensor, extents_of_shape, unwrapped


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExternOp:
    """A stage that an external function computes; `shapes` and `dtypes` are those of its outputs."""

    name: str
    inputs: tuple[Tensor, ...]
    external: External
    shapes: tuple[tuple[Expr, ...], ...]
    dtypes: tuple[DType, ...]
    line: str | None = None

    def __str__(self) -> str:
        """The stage as text, `y = scale(x)`: the function and the tensors that it reads."""
        return f"{self.name} = {self.external.symbol}({', '.join(t.name for t in self.inputs)})"

    __repr__ = __str__

    @property
    def bodies(self) -> tuple[Expr, ...]:
        """The expressions of the elements: an empty tuple, as no expression says what the function computes."""
        return ()

    @property
    def axis(self) -> tuple[IterVar, ...]:
        """The axes to schedule: an empty tuple, as the function has no loops in the program."""
        return ()

    @property
    def reduce_axis(self) -> tuple[IterVar, ...]:
        return ()


def extern(
    shape: Sequence[Any],
    inputs: Sequence[Tensor],
    function: Callable[..., Any] | str,
    *,
    dtype: DType | str | Sequence[DType | str] = f32,
    sizes: Sequence[Any] = (),
    llvm: str | None = None,
    shared: str | None = None,
    address: int | None = None,
    name: str = "extern",
) -> Any:
    """A stage that `function` computes from all of its inputs.

    Args:
        shape: of the output; a sequence of shapes for several outputs.
        inputs: what it reads.
        function: a Python function, which takes the inputs (copies, read-only) and the outputs as NumPy arrays and
            writes the outputs in place; a function of ctypes; or the name of a C function, which `llvm` defines, which
            is at `address`, or which this process has.
        dtype: of the output, or of each.
        sizes: what a C function takes after the addresses of the inputs and the outputs, each as an int64_t: numbers,
            and extents of these arrays.
        llvm: LLVM text with the function's definition, `define void @function(ptr ..., i64 ...)`.
        shared: LLVM text of what that text calls; a program has it once, however many functions share it.
        address: where the function is.
        name: of the stage.

    Returns a Tensor, or a tuple of Tensors. What a Python function raises, the call raises; its outputs are zero then.
    Raises ExpressionError where the arguments are none of these.
    """
    line = user_line()
    where = f"extern {name!r}"
    several = isinstance(shape, list | tuple) and any(isinstance(s, list | tuple) for s in shape)
    shapes = tuple(extents_of_shape(s, name) for s in (shape if several else [shape]))
    kinds = tuple(map(_dtype, dtype)) if isinstance(dtype, list | tuple) else (_dtype(dtype),) * len(shapes)
    if len(kinds) != len(shapes):
        raise ExpressionError(f"{where}: a type for each output", expected=len(shapes), got=len(kinds), where=line)
    if not isinstance(inputs, list | tuple) or not all(isinstance(t, Tensor) for t in inputs):
        raise ExpressionError(f"{where}: the inputs are tensors", expected="a list of tensors", got=inputs, where=line)
    for t in inputs:
        if t.strides is not None:
            hint = "a stage that copies it lies row by row"
            raise ExpressionError(f"{where}: {t.name!r} has strides, which it does not see", hint=hint, where=line)
    arrays = [*(t.shape for t in inputs), *shapes]
    supplied = tuple(_size(s, arrays, where, line) for s in sizes)
    external = replace(_external(function, supplied, llvm, address, where, line), shared=shared)
    op = ExternOp(name, tuple(inputs), register_external(external), shapes, kinds, line)
    labels = [name] if not several else [f"{name}_{k}" for k in range(len(shapes))]
    results = tuple(
        Tensor(label, kind, extents, op, k)
        for k, (label, kind, extents) in enumerate(zip(labels, kinds, shapes, strict=True))
    )
    return results if several else results[0]


def _size(value: Any, arrays: Sequence[tuple[Expr, ...]], where: str, line: str | None) -> Size:
    """The size argument `value` in the form of `External`: a number, or (array, dimension) of an equal extent in
    `arrays`, the arrays' shapes. Raises ExpressionError, about `where` and the user's `line`, for other values."""
    size = as_expr(unwrapped(value))
    number = as_int(size)
    if number is not None:
        return number
    for k, shape in enumerate(arrays):
        for d, extent in enumerate(shape):
            if prove_equal(size, extent):
                return k, d
    raise ExpressionError(f"{where}: {readable(size)} is no extent of its inputs and outputs", where=line)


def _external(
    function: Any, sizes: tuple[Size, ...], llvm: str | None, address: int | None, where: str, line: str | None
) -> External:
    """The external function of `te.extern` from its argument `function`: a Python function, one of ctypes, or a name,
    for which `llvm` is its text or `address` its address. `sizes` are its size arguments. Raises ExpressionError, about
    `where` and the user's `line`, for anything else, or for options that do not fit."""
    if isinstance(function, str):
        return _named(function, sizes, llvm, address, where, line)
    if llvm is not None or address is not None:
        raise ExpressionError(f"{where}: llvm= and address= are for functions by name", where=line)
    symbol = getattr(function, "__name__", "function")
    symbol = symbol if C_NAME.fullmatch(symbol) else "function"
    if isinstance(function, _CFunction):
        place = ctypes.cast(function, ctypes.c_void_p).value
        if not place:
            raise ExpressionError(f"{where}: the function of ctypes is NULL", where=line)
        return External(symbol, symbol, sizes, address=place, owner=function)
    if not callable(function):
        expected = "a Python function, a function of ctypes, or a name"
        raise ExpressionError(f"{where}: no function", expected=expected, got=type(function).__name__, where=line)
    if sizes:
        raise ExpressionError(f"{where}: sizes= are for C functions; arrays have their shapes", where=line)
    return External(symbol, symbol, python=function)


def _named(
    name: str, sizes: tuple[Size, ...], llvm: str | None, address: int | None, where: str, line: str | None
) -> External:
    if not C_NAME.fullmatch(name):
        raise ExpressionError(f"{where}: no name of a C function", got=repr(name), where=line)
    if llvm is not None and address is not None:
        raise ExpressionError(f"{where}: the function is text or has an address, not both", where=line)
    if llvm is not None and has_assembly(llvm):
        raise ExpressionError(f"{where}: the text has instructions of a machine as text (asm)", where=line)
    if llvm is not None and f"@{name}(" not in llvm:
        raise ExpressionError(
            f"{where}: the text defines no such function", expected=f"define void @{name}(...)", where=line
        )
    if address is not None and (isinstance(address, bool) or not isinstance(address, int) or address <= 0):
        raise ExpressionError(f"{where}: no address", expected="a positive number", got=repr(address), where=line)
    return External(name, name, sizes, llvm, address)


_CFunction: Any = type(ctypes.CFUNCTYPE(None)()).__mro__[1]
"""The base class of functions of the package `ctypes`."""
