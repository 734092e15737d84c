"""Divisions and shifts for languages that leave operands undefined: equal to the IR's, of defined operands alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.codegen.defined import defined
from tilewright.ir.dtype import DType, i8, i32, i64, u8, u32
from tilewright.ir.expr import Const, Expr, Op, Var, const
from tilewright.ir.scalar_ops import OPS

DIVISIONS = ("floordiv", "mod", "truncdiv", "truncmod")
SHIFTS = ("shl", "shr")


def evaluate(e: Expr, values: dict[Expr, Any]) -> Any:
    """The value by NumPy of what `defined` makes of every operator; divisions and shifts must have defined operands."""
    match e:
        case Const(value):
            return e.dtype.numpy.type(value)
        case Op(name, args):
            total = defined(e)
            if total is not e:
                return evaluate(total, values)
            inputs = [evaluate(a, values) for a in args]
            if name in DIVISIONS:
                assert np.all(inputs[1] != 0)
                assert e.dtype.kind == "uint" or np.all(inputs[1] != -1)
            if name in SHIFTS:
                assert np.all((inputs[1] >= 0) & (inputs[1] < e.dtype.bits))
            return OPS[name].numpy(*inputs)
    return values[e]


@pytest.mark.parametrize("element", [i8, u8], ids=str)
@pytest.mark.parametrize("name", (*DIVISIONS, *SHIFTS))
def test_all_pairs_of_bytes(name: str, element: DType) -> None:
    info = np.iinfo(element.numpy)
    every = np.arange(info.min, info.max + 1).astype(element.numpy)
    a, b = Var("a", element), Var("b", element)
    x, y = (v.reshape(-1) for v in np.meshgrid(every, every))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(Op(name, (a, b)), {a: x, b: y}), OPS[name].numpy(x, y))


@pytest.mark.parametrize("name", DIVISIONS)
def test_literal_divisors_stay(name: str) -> None:
    a = Var("a", i32)
    for number in (1, 3, -2):
        assert defined(e := Op(name, (a, const(number, i32)))) is e  # type: ignore[arg-type]
    for number in (0, -1):
        assert defined(e := Op(name, (a, const(number, i32)))) is not e  # type: ignore[arg-type]
    large = Op(name, (Var("u", u32), const(2**32 - 1, u32)))
    assert defined(large) is large  # type: ignore[arg-type]


def test_sizes_and_literal_shifts_stay() -> None:
    by_size = Op("floordiv", (Var("i"), Var("n", lo=1)))
    assert by_size.dtype is i64 and defined(by_size) is by_size  # type: ignore[arg-type]
    assert defined(open_ := Op("floordiv", (Var("i"), Var("n", lo=0)))) is not open_  # type: ignore[arg-type]
    for number, same in ((0, True), (31, True), (32, False), (-1, False)):
        e = Op("shr", (Var("a", i32), const(number, i32)))
        assert (defined(e) is e) is same  # type: ignore[arg-type]
