"""Reductions of several arrays to one, always in the order of the ranks, so that each machine and each algorithm gives
equal bits.

f16 and bf16 are summed in f32 and rounded once. Minimum and maximum keep NaN, as NumPy and PyTorch do. Sums of booleans
are "or", products "and".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from typing import Any

import numpy as np

from tilewright.collective.kernels import is_native, reduction
from tilewright.support.errors import CollectiveError

Array = np.ndarray[Any, Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
}
"""Element types by name, with the NumPy type that stores them: bf16 is stored as u16, the upper half of an f32."""
CODES = {name: code for code, name in enumerate(DTYPES)}
OPERATIONS: dict[str, Callable[..., Array]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
REDUCTIONS = {name: code for code, name in enumerate(("none", *OPERATIONS))}
_BITWISE = ("band", "bor", "bxor")


NATIVE_ELEMENTS = 4096
"""From this many elements on, a less common reduction is compiled for this machine."""


def check_reduction(operation: str, dtype: str, where: Callable[[], str]) -> None:
    """Raise CollectiveError if there is no reduction called `operation`, or if it is undefined for elements of type
    `dtype`; `where` returns the text that says where it was called."""
    if operation not in OPERATIONS:
        raise CollectiveError("no such reduction", where=where(), expected=sorted(OPERATIONS), got=str(operation)[:40])
    kind = DTYPES[dtype].kind if dtype != "bf16" else "f"
    if (operation in _BITWISE and kind in "fc") or (operation in ("min", "max") and kind == "c"):
        raise CollectiveError(f"{operation} of {dtype} has no meaning", where=where())
    if operation == "avg" and kind not in "fc":
        raise CollectiveError("a mean needs numbers with fractions", where=where(), got=dtype, hint="take the sum")


def reduce_into(out: Array, parts: Sequence[Array], dtype: str, operation: str) -> None:
    """`out` becomes the reduction of `parts` (one a rank, all of out's length, `DTYPES[dtype]`); it may be one of them.

    A mean is the sum divided by the number of parts, rounded like any other operation of the type.
    """
    kernel = native(dtype, operation, out.size)
    if kernel is not None and all(one.flags.c_contiguous for one in (out, *parts)):
        table = np.array([address_of(part) for part in parts], np.int64)
        kernel(address_of(out), address_of(table), len(parts), out.size)
        return
    with np.errstate(all="ignore"):  # infinities and NaN are results like others
        reduce_in_numpy(out, parts, dtype, operation)


def native(dtype: str, operation: str, elements: int) -> Callable[[int, int, int, int], int] | None:
    """The native function that reduces arrays of `dtype` by `operation`; None if there is none, or if NumPy is as fast
    for so few `elements`."""
    if elements < (1 if dtype[-3:] in ("f32", "f16") and operation in ("sum", "avg") else NATIVE_ELEMENTS):
        return None
    return reduction(dtype, operation) if is_native(dtype, operation) else None


def address_of(array: Array) -> int:
    """The address of an array's first element."""
    if array.flags.writeable and array.nbytes:
        return addressof(c_char.from_buffer(array.data))  # a third of the time of the ways below
    address: int = array.ctypes.data
    return address


def reduce_in_numpy(out: Array, parts: Sequence[Array], dtype: str, operation: str) -> None:
    """Write the reduction of the arrays `parts`, of element type `dtype`, by `operation` to `out`, by NumPy, with the
    same bits as native code."""
    function = OPERATIONS[operation]
    narrow = dtype in ("f16", "bf16")
    if len(parts) == 2 and not narrow:
        total = function(parts[0], parts[1], out=out)
    else:
        total = widened(parts[0], dtype) if narrow else parts[0].copy()
        for part in parts[1:]:
            function(total, widened(part, dtype), out=total)
    if operation == "avg":
        np.divide(total, len(parts), out=total)
    if total is not out:
        np.copyto(out, narrowed(total, dtype))


def widened(part: Array, dtype: str) -> Array:
    """The array `part` as f32 if `dtype` is f16 or bf16 (whose bits it holds); other arrays unchanged."""
    if dtype == "bf16":
        return (part.astype(np.uint32) << 16).view(np.float32)
    return part.astype(np.float32) if dtype == "f16" else part


def narrowed(total: Array, dtype: str) -> Array:
    """The f32 array `total` rounded to `dtype` if that is f16 or bf16, to nearest and ties to even; for other types the
    array itself."""
    if dtype != "bf16":
        return total.astype(np.float16) if dtype == "f16" else total
    bits = total.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(total)] = 0x7FC0
    return rounded
