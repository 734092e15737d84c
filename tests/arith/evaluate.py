"""Evaluates integer and boolean expressions by the table of operators, with numbers; and makes random ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tilewright.ir.dtype import DType, boolean, i8, i32, i64, u8
from tilewright.ir.expr import Const, Expr, Load, Op, Var, binary, cast, const, select
from tilewright.ir.scalar_ops import OPS


def evaluate(e: Expr, values: Mapping[Any, Any]) -> Any:
    """The value of `e` for these numbers of variables and loads; selects are lazy."""
    match e:
        case Const(value):
            return e.dtype.numpy.type(value)
        case Var() | Load():
            return e.dtype.numpy.type(values[e])
        case Op("select", (c, a, b)):
            return evaluate(a if evaluate(c, values) else b, values)
        case Op("cast", (a,)):
            return np.asarray(evaluate(a, values)).astype(e.dtype.numpy)[()]
        case Op(name, args):
            with np.errstate(all="ignore"):
                return np.asarray(OPS[name].numpy(*(evaluate(a, values) for a in args))).astype(e.dtype.numpy)[()]
    raise AssertionError(e)


ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "min", "max")


def int_exprs(leaves: list[Expr], depth: int = 3) -> st.SearchStrategy[Expr]:
    """Random i64 expressions over `leaves` and small literals."""
    leaf = st.one_of(st.sampled_from(leaves), st.integers(-9, 9).map(const))
    divisor = st.sampled_from([-4, -3, 0, 1, 2, 3, 4, 6, 8, 12]).map(const)

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(binary, st.sampled_from(("add", "sub", "min", "max")), inner, inner),
            st.builds(lambda a, c: a * c, inner, st.integers(-8, 8)),
            st.builds(binary, st.sampled_from(("floordiv", "mod")), inner, divisor),
            st.builds(binary, st.sampled_from(ARITHMETIC), inner, leaf),
            st.builds(lambda c, a, b: select(c, a, b), comparisons(inner), inner, inner),
        )

    return st.recursive(leaf, extend, max_leaves=2**depth)


def comparisons(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.builds(binary, st.sampled_from(("lt", "le", "gt", "ge", "eq", "ne")), inner, inner)


def conditions(leaves: list[Expr]) -> st.SearchStrategy[Expr]:
    atom = comparisons(int_exprs(leaves, 2))
    return st.recursive(
        atom,
        lambda inner: st.one_of(
            st.builds(binary, st.sampled_from(("and", "or")), inner, inner), st.builds(lambda p: ~p, inner)
        ),
        max_leaves=3,
    )


def narrow_exprs(leaves: list[Expr], dtype: DType) -> st.SearchStrategy[Expr]:
    """Random expressions of an integer type: every operator with a range of its own, casts and look-ups."""
    leaf = st.one_of(st.sampled_from(leaves), st.integers(0, 9).map(lambda c: const(c, dtype)))
    binaries = st.sampled_from((*ARITHMETIC, "truncdiv", "truncmod", "bitand"))

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(lambda name, a, b: Op(name, (a, b)), binaries, inner, inner),
            st.builds(lambda name, a: Op(name, (a,)), st.sampled_from(("neg", "abs")), inner),
            st.builds(lambda c, a, b: select(c, a, b), comparisons(inner), inner, inner),
            st.builds(lambda through, a: cast(cast(a, through), dtype), st.sampled_from((i8, u8, i32, boolean)), inner),
            st.builds(lambda a, b, c: Op("lookup", (cast(a, i64), const(b, dtype), const(c, dtype))), inner,
                      st.integers(0, 5), st.integers(0, 5)),
        )  # fmt: skip

    return st.recursive(leaf, extend, max_leaves=6)


__all__ = ["boolean", "comparisons", "conditions", "evaluate", "i64", "int_exprs", "narrow_exprs"]
