"""Join neighbouring dimensions that all blocks of a function access as one contiguous run into one dimension and loop.

    y[n, c, h, w] = relu(x[n, c, h, w])                   ->   y[i] = relu(x[i])
    y[n, c, h, w] = x[n, c // 16, h, w, c % 16]           ->   y[n, c, p] = x[n, c // 16, p, c % 16]
    y[b, r, c] = sum(x[b, r, k] * w[k, c]) + bias[c]      ->   y[i, c] = sum(x[i, k] * w[k, c]) + bias[c]
    y[n] = max(x[n, c, h, w])                             ->   y[n] = max(x[n, i])

Lines of maps of 7 x 7 or 19 x 19 pixels do not fill vectors, but all pixels of a map do. Likewise eight rows of a
product do not fill a tile of twelve rows, but 128 times eight do. Parameters keep their memory and get another shape.
Rows of products are joined whether their sizes are numbers or symbols, and so is all of a contiguous pointwise
function; elsewhere a dimension of known size is not joined to a symbolic one before it, since it divides into whole
vectors. The reduced dimensions of a fold are joined with each other only. Functions with other reductions stay as they
are: their plans need windows, rows and channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
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
    """The pairs that may still be joined to one: `axes`, neighbouring iterators of a block, and `dims`, neighbouring
    dimensions of a buffer. Each is (the block's name or the buffer, the index of the first of the two)."""

    axes: set[_Axis]
    dims: set[_Dim]


_Axis = tuple[str, int]
"""An iterator: the name of its block and its index there."""
_Dim = tuple[Buffer, int]
_Access = tuple[Buffer, tuple[Expr, ...]]
"""A read or write: the buffer and the indices."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """The reads and writes of a block. `accesses`: (buffer, indices) of each; `used`: the variables that occur outside
    of indices."""

    block: Block
    accesses: Sequence[_Access]
    used: Set[Var]


def join_dimensions(func: PrimFunc) -> PrimFunc:
    """Join dimensions of an unscheduled function of pointwise blocks, folds and products as far as possible."""
    blocks = [s for s in walk(func.body) if isinstance(s, Block)]
    if all(len(block.iters) < 2 for block in blocks):
        return func
    if any(as_int(it.extent) == 0 for block in blocks for it in block.iters):
        return func  # 0 times a symbol is 0, and the function would lose the symbol
    walks = [_Walk(block, tuple(_accesses(block)), _outside_of_indices(block)) for block in blocks]
    if any(w.block.is_reduction and not _is_product(w.block) and not _is_fold(w) for w in walks):
        return func
    products = any(map(_is_product, blocks))
    joints = _joints(walks, symbols=True)
    if not products and any(
        (block.name, k) not in joints.axes for block in blocks for k in range(len(block.iters) - 1)
    ):
        joints = _joints(walks, symbols=False)
    return _rewritten(func, blocks, joints) if joints.axes else func


def _joints(walks: Sequence[_Walk], symbols: bool) -> _Joints:
    """The iterators and dimensions that may be joined. With `symbols`, a known size may be joined to a symbol before
    it."""
    axes = {(w.block.name, k) for w in walks for k in range(len(w.block.iters) - 1) if _may_join(w, k, symbols)}
    joints = _Joints(axes, set())
    if not axes:
        return joints
    joints.dims = {(b, d) for w in walks for b, indices in w.accesses for d in range(len(indices) - 1)}
    wants = [want for w in walks for want in _wants(w, joints)]
    before = -1
    while before != (before := len(joints.axes) + len(joints.dims)):
        for want in wants:
            want.drop(joints)
    return joints


PRODUCTS = ("lowered.matmul_packed", "lowered.matmul_dot", "lowered.conv_last")
"""Operators whose plans are as fast on joined rows."""


def _is_product(block: Block) -> bool:
    origin = find(block.notes, Origin)
    return origin is not None and origin.op in PRODUCTS


def _is_fold(walked: _Walk) -> bool:
    """Whether a block is a reduction that uses each element of some array once: an access has all iterators with more
    than one iteration among its indices."""
    origin = find(walked.block.notes, Origin)
    if origin is not None and ops.get(origin.op).kind != "reduction":
        return False
    own = {it.var for it in walked.block.iters if as_int(it.extent) != 1}
    return any(own <= {*indices} for _, indices in walked.accesses)


def _may_join(walked: _Walk, k: int, symbols: bool) -> bool:
    """Whether iterators `k` and `k + 1` of a block may be joined: both are reduced or neither, and they occur in
    indices only. Unless `symbols`, a known size is not joined to a symbol before it."""
    pair = walked.block.iters[k : k + 2]
    if len({it.kind for it in pair}) > 1 or (_is_product(walked.block) and pair[0].kind == "reduce"):
        return False
    if any(it.var in walked.used for it in pair):
        return False
    first, second = (as_int(it.extent) for it in pair)
    return symbols or second is None or first is not None


def _outside_of_indices(block: Block) -> set[Var]:
    """The variables that occur in a block's values outside of indices."""
    used: set[Var] = set()
    for stmt in walk(block.body):
        for value in (stmt.value,) if isinstance(stmt, Store) else exprs_of(stmt):
            bare = map_expr(value, lambda e: const(0, e.dtype) if isinstance(e, Load) else None)
            used.update(variables(bare))
    return used


def _accesses(block: Block) -> Iterator[_Access]:
    for stmt in walk(block.body):
        if isinstance(stmt, Store):
            yield stmt.buffer, stmt.indices
        for e in exprs_of(stmt):
            yield from ((x.buffer, x.indices) for x in walk_expr(e) if isinstance(x, Load))


@dataclass(frozen=True, slots=True)
class _Want:
    """One condition on pairs to be joined. The pair of iterators `axis` may be joined only if the pair of dimensions
    `needed` is; or the pair of dimensions `dim` only if the pair of iterators `needed` is. If `needed` is None, the
    pair cannot be joined."""

    axis: _Axis | None = None
    dim: _Dim | None = None
    needed: _Axis | _Dim | None = None

    def drop(self, joints: _Joints) -> None:
        """Remove the pair that this condition is about from `joints` if they lack the pair `needed`."""
        if self.axis is not None and self.needed not in joints.dims:
            joints.axes.discard(self.axis)
        if self.dim is not None and self.needed not in joints.axes:
            joints.dims.discard(self.dim)


def _wants(walked: _Walk, joints: _Joints) -> Iterator[_Want]:
    """The conditions that the accesses of a block set on joints, which are pairs of neighbouring iterators, or
    dimensions, to be made one: iterators can be joined only together with the dimensions that they index, and the
    reverse."""
    iters, name = walked.block.iters, walked.block.name
    own: dict[tuple[Expr, Expr], int] = {(a.var, b.var): k for k, (a, b) in reversed([*enumerate(pairwise(iters))])}
    places = [k for k in range(len(iters) - 1) if (name, k) in joints.axes]
    last = {k: all(as_int(it.extent) == 1 for it in iters[k + 1 :] if it.kind == iters[k].kind) for k in places}
    for buffer, indices in dict.fromkeys(walked.accesses):
        pairs = list(pairwise(indices))
        named = [{*variables(i)} for i in indices]
        for k in places:
            first, second = iters[k].var, iters[k + 1].var
            if last[k] and not any(second in names for names in named):
                continue  # One iteration more or less; in front of others plans see there what is kept.
            mentions = sum(first in names or second in names for names in named)
            at = next((d for d, pair in enumerate(pairs) if pair[0] is first and pair[1] is second), None)
            whole = at is not None and mentions == 2 and buffer.shape[at + 1] is iters[k + 1].extent
            if mentions:
                yield _Want(axis=(name, k), needed=(buffer, at) if whole and at is not None else None)
        for d, pair in enumerate(pairs):
            single = all(as_int(n) == 1 for n in buffer.shape[d + 1 :]) and as_int(pair[1]) == 0
            if not single:
                at = own.get(pair)
                yield _Want(dim=(buffer, d), needed=None if at is None else (name, at))


def _rewritten(func: PrimFunc, blocks: Sequence[Block], joints: _Joints) -> PrimFunc:
    """The function with the first of each run of joined iterators and dimensions in place of the run."""
    buffers = {b: b for b in (*func.params, *func.buffers)}
    for old in buffers:
        runs = _runs(len(old.shape), lambda d: (old, d) in joints.dims)  # noqa: B023
        buffers[old] = replace(old, shape=tuple(_size(old.shape[a:z]) for a, z in runs))

    def retain(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(i for d, i in enumerate(indices) if (buffer, d - 1) not in joints.dims)

    def on_expr(e: Expr) -> Expr | None:
        return Load(buffers[e.buffer], retain(e.buffer, e.indices)) if isinstance(e, Load) else None

    def on_stmt(s: Stmt) -> Stmt | None:
        return Store(buffers[s.buffer], retain(s.buffer, s.indices), s.value) if isinstance(s, Store) else None

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
    """The size of adjacent dimensions that are joined into one: the product of theirs."""
    return extents[0] if len(extents) == 1 else simplify(product(extents))


def _runs(count: int, joined: Callable[[int], bool]) -> list[tuple[int, int]]:
    """Maximal runs of joined indices below `count`, each as (first, last + 1)."""
    starts = [k for k in range(count) if not k or not joined(k - 1)]
    return list(pairwise([*starts, count]))
