"""Join dimensions that a function walks alike everywhere: what is one run of memory becomes one loop.

    y[n, c, h, w] = relu(x[n, c, h, w])                   ->   y[i] = relu(x[i])
    y[n, c, h, w] = x[n, c // 16, h, w, c % 16]           ->   y[n, c, p] = x[n, c // 16, p, c % 16]
    y[b, r, c] = sum(x[b, r, k] * w[k, c]) + bias[c]      ->   y[i, c] = sum(x[i, k] * w[k, c]) + bias[c]
    y[n] = max(x[n, c, h, w])                             ->   y[n] = max(x[n, i])

Maps of 7 x 7 or 19 x 19 pixels fill no vectors line by line; as one run of pixels they do. So do eight rows of a
product no tile of twelve, but 128 times eight. Parameters keep their places in memory and get another shape. Rows of
products are joined whether their sizes are numbers or symbols, as is all that a pointwise function walks over where it
is one run; other dimensions are joined where they are numbers, those that a fold reduces among each other. A function
with other reductions stays as it is, for its plans look at windows, rows and channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright import ops
from tilewright.arith import simplify
from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int, const, product
from tilewright.ir.loops import Block, For, PrimFunc, Stmt, Store, seq
from tilewright.ir.notes import Origin, find
from tilewright.ir.rewrite import exprs_of, map_expr, map_stmt, variables, walk, walk_expr
from tilewright.support.classes import dataclass


@dataclass(slots=True)
class _Joints:
    """Neighbours that may be joined, each by the place of the first: iterators of a block, dimensions of a buffer."""

    axes: set[tuple[str, int]]
    dims: set[tuple[Buffer, int]]


def join_dimensions(func: PrimFunc) -> PrimFunc:
    """An unscheduled function of pointwise blocks, folds and products with as few dimensions as can be."""
    blocks = [s for s in walk(func.body) if isinstance(s, Block)]
    if any(block.is_reduction and not _is_product(block) and not _is_fold(block) for block in blocks):
        return func
    products = any(map(_is_product, blocks))
    joints = _joints(blocks, symbols=True)
    if not products and any(
        (block.name, k) not in joints.axes for block in blocks for k in range(len(block.iters) - 1)
    ):
        joints = _joints(blocks, symbols=False)
    return _rewritten(func, blocks, joints) if joints.axes else func


def _joints(blocks: Sequence[Block], symbols: bool) -> _Joints:
    """What may be joined; of sizes that are symbols, too, or of numbers alone."""
    joints = _Joints(set(), set())
    for block in blocks:
        joints.axes |= {(block.name, k) for k in range(len(block.iters) - 1) if _may_join(block, k, symbols)}
        joints.dims |= {(b, d) for b, indices in _accesses(block) for d in range(len(indices) - 1)}
    accesses = {block.name: [*_accesses(block)] for block in blocks}
    while any(_drop_conflicts(block, accesses[block.name], joints) for block in blocks):
        pass
    return joints


PRODUCTS = ("lowered.matmul_packed", "lowered.matmul_dot")
"""Operators whose rows are as good joined as apart."""


def _is_product(block: Block) -> bool:
    origin = find(block.notes, Origin)
    return origin is not None and origin.op in PRODUCTS


def _is_fold(block: Block) -> bool:
    """Whether an operator that is a reduction folds an array of which each element is used once: it is read with all
    iterators but those of one iteration."""
    origin = find(block.notes, Origin)
    if origin is not None and ops.get(origin.op).kind != "reduction":
        return False
    own = {it.var for it in block.iters if as_int(it.extent) != 1}
    return any(own <= {*indices} for _, indices in _accesses(block))


def _may_join(block: Block, k: int, symbols: bool) -> bool:
    """Whether two neighbouring iterators, both of a reduction or none, have sizes that are numbers, or any sizes if
    `symbols`, and only indices depend on them."""
    pair = block.iters[k : k + 2]
    if len({it.kind for it in pair}) > 1 or (_is_product(block) and pair[0].kind == "reduce"):
        return False
    values = [(s.value,) if isinstance(s, Store) else exprs_of(s) for s in walk(block.body)]
    used = {v for found in values for value in found for v in _outside_of_indices(value)}
    return all((symbols or as_int(it.extent) is not None) and it.var not in used for it in pair)


def _outside_of_indices(value: Expr) -> set[Var]:
    memo: dict[Expr, Expr] = {}
    bare = map_expr(value, lambda e: const(0, e.dtype) if isinstance(e, Load) else None, memo)
    return set(variables(bare))


_Access = tuple[Buffer, tuple[Expr, ...]]
"""A buffer that is read or written, and where."""


def _accesses(block: Block) -> Iterator[_Access]:
    for stmt in walk(block.body):
        if isinstance(stmt, Store):
            yield stmt.buffer, stmt.indices
        for e in exprs_of(stmt):
            yield from ((x.buffer, x.indices) for x in walk_expr(e) if isinstance(x, Load))


def _drop_conflicts(block: Block, accesses: Sequence[_Access], joints: _Joints) -> bool:
    """Drop what an access of the block does not walk as one; whether there was any."""
    before = len(joints.axes) + len(joints.dims)
    own = [it.var for it in block.iters]
    for buffer, indices in accesses:
        pairs = list(pairwise(indices))
        named = [{*variables(i)} for i in indices]
        for k, (first, second) in enumerate(pairwise(own)):
            behind = [it for it in block.iters[k + 1 :] if it.kind == block.iters[k].kind]
            if all(as_int(it.extent) == 1 for it in behind) and not any(second in names for names in named):
                continue  # One iteration more or less; in front of others plans see there what is kept.
            mentions = sum(first in names or second in names for names in named)
            at = next((d for d, pair in enumerate(pairs) if pair[0] is first and pair[1] is second), None)
            whole = at is not None and (buffer, at) in joints.dims and buffer.shape[at + 1] is block.iters[k + 1].extent
            if mentions and not (whole and mentions == 2):
                joints.axes.discard((block.name, k))
        for d, pair in enumerate(pairs):
            at = next((k for k in range(len(own) - 1) if pair[0] is own[k] and pair[1] is own[k + 1]), None)
            single = all(as_int(n) == 1 for n in buffer.shape[d + 1 :]) and as_int(pair[1]) == 0
            if (block.name, at) not in joints.axes and not single:
                joints.dims.discard((buffer, d))
    return len(joints.axes) + len(joints.dims) < before


def _rewritten(func: PrimFunc, blocks: Sequence[Block], joints: _Joints) -> PrimFunc:
    """The function with the first of joined iterators and dimensions in the place of all."""
    buffers = {b: b for b in (*func.params, *func.buffers)}
    for old in buffers:
        runs = _runs(len(old.shape), lambda d: (old, d) in joints.dims)  # noqa: B023
        buffers[old] = replace(old, shape=tuple(_size(old.shape[a:z]) for a, z in runs))

    def kept(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(i for d, i in enumerate(indices) if (buffer, d - 1) not in joints.dims)

    def on_expr(e: Expr) -> Expr | None:
        return Load(buffers[e.buffer], kept(e.buffer, e.indices)) if isinstance(e, Load) else None

    def on_stmt(s: Stmt) -> Stmt | None:
        return Store(buffers[s.buffer], kept(s.buffer, s.indices), s.value) if isinstance(s, Store) else None

    nests = []
    for block in blocks:
        runs = _runs(len(block.iters), lambda k: (block.name, k) in joints.axes)  # noqa: B023
        iters = [replace(block.iters[a], extent=_size([it.extent for it in block.iters[a:z]])) for a, z in runs]
        nest = map_stmt(replace(block, iters=tuple(iters)), on_stmt, lambda e: map_expr(e, on_expr))
        for it in reversed(iters):
            assert isinstance(it.binding, Var)
            nest = For(it.binding, it.extent, nest)
        nests.append(nest)
    params = tuple(buffers[b] for b in func.params)
    return replace(func, params=params, body=seq(nests), buffers=tuple(buffers[b] for b in func.buffers))


def _size(extents: Sequence[Expr]) -> Expr:
    """The size of dimensions that are one."""
    return extents[0] if len(extents) == 1 else simplify(product(extents))


def _runs(count: int, joined: Callable[[int], bool]) -> list[tuple[int, int]]:
    """Runs of places, each joined to the next: the first of each and the one past its last."""
    starts = [k for k in range(count) if not k or not joined(k - 1)]
    return list(pairwise([*starts, count]))
