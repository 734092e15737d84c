"""The number of neighbouring elements that a thread may process."""

from __future__ import annotations

from math import gcd

from tilewright.ir.expr import Expr, Load, Var, as_int
from tilewright.ir.loops import Block, Store
from tilewright.ir.rewrite import exprs_of, loads, variables, walk

WIDTH = 16
"""The number of bytes that a thread moves at once."""


def neighbours(block: Block) -> int:
    """How many elements a thread may process at once: 16 bytes of the widest type, if all accesses along the last
    iterator are contiguous or constant, and its extent is a multiple; else 1."""
    spatial = [it for it in block.iters if it.kind == "spatial"]
    extent = as_int(spatial[-1].extent) if spatial else None
    if extent is None:
        return 1
    last = spatial[-1].var
    accesses = [(s.buffer, s.indices) for s in walk(block.body) if isinstance(s, Store)]
    accesses += [(x.buffer, x.indices) for s in walk(block.body) for e in exprs_of(s) for x in loads(e)]
    if not all(_along(indices, last) for _, indices in accesses):
        return 1
    size = max(b.dtype.itemsize for b, _ in accesses)
    if any(isinstance(e, Load) for _, indices in accesses for i in indices for e in loads(i)):
        return 1
    return max(1, gcd(extent, WIDTH // size))


def _along(indices: tuple[Expr, ...], var: Var) -> bool:
    """Whether an access at `indices` is contiguous or constant as `var` grows."""
    return all(var not in variables(i) for i in indices[:-1]) and (
        not indices or var not in variables(indices[-1]) or indices[-1] is var
    )


__all__ = ["WIDTH", "neighbours"]
