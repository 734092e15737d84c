"""Checks of numbers that are computed from data, such as an axis, a step or the sizes of parts.

    %axis = require(%given, %inside, %given) {what = "CumSum: the axis is outside", expected = "-2 to 1"} : i64[]

The result is the first operand. If the second one is false, the call ends there with a CallError that says `what` and
the third one, so that no reader of the result computes with an invalid number. Conditions on sizes alone are
assumptions of the graph instead (`transform/graph/assume.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import f64, i64
from tilewright.ir.graph import TensorType
from tilewright.ops.control import TRUTH
from tilewright.ops.dims import present
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, ShapeError


@dataclass(frozen=True, slots=True)
class RequireAttrs(Attrs):
    """Attributes of `require`, which raises an error unless a condition holds: the error's message says `what` is wrong
    and what was `expected`. With `external`, the checked number identifies an error of a part that another compiler
    built, which the call raises (`runtime/compilers.py`)."""

    what: str
    expected: str = ""
    external: bool = False


def _infer(types: Types, attrs: RequireAttrs) -> tuple[TensorType, ...]:
    """The type rule of `require`. Inputs: a tensor, which is the result; whether it is valid (bool[]); and the number
    that decides that (i64[] or f64[])."""
    x, holds, got = map(present, types)
    if holds != TRUTH or got.rank or got.dtype not in (i64, f64):
        result = f"{holds}, {got}"
        raise ShapeError("a condition and a number are needed", expected=f"{TRUTH}, i64[] or f64[]", got=result)
    return (x,)


def _reference(arrays: Sequence[Any], attrs: RequireAttrs) -> tuple[Any, ...]:
    x, holds, got = arrays
    if not holds:
        raise CallError(attrs.what, expected=attrs.expected or None, got=got.item())
    return (x,)


REQUIRE = register(OpDef("require", "opaque", RequireAttrs, _infer, _reference, alias=True))

__all__ = ["RequireAttrs"]
