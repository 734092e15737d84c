"""The values of expressions by NumPy: of sizes, of index maps, of conditions over grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ir.expr import Const, Expr, Op
from tilewright.ir.scalar_ops import OPS


def values_of(e: Expr, leaf: Callable[[Expr], Any]) -> np.ndarray[Any, Any]:
    """The value of the expression `e` by NumPy; `leaf` returns the values of its variables and loads, numbers or arrays
    that broadcast. Each operator computes in the types of its arguments, and results have the expression's type."""
    kind = e.dtype.numpy
    match e:
        case Const(value):
            return np.asarray(value, kind)
        case Op(name, args):
            return np.asarray(OPS[name].numpy(*(values_of(a, leaf) for a in args))).astype(kind, copy=False)
    return np.asarray(leaf(e), kind)
