"""Contractions as products of matrices: which iterators are rows, columns, depth and batch, and which values are
multiplied.

y[n, f, h, w] += x[n, c, h + i, w + j] * weight[f, c, i, j]     rows f, columns (n, h, w), depth (c, i, j)

The columns are the iterators of that factor which has the last iterator of the result, so that a warp's sums are
adjacent in memory. Iterators of both factors are the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType, bf16, f16, f32, i8
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, is_const, product
from tilewright.ir.loops import Block, BlockIter, Store
from tilewright.ir.rewrite import loads, variables
from tilewright.schedule.mma_intrinsics import SUMS
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a contraction: its value in terms of the block's iterators, its type in memory, and the iterator
    along which its elements are contiguous there (None: there is no such iterator, or the value is computed)."""

    value: Expr
    dtype: DType
    along: Var | None


@dataclass(frozen=True, slots=True)
class Contraction:
    """A block `C[...] += a * b` as a product of matrices."""

    block: Block
    result: Load
    a: Factor
    b: Factor
    batch: tuple[BlockIter, ...]
    rows: tuple[BlockIter, ...]
    columns: tuple[BlockIter, ...]
    depth: tuple[BlockIter, ...]

    @property
    def dtype(self) -> DType:
        """The element type of the factors."""
        return self.a.dtype


def extent_of(iters: Sequence[BlockIter]) -> Expr:
    """The product of the iterators' extents."""
    return product([it.extent for it in iters])


def contraction(block: Block) -> Contraction | None:
    """A block as a product of matrices whose factors a GPU multiplies by instructions for matrices; None if it is none
    or has no rows or no columns."""
    if not isinstance(block.body, Store) or not isinstance(block.init, Store) or not is_const(block.predicate, True):
        return None
    store = block.body
    if not _is_zero(block.init.value):
        return None
    match store.value:
        case Op("add", (Load() as old, Op("mul", (x, y)))) if old.buffer == store.buffer:
            pass
        case _:
            return None
    a, b = _factor(x, store.buffer), _factor(y, store.buffer)
    if a is None or b is None or a.dtype is not b.dtype:
        return None
    in_a, in_b = set(variables(a.value)), set(variables(b.value))
    spatial = [it for it in block.iters if it.kind == "spatial"]
    if not all(it.var in in_a | in_b for it in spatial) or any(not isinstance(i, Var) for i in store.indices):
        return None
    batch = tuple(it for it in spatial if it.var in in_a and it.var in in_b)
    rows = tuple(it for it in spatial if it.var in in_a and it.var not in in_b)
    columns = tuple(it for it in spatial if it.var in in_b and it.var not in in_a)
    depth = tuple(it for it in block.iters if it.kind != "spatial")
    if not rows or not columns or not depth:
        return None
    last = store.indices[-1] if store.indices else None
    if last in [it.var for it in rows]:
        a, b, rows, columns = b, a, columns, rows
    return Contraction(block, old, a, b, batch, rows, columns, depth)


def _is_zero(e: Expr) -> bool:
    return is_const(e, 0) or is_const(e, 0.0)


def _factor(e: Expr, sums: Buffer) -> Factor | None:
    value = e
    if isinstance(e, Op) and e.name == "cast":
        value = e.args[0]
    if value.dtype not in (f32, f16, bf16, i8) or SUMS[value.dtype] is not sums.dtype or not loads(value):
        return None
    return Factor(value, value.dtype, _along(value))


def _along(value: Expr) -> Var | None:
    """The iterator along which the loads in `value` are contiguous: alone, or with an offset, the last index of all of
    them. None if there is no such iterator."""
    last = {x.indices[-1] for x in loads(value) if x.indices and x.dtype is value.dtype}
    if len(last) != 1:
        return None
    (index,) = last
    match index:
        case Var():
            return index
        case Op("add", (Var() as v, _)) | Op("sub", (Var() as v, _)):
            return v
    return None


__all__ = ["Contraction", "Factor", "contraction", "extent_of"]
