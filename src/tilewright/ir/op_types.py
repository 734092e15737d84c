"""The types of scalar operators: what each takes and gives, by the rules of `scalar_ops.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.ir.c_functions import C_TYPES, LIBRARY, PREFIX, Signature
from tilewright.ir.dtype import DType, boolean, i64
from tilewright.ir.scalar_ops import OPS
from tilewright.support.errors import ExpressionError

if TYPE_CHECKING:
    from tilewright.ir.expr import Expr


def result_type(name: str, args: Sequence[Expr], dtype: DType | None) -> DType:
    """The result type of the operator `name` on these arguments; `dtype` is the type that the node states, if it does.
    Raises ExpressionError if the arguments do not fit."""
    info = OPS.get(name)
    if info is None and name.startswith(PREFIX):
        return _extern_type(name, args, dtype)
    if info is None:
        raise ExpressionError(f"no scalar operator named {name!r}")
    if info.rule == "lookup":
        return _lookup_type(args, dtype)
    if len(args) != info.arity:
        raise ExpressionError(f"{name} takes {info.arity} arguments, got {len(args)}")
    if info.rule == "cast":
        if dtype is None:
            raise ExpressionError(f"{name} needs its result type")
        return dtype
    operands = args[1:] if info.rule == "select" else args
    first = operands[0].dtype
    for a in operands:
        if a.dtype is not first:
            raise _disagreement(name, args)
    if info.rule == "select" and args[0].dtype is not boolean:
        raise _disagreement(name, args)
    if first.kind not in info.kinds:
        raise ExpressionError(f"{name} is not defined on {first}")
    result = boolean if info.rule == "bool" else first
    if dtype is not None and dtype is not result:
        raise ExpressionError(f"{name} of {first} gives {result}, not {dtype}")
    return result


def _lookup_type(args: Sequence[Expr], dtype: DType | None) -> DType:
    if len(args) < 2 or args[0].dtype is not i64:
        raise ExpressionError("lookup takes an i64 index and at least one entry")
    first = args[1].dtype
    if any(a.dtype is not first for a in args[1:]):
        raise ExpressionError("lookup: the entries are not literals of one type")
    if dtype is not None and dtype is not first:
        raise ExpressionError(f"lookup of {first} gives {first}, not {dtype}")
    return first


def _extern_type(name: str, args: Sequence[Expr], dtype: DType | None) -> DType:
    """The result type of a call of the C function `name` with `args`, which is `dtype`. Raises ExpressionError without
    one, if the call does not fit the function's signature in the C library, or if C has no such types."""
    name = name.removeprefix(PREFIX)
    where = f"C function {name!r}"
    if not _C_NAME.fullmatch(name):
        raise ExpressionError("this is no name of a C function", where=repr(name))
    if dtype is None:
        raise ExpressionError("needs its result type", where=where)
    wrong = next((t for t in (dtype, *(a.dtype for a in args)) if t not in C_TYPES), None)
    if wrong is not None:
        raise ExpressionError(
            "C has no such type", where=where, expected=", ".join(map(str, C_TYPES)), got=wrong, hint=_CASTS
        )
    asked = Signature(dtype, tuple(a.dtype for a in args))
    known = LIBRARY.get(name, asked)
    if known != asked:
        raise ExpressionError(
            "is the C library's, of another type", where=where, expected=known, got=asked, hint=_CASTS
        )
    return dtype


_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CASTS = "te.cast(x, dtype) converts one"


def _disagreement(name: str, args: Sequence[Expr]) -> ExpressionError:
    """The error for an operator whose arguments have different types."""
    types = ", ".join(a.dtype.name for a in args)
    for a in args:
        wanted = next((b.dtype for b in args if b.dtype is not a.dtype and b.dtype.is_float), None)
        if wanted is not None and a.dtype.is_int:
            hint = f'no type is converted silently: write te.cast({readable(a)}, "{wanted}")'
            return ExpressionError(f"{name}: argument types do not agree: {types}", hint=hint)
    return ExpressionError(f"{name}: argument types do not agree: {types}", hint=_CASTS)


def readable(e: Expr) -> str:
    """The text of an expression as its writer wrote it, without the numbers that distinguish axes of one name."""
    return re.sub(r"\b([A-Za-z_]\w*)\.\d+\b", r"\1", str(e))
