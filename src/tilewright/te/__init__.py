"""Tensor expressions: say what to compute; schedules say how.

    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.placeholder((n,), name="B")
    C = te.compute((n,), lambda i: A[i] + B[i], name="C")
    func = te.create_prim_func([A, B, C])

Tensors and stages are in `tensors`, what stands in their bodies in `elements`, and `blocks` makes functions of them.
"""

from collections.abc import Callable
from typing import Any

from tilewright.ir.expr import Buffer, Const, Expr, all_of, any_of, equal, maximum, minimum, not_equal
from tilewright.ir.functions import FUNCTIONS
from tilewright.schedule.compose import primitive
from tilewright.te.blocks import Lowered, all_stages, create_prim_func, create_schedule, lower, lower_stages, stages_of
from tilewright.te.elements import (
    abs,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctanh,
    atan2,
    call_extern,
    ceil,
    clz,
    comm_reducer,
    const,
    cos,
    cosh,
    ctz,
    erf,
    exp,
    exp2,
    exp_nonpositive,
    expm1,
    floor,
    fmod,
    if_then_else,
    isfinite,
    isinf,
    isnan,
    largest,
    log,
    log1p,
    log2,
    max,
    min,
    popcount,
    power,
    prod,
    round,
    rsqrt,
    sigmoid,
    sin,
    sinh,
    sqrt,
    sum,
    tan,
    tanh,
    trunc,
    truncdiv,
    truncmod,
    unary,
)
from tilewright.te.externs import ExternOp, extern
from tilewright.te.intrinsics import intrinsic, scope
from tilewright.te.lanes import cast
from tilewright.te.memory import bind_views, memory_shape
from tilewright.te.placeholders import placeholder, strided
from tilewright.te.scans import ScanOp, scan
from tilewright.te.tensors import (
    ComputeOp,
    ConstMatrix,
    IterVar,
    Tensor,
    compute,
    const_matrix,
    labelled,
    or_identity,
    reduce_axis,
    var,
)


def __getattr__(name: str) -> Callable[[Any], Expr]:
    """The scalar function of the table `FUNCTIONS` that is called `name`, for names that are not defined above."""
    if name in FUNCTIONS:
        return unary(name)
    raise AttributeError(f"te has no {name!r}")


__all__ = [
    "Buffer",
    "ComputeOp",
    "Const",
    "ConstMatrix",
    "ExternOp",
    "IterVar",
    "Lowered",
    "ScanOp",
    "Tensor",
    "abs",
    "all_of",
    "all_stages",
    "any_of",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "atan2",
    "bind_views",
    "call_extern",
    "cast",
    "ceil",
    "clz",
    "comm_reducer",
    "compute",
    "const",
    "const_matrix",
    "cos",
    "cosh",
    "create_prim_func",
    "create_schedule",
    "ctz",
    "equal",
    "erf",
    "exp",
    "exp2",
    "exp_nonpositive",
    "expm1",
    "extern",
    "floor",
    "fmod",
    "if_then_else",
    "intrinsic",
    "isfinite",
    "isinf",
    "isnan",
    "labelled",
    "largest",
    "log",
    "log1p",
    "log2",
    "lower",
    "lower_stages",
    "max",
    "maximum",
    "memory_shape",
    "min",
    "minimum",
    "not_equal",
    "or_identity",
    "placeholder",
    "popcount",
    "power",
    "primitive",
    "prod",
    "reduce_axis",
    "round",
    "rsqrt",
    "scan",
    "scope",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "strided",
    "stages_of",
    "sum",
    "tan",
    "tanh",
    "trunc",
    "truncdiv",
    "truncmod",
    "var",
]
