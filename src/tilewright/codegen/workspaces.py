"""Sizes of the memory that kernels ask their callers for, as polynomials in their symbols."""

from __future__ import annotations

from dataclasses import replace

from tilewright.arith import linear, prove
from tilewright.arith.forms import factors
from tilewright.arith.overflow import check_bytes
from tilewright.ir.expr import Buffer, Expr, Op, Var, const, product
from tilewright.ir.loops import NTHREADS, PrimFunc
from tilewright.runtime.kernel import Workspace
from tilewright.runtime.specs import Work
from tilewright.support.errors import CompileError


def workspaces(func: PrimFunc) -> list[Workspace]:
    """The workspaces of a flat function, in order. Raises CompileError for a size that is no polynomial."""
    return [_workspace(b) for b in func.workspaces]


def _workspace(buffer: Buffer) -> Workspace:
    per_thread = bool(buffer.shape) and buffer.shape[0] is NTHREADS
    size = replace(buffer, shape=buffer.shape[1:]).size if per_thread else buffer.size
    size = check_bytes(size * buffer.dtype.itemsize, f"buffer {buffer.name!r}")
    return Workspace(_polynomial(size, buffer.name), per_thread)


def _polynomial(size: Expr, name: str) -> Work:
    """The size `size` of buffer `name` as a polynomial in the symbols, or a polynomial upper bound if it contains
    minima."""
    form = linear(_without_minima(size))
    terms = [(coefficient, factors(atom)) for atom, coefficient in form.terms]
    if not all(isinstance(f, Var) for _, parts in terms for f in parts):
        raise CompileError("the size of a buffer is not a polynomial", where=f"buffer {name!r}", got=str(size))
    work = tuple((c, tuple(f.name for f in parts if isinstance(f, Var))) for c, parts in terms)
    return (*work, (form.constant, ()))


def _without_minima(size: Expr) -> Expr:
    """An upper bound of `size` without minima: each is replaced by its first argument, if that makes no term smaller. A
    part of a buffer, `min(m, n)` elements by a split of n into parts of m, gets m."""
    form = linear(size)
    result: Expr = const(form.constant)
    for atom, coefficient in form.terms:
        parts = factors(atom)
        minima = [f for f in parts if isinstance(f, Op) and f.name == "min"]
        if minima and (coefficient < 0 or not all(prove(f >= 0) for f in parts)):
            return size
        result = (
            result + product([f.args[0] if isinstance(f, Op) and f.name == "min" else f for f in parts]) * coefficient
        )
    return result
