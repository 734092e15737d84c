"""The operator that a graph has for a product on the accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from outer8.machine import FLOATS
from outer8.program import words
from outer8.simulator import text
from tilewright import te
from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops import OpDef, Operators

Types = Sequence[TensorType | None]


def sizes_of(types: Types) -> tuple[int, int, int]:
    """Rows, depth and columns."""
    a, b = (t for t in types if t is not None)
    return as_int(a.shape[0]) or 0, as_int(a.shape[1]) or 0, as_int(b.shape[1]) or 0


def infer(types: Types, _attrs: Attrs) -> tuple[TensorType, ...]:
    """The product, and the scratchpad, whose content is not read."""
    rows, _, columns = sizes_of(types)
    return TensorType(f32, (const(rows), const(columns))), TensorType(f32, (const(FLOATS),))


def loops(types: Types, _attrs: Attrs, out: tuple[TensorType, ...]) -> PrimFunc:
    """One call of the simulator with the product's program."""
    sizes = sizes_of(types)
    operands = [te.placeholder(t.shape, t.dtype, name) for t, name in zip(types, "ab", strict=True) if t is not None]
    symbol = "outer8_" + "_".join(map(str, sizes))
    results = te.extern([t.shape for t in out], operands, symbol, llvm=text(symbol, words(*sizes)), name="outer8")
    return te.create_prim_func([*operands, *results], "outer8")


def reference(arrays: Sequence[Any], _attrs: Attrs) -> tuple[Any, ...]:
    a, b = arrays
    return a @ b, np.zeros(FLOATS, np.float32)


OPERATORS = Operators((OpDef("outer8.matmul", "opaque", Attrs, infer, reference, loops=loops),))
