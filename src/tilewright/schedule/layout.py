"""Primitives on the shape of memory: transform_layout and pad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.arith import prove_equal, simplify, symbolic_bounds
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, as_int, binary, ceildiv, const, product, select
from tilewright.ir.loops import Block, For, PrimFunc, Stmt, Store, seq
from tilewright.ir.rewrite import fresh_name, map_expr, map_stmt, replace_buffers, variables, walk_expr
from tilewright.ir.scalar_ops import OPS
from tilewright.schedule.dependence import reduction_update
from tilewright.schedule.index_map import IndexMap, index_map
from tilewright.schedule.memory import copy_nest, root_path, swap_buffer
from tilewright.schedule.primitive import on_block
from tilewright.schedule.state import (
    block_names,
    block_path,
    conjoin,
    intrinsics_in,
    last_block,
    loads_in,
    loops_on,
    map_blocks,
    read_buffers,
    readers_of,
    refuse,
    refuse_external,
    replace_at,
    stores_in,
    used_names_of,
    writers_of,
    written_buffers,
)
from tilewright.schedule.storage import require_unaligned
from tilewright.support.errors import Error

MAX_MULTIPLE = 1 << 16
"""The largest multiple, in elements, to which a dimension may be padded."""
MAX_GROWTH = 64
"""The largest factor by which gaps may enlarge a buffer in a new layout."""


def transform_layout(
    func: PrimFunc, block: str, layout: IndexMap | Callable[..., Any], buffer: str | None = None
) -> tuple[PrimFunc, IndexMap]:
    """Store a buffer in another layout: the element at `indices` moves to `layout(*indices)`.

    Before::

        buffer B: f32[64, 32]
        block B(vi = i, vj = j): B[vi, vj] = A[vi, vj] + 1
        block C(vi2 = i2, vj2 = j2): C[vi2, vj2] = B[vi2, vj2] * 2

    After `transform_layout("B", lambda i, j: (i, j // 16, j % 16))`::

        buffer B: f32[64, 2, 16]
        block B(vi = i, vj = j): B[vi, vj // 16, vj % 16] = A[vi, vj] + 1
        block C(vi2 = i2, vj2 = j2): C[vi2, vj2] = B[vi2, vj2 // 16, vj2 % 16] * 2

    `buffer` names one that the block reads or writes, else it is the one that the block writes. The layout may leave
    gaps (32 elements in blocks of 5), which stay unwritten; a parameter of the function must not get any, and its
    callers pass the new layout. Returns the map too. Refuses maps that cannot be inverted.
    """
    target = _buffer_of(func, block, buffer)
    what = f"cannot transform the layout of {target.name!r}"
    require_unaligned(func, target, what)
    try:
        mapping = index_map(layout, len(target.shape))
    except TypeError as error:
        raise refuse(func, f"{what}: {error.what if isinstance(error, Error) else error}") from error
    if len(mapping.variables) != len(target.shape):
        raise refuse(func, f"{what}: the map takes {len(mapping.variables)} indices, not {len(target.shape)}")
    extents = dict(zip(mapping.variables, target.shape, strict=True))
    if mapping.inverse(mapping.results, target.shape) is None and target.shape:
        raise refuse(func, f"{what}: {mapping} does not say which element is at a place")
    shape: list[Expr] = []
    for result in mapping.results:
        box = symbolic_bounds(result, extents)
        if box is None or simplify(box[0]) is not const(0):
            raise refuse(func, f"{what}: the index {result} does not start at 0")
        shape.append(simplify(box[1] + 1))
    new = replace(target, shape=tuple(shape))
    if target in func.params and not prove_equal(product(shape), product(target.shape)):
        raise refuse(func, f"{what}: it is a parameter and would get gaps", expected=target.size, got=new.size)

    old_size, new_size = as_int(target.size), as_int(new.size)
    if old_size is not None and new_size is not None and new_size > MAX_GROWTH * max(old_size, MAX_GROWTH):
        raise refuse(func, f"{what}: it would have too many gaps", got=f"{new_size} elements for {old_size}")

    def on_block(b: Block) -> Stmt:
        if target not in read_buffers(b) and target not in written_buffers(b):
            return b
        refuse_external(func, b, what)
        if intrinsics_in(b):
            raise refuse(func, f"{what}: block {b.name!r} is an intrinsic", hint="tensorize comes last")
        enclosing = {it.var: it.extent for it in b.iters}
        memo: dict[Expr, Expr] = {}

        def moved(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return tuple(simplify(i, enclosing) for i in mapping(indices))

        def on_expr(e: Expr) -> Expr | None:
            return Load(new, moved(e.indices)) if isinstance(e, Load) and e.buffer == target else None

        def on_stmt(s: Stmt) -> Stmt | None:
            if isinstance(s, Store) and s.buffer == target:
                return Store(new, moved(s.indices), s.value)
            return None

        return map_stmt(b, on_stmt, lambda e: map_expr(e, on_expr, memo))

    body = map_blocks(func.body, on_block)
    params = tuple(new if b == target else b for b in func.params)
    buffers = tuple(new if b == target else b for b in func.buffers)
    return replace(func, params=params, body=body, buffers=buffers), mapping


@on_block
def pad(func: PrimFunc, block: str, multiples: Sequence[int]) -> tuple[PrimFunc, tuple[str, ...]]:
    """Enlarge a block's domain so that each extent is a multiple (one for each iterator; 1 leaves it).

    Before::

        for i in 0..30:
            for k in 0..5:
                block C(vi = i, reduce vk = k): init C[vi] = 0; C[vi] = C[vi] + A[vi, vk]

    After `pad("C", (16, 4))`::

        for A_0 in 0..32:
            for A_1 in 0..8:
                block A_pad(vA_0 = A_0, vA_1 = A_1):
                    A_pad[vA_0, vA_1] = select(vA_0 < 30 and vA_1 < 5, A[vA_0, vA_1], 0)
        for i in 0..32:
            for k in 0..8:
                block C(vi = i, reduce vk = k): init C_pad[vi] = 0; C_pad[vi] = C_pad[vi] + A_pad[vi, vk]
        for C_pad_0 in 0..30:
            block C_pad(vC_pad_0 = C_pad_0): C[vC_pad_0] = C_pad[vC_pad_0]

    Inputs that the enlarged iterators index are padded with values that do not change the reduction; an intermediate
    output grows in place, a parameter gets a copy. Returns the new blocks. Refuses iterators that stand in larger index
    expressions, loops that do not drive one iterator each, and reductions whose padding would change the result.
    """
    path = block_path(func, block)
    source = last_block(path)
    what = f"cannot pad block {block!r}"
    extents = _multiples(func, source, multiples, what)
    grown = {it.var: it for it in source.iters if extents[it.var] is not it.extent}
    if not grown:
        return func, ()
    _require_simple_nest(func, source, loops_on(path[len(root_path(path)) - 1 :]), what)
    if any(len(writers_of(func, b)) > 1 for b in written_buffers(source)):
        raise refuse(func, f"{what}: other blocks write its output too", hint="decompose_reduction comes after pad")
    filler = _filler(func, source, set(grown), what)
    _require_ordinary_indices(func, source, set(grown), what)
    used_names, names = used_names_of(func), block_names(func)
    sizes = {v: extents[v] for v in grown}
    before: list[Stmt] = []
    after: list[Stmt] = []
    created: list[str] = []
    swapped: dict[Buffer, Buffer] = {}

    def enlarged(buffer: Buffer, shape: tuple[Expr, ...]) -> Buffer:
        swapped[buffer] = Buffer(fresh_name(f"{buffer.name}_pad", used_names), buffer.dtype, shape)
        created.append(fresh_name(swapped[buffer].name, names))
        return swapped[buffer]

    for load in loads_in(source):
        if load.buffer in written_buffers(source) or not any(i in grown for i in load.indices):
            continue
        padded = enlarged(load.buffer, _grown_shape(load.indices, load.buffer, sizes))
        limits = [grown[i].extent if isinstance(i, Var) and i in grown else None for i in load.indices]
        before.append(_padding_nest(created[-1], load.buffer, padded, limits, filler, used_names))
    (output,) = written_buffers(source)
    (indices,) = {s.indices for s in stores_in(source)}
    shape = _grown_shape(indices, output, sizes)
    for reader in readers_of(func, output) if shape != output.shape else ():
        refuse_external(func, reader, what)
    if shape != output.shape and output in func.params:
        padded = enlarged(output, shape)
        after.append(copy_nest(created[-1], padded, output, used_names))
    body = replace_buffers(source, swapped)
    assert isinstance(body, Block)
    place = root_path(path)
    nest = _grown_nest(body, loops_on(path[len(place) - 1 :]), extents)
    result = replace_at(func, place, seq((*before, nest, *after)))
    result = replace(result, buffers=(*result.buffers, *swapped.values()))
    if shape != output.shape and output not in func.params:
        result = swap_buffer(result, output, replace(output, shape=shape))
    return result, tuple(created)


def _multiples(func: PrimFunc, source: Block, multiples: Sequence[int], what: str) -> dict[Var, Expr]:
    """The new extent of each iterator of the block `source`, enlarged to its multiple. Raises ScheduleError, whose text
    begins with `what`, if `multiples` do not fit."""
    if len(multiples) != len(source.iters):
        raise refuse(func, f"{what}: it has {len(source.iters)} iterators, got {len(multiples)} multiples")
    if not all(isinstance(m, int) and 1 <= m <= MAX_MULTIPLE for m in multiples):
        raise refuse(func, f"{what}: a multiple must be between 1 and {MAX_MULTIPLE}", got=list(multiples))
    pairs = zip(source.iters, multiples, strict=True)
    return {it.var: it.extent if m == 1 else simplify(ceildiv(it.extent, m) * m) for it, m in pairs}


def _grown_nest(body: Block, loops: Sequence[For], extents: Mapping[Var, Expr]) -> Stmt:
    """The block `body` with `loops` around it, where iterators and their loops have the enlarged `extents`."""
    drives = {it.binding: extents[it.var] for it in body.iters}
    nest: Stmt = replace(body, iters=tuple(replace(it, extent=extents[it.var]) for it in body.iters))
    for loop in reversed(loops):
        nest = replace(loop, extent=drives.get(loop.var, loop.extent), body=nest)
    return nest


def _grown_shape(indices: Sequence[Expr], buffer: Buffer, extents: Mapping[Var, Expr]) -> tuple[Expr, ...]:
    """The shape of a buffer accessed at `indices`, where a dimension whose index is a variable in `extents` has the
    extent from there instead of the buffer's."""
    pairs = zip(indices, buffer.shape, strict=True)
    return tuple(extents.get(i, x) if isinstance(i, Var) else x for i, x in pairs)


def _buffer_of(func: PrimFunc, block: str, buffer: str | None) -> Buffer:
    source = last_block(block_path(func, block))
    written = written_buffers(source)
    if buffer is None and len(written) == 1:
        return written[0]
    touched = {b.name: b for b in (*written, *read_buffers(source))}
    if buffer is None or buffer not in touched:
        raise refuse(func, f"block {block!r} uses {', '.join(touched)}; name one of them", got=buffer)
    return touched[buffer]


def _require_simple_nest(func: PrimFunc, source: Block, loops: Sequence[For], what: str) -> None:
    """Raise ScheduleError, whose text begins with `what`, unless each of `loops` drives one iterator of the block
    `source` directly and contains only this block."""
    driven = [it.binding for it in source.iters]
    for loop in loops:
        if driven.count(loop.var) != 1 or loop.kind != "serial":
            raise refuse(func, f"{what}: loop {loop.var.name!r} does not drive one iterator of it", hint="pad first")
    if len(loops) != len(driven):
        raise refuse(func, f"{what}: its iterators are not driven by one loop each", hint="pad before other primitives")
    stmt: Stmt = loops[0] if loops else source
    while isinstance(stmt, For):
        stmt = stmt.body
    if stmt is not source:
        raise refuse(func, f"{what}: other blocks stand in its loops")


def _require_ordinary_indices(func: PrimFunc, source: Block, grown: set[Var], what: str) -> None:
    """Raise ScheduleError, whose text begins with `what`, unless the iterators `grown` of the block `source` occur only
    as an index by themselves."""
    points = [(s.buffer, s.indices) for s in stores_in(source)] + [(n.buffer, n.indices) for n in loads_in(source)]
    if len({i for b, i in points if b in written_buffers(source)}) != 1 or len(written_buffers(source)) != 1:
        raise refuse(func, f"{what}: it does not write one element of one buffer at each point")
    for b in read_buffers(source):
        if len({i for x, i in points if x == b and b not in written_buffers(source)}) > 1:
            raise refuse(func, f"{what}: it reads {b.name!r} at several indices")
    for b, indices in points:
        for index in indices:
            if not isinstance(index, Var) and grown & set(variables(index)):
                raise refuse(func, f"{what}: index {index} of {b.name!r} is not an iterator by itself")
    for s in stores_in(source):
        outside = _without_loads(s.value)
        if grown & set(variables(outside)):
            raise refuse(func, f"{what}: its value depends on an enlarged iterator other than through an index")
    if any(it.kind == "spatial" and it.var in grown and it.var not in points[0][1] for it in source.iters):
        raise refuse(func, f"{what}: an enlarged iterator does not index what it writes")
    if source.body != seq(s for s in stores_in(source.body)):
        raise refuse(func, f"{what}: its body is more than a store")


def _without_loads(e: Expr) -> Expr:
    """`e` with every load replaced by a constant, so that only variables outside of indices remain."""
    if isinstance(e, Load):
        return const(0, e.dtype)
    if isinstance(e, Op):
        return Op(e.name, tuple(map(_without_loads, e.args)), e.dtype)
    return e


def _filler(func: PrimFunc, source: Block, grown: set[Var], what: str) -> float:
    """The value of padded inputs for which the added steps of the enlarged iterators `grown` do not change the
    reduction `source`: 0 for a sum of products. Raises ScheduleError, whose text begins with `what`, if there is
    none."""
    added = {it.var for it in source.iters if it.kind == "reduce" and it.var in grown}
    if not added:
        return 0.0
    update = reduction_update(source)
    if update is None or source.init is None:
        raise refuse(func, f"{what}: its reduction is not a sum, product, minimum or maximum with its init")
    identity = next(s.value for s in stores_in(source.init))
    loads = [n for n in walk_expr(update.value) if isinstance(n, Load)]
    if not isinstance(identity, Const) or any(not added <= set(n.indices) for n in loads):
        raise refuse(func, f"{what}: an input of its reduction does not depend on the enlarged iterators")
    for value in (0.0, float(identity.value)):
        if _evaluate(update.value, value) == identity.value:
            return value
    raise refuse(func, f"{what}: padding would change the result of the reduction of {update.value}")


def _evaluate(e: Expr, load: float) -> Any:
    """The value of `e` if every load returns `load`; None if it is not known."""
    if isinstance(e, Load):
        return load
    if isinstance(e, Const):
        return e.value
    if isinstance(e, Op) and e.name not in ("cast", "bitcast"):
        args = [_evaluate(a, load) for a in e.args]
        return None if None in args else OPS[e.name].numpy(*args)
    return _evaluate(e.args[0], load) if isinstance(e, Op) and e.name == "cast" else None


def _padding_nest(
    name: str, source: Buffer, target: Buffer, limits: Sequence[Expr | None], filler: float, used_names: set[str]
) -> Stmt:
    """Loops around a block `name` that copy `source` into the larger `target`, with the value `filler` where an index
    is not below its limit in `limits` (None: no limit). New names are added to `used_names`."""

    def on_block(b: Block) -> Stmt:
        point = tuple(it.var for it in b.iters)
        guard = conjoin(binary("lt", i, x) for i, x in zip(point, limits, strict=True) if x is not None)
        value = const(filler if source.dtype.is_float else int(filler), source.dtype)
        return replace(b, body=Store(target, point, select(guard, Load(source, point), value)))

    return map_blocks(copy_nest(name, target, target, used_names), on_block)
