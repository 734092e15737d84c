"""Primitives that dissolve a block into its neighbour: compute_inline and reverse_compute_inline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.arith import prove, prove_equal, simplify
from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int, const, equal, product, select
from tilewright.ir.loops import Block, If, Intrinsic, PrimFunc, Stmt, Store, seq
from tilewright.ir.rewrite import loads, map_expr, map_stmt, substitute, variables, walk
from tilewright.schedule.affine import inside, outside, solve
from tilewright.schedule.dependence import check_kinds
from tilewright.schedule.primitive import on_block
from tilewright.schedule.state import (
    block_path,
    blocks_in,
    conjoin,
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
    writers_of,
    written_buffers,
)
from tilewright.support.errors import ScheduleError


@on_block
def compute_inline(func: PrimFunc, block: str) -> PrimFunc:
    """Compute a block's elements where they are read, and drop its buffer.

    Before::

        for i in 0..n:
            block B(vi = i): B[vi] = A[vi] + 1
        for i2 in 0..n:
            block C(vi2 = i2): C[vi2] = B[vi2] * 2

    After `compute_inline("B")`::

        for i2 in 0..n:
            block C(vi2 = i2): C[vi2] = (A[vi2] + 1) * 2

    A block that nothing reads any more, as what was inlined before decided a condition, is dropped, be it a reduction.

    Refuses reductions, blocks that write an output, blocks with other statements than stores, and index maps that
    cannot be inverted.
    """
    path = block_path(func, block)
    source = last_block(path)
    if unread(func, source):
        return without_buffers(replace_at(func, path, None), written_buffers(source))
    stores = _ordinary_stores(func, source, "inline")
    for buffer in stores:
        _require_intermediate(func, source, buffer, "inline")
        if len(writers_of(func, buffer)) > 1:
            raise refuse(func, f"cannot inline block {block!r}: other blocks write {buffer.name!r} too")
    readers = {b.name for buffer in stores for b in readers_of(func, buffer)} - {block}
    _require_stable_inputs(func, source, "inline", readers)
    extents = {it.var: it.extent for it in source.iters}
    for store in stores.values():
        used = {v for v in variables(store.value) if v in extents}
        if not used <= solve(store.indices, store.indices, extents).keys() | _units(source):
            raise refuse(func, f"cannot inline block {block!r}: its element is not known from the indices stored to")

    # A layout may have places that no element goes to; a copy of the whole buffer reads them, so they need a value.
    domain = product(list(extents.values()))
    gaps = {b for b in stores if not prove_equal(b.size, domain)}

    def on_expr(e: Expr, enclosing: Mapping[Var, Expr]) -> Expr | None:
        store = stores.get(e.buffer) if isinstance(e, Load) else None
        if store is None:
            return None
        assert isinstance(e, Load)
        point = solve(store.indices, e.indices, extents)
        element = substitute(store.value, {v: point.get(v, const(0)) for v in extents})
        if store.buffer not in gaps:
            return element
        within = conjoin(c for v, i in point.items() for c in outside(i, extents[v], enclosing))
        return select(within, element, const(0, element.dtype))

    smaller = replace_at(func, path, None)

    def on_block(b: Block) -> Stmt:
        if b.name not in readers:
            return b
        refuse_external(func, b, f"cannot inline block {block!r}")
        for s in walk(b):
            if isinstance(s, Intrinsic) and any(r.buffer in stores for r in s.inputs):
                raise refuse(func, f"cannot inline block {block!r}: intrinsic {s.name!r} reads its buffer")
        enclosing = {it.var: it.extent for it in b.iters}
        memo: dict[Expr, Expr] = {}
        return map_stmt(b, lambda _: None, lambda e: map_expr(e, lambda n: on_expr(n, enclosing), memo))

    result = without_buffers(smaller.with_body(map_blocks(smaller.body, on_block)), tuple(stores))
    check_kinds(func, result, loops_on(path), f"cannot inline block {block!r}")
    return result


def is_injective(func: PrimFunc, block: Block) -> bool:
    """Whether a block computes single elements of intermediates without a reduction, so that `compute_inline` may
    inline it."""
    try:
        stores = _ordinary_stores(func, block, "inline")
    except ScheduleError:
        return False
    return all(buffer in func.buffers for buffer in stores)


def is_elementwise(func: PrimFunc, block: Block) -> bool:
    """Whether an injective block reads its inputs only at the indices that it writes: none is transposed or
    broadcast."""
    return is_injective(func, block) and all(
        load.indices == store.indices for store in stores_in(block) for load in loads(store.value)
    )


@on_block
def reverse_compute_inline(func: PrimFunc, block: str) -> PrimFunc:
    """Compute a block's elements where the one block it reads from produces them, and drop the buffer between.

    Before::

        for i in 0..n:
            block B(vi = i): B[vi] = A[vi] + 1
        for i2 in 0..n:
            block C(vi2 = i2): C[vi2] = B[vi2] * 2

    After `reverse_compute_inline("C")`::

        for i in 0..n:
            block B(vi = i): C[vi] = (A[vi] + 1) * 2

    Refuses reductions on either side, several producers, and a read that does not say which element is to be computed.
    """
    what = "reverse-inline"
    path = block_path(func, block)
    consumer = last_block(path)
    outputs = _ordinary_stores(func, consumer, what)
    if len(outputs) != 1:
        raise refuse(func, f"cannot {what} block {block!r}: it writes several buffers")
    (output,) = outputs.values()
    producer, buffer = _only_producer(func, consumer)
    values = _ordinary_stores(func, producer, f"{what} block {block!r} into")
    if len(values) != 1:
        raise refuse(func, f"cannot {what} block {block!r}: its producer {producer.name!r} writes several buffers")
    (value,) = values.values()
    reads = [load for load in loads_in(consumer) if load.buffer == buffer]
    if len(reads) != 1:
        raise refuse(func, f"cannot {what} block {block!r}: it reads several elements of {buffer.name!r}")
    _require_inputs_before(func, consumer, producer, buffer)
    extents = {it.var: it.extent for it in consumer.iters}
    if not inside(reads[0].indices, buffer.shape, extents):
        raise refuse(
            func, f"cannot {what} block {block!r}: some of its points lie outside of {buffer.name!r}, which it reads"
        )
    point = solve(reads[0].indices, value.indices, extents)
    missing = [v.name for v in extents if v not in point and v not in _units(consumer)]
    if missing:
        raise refuse(
            func, f"cannot {what} block {block!r}: its read of {buffer.name!r} does not determine {', '.join(missing)}"
        )
    point = {v: point.get(v, const(0)) for v in extents}
    # Where the producer computes elements that the consumer does not read, nothing is stored.
    enclosing = {it.var: it.extent for it in producer.iters}
    conditions: list[Expr] = []
    for v, e in point.items():
        conditions += [c for c in (e >= 0, e < extents[v]) if not prove(c, enclosing)]
    for case, element in zip(value.indices, reads[0].indices, strict=True):
        reached = simplify(substitute(element, point))
        if not prove_equal(case, reached, enclosing):
            conditions.append(equal(case, reached))
    # Only the consumer's own variables are replaced; the producer's value goes in as it is.
    inlined: dict[Expr, Expr] = {reads[0]: value.value}
    indices, body = (
        tuple(simplify(substitute(i, point)) for i in output.indices),
        map_expr(output.value, lambda n: point.get(n) if isinstance(n, Var) else None, inlined),
    )
    stored: Stmt = Store(output.buffer, indices, body)
    if conditions:
        stored = If(conjoin(conditions), stored)
    smaller = replace_at(func, path, None)
    merged = replace_at(smaller, block_path(smaller, producer.name), replace(producer, body=stored))
    return without_buffers(merged, (buffer,))


def _only_producer(func: PrimFunc, consumer: Block) -> tuple[Block, Buffer]:
    """The only block that computes a buffer for `consumer` and no other reader, and that buffer. Raises ScheduleError
    if there is none, or several."""
    what = f"cannot reverse-inline block {consumer.name!r}"
    results = [
        (p, b)
        for b in read_buffers(consumer)
        for p in writers_of(func, b)
        if b in func.buffers and p.name != consumer.name and len(readers_of(func, b)) == 1
    ]
    if len(results) != 1:
        names = ", ".join(p.name for p, _ in results) or "none"
        raise refuse(func, f"{what}: it needs exactly one producer of its own", got=names)
    return results[0]


def _require_inputs_before(func: PrimFunc, consumer: Block, producer: Block, buffer: Buffer) -> None:
    """Raise ScheduleError unless the buffers that `consumer` reads besides `buffer` are written before `producer`."""
    order = [b.name for b in blocks_in(func.body)]
    for other in read_buffers(consumer):
        deferred = [w.name for w in writers_of(func, other) if order.index(w.name) > order.index(producer.name)]
        if other != buffer and deferred:
            what = f"cannot reverse-inline block {consumer.name!r}"
            raise refuse(func, f"{what}: {deferred[0]!r} computes its input {other.name!r} too late")


def unread(func: PrimFunc, block: Block) -> bool:
    """Whether all buffers that `block` writes are intermediates that no other block reads."""
    written = written_buffers(block)
    return all(b in func.buffers and all(r.name == block.name for r in readers_of(func, b)) for b in written)


def without_buffers(func: PrimFunc, gone: tuple[Buffer, ...]) -> PrimFunc:
    return replace(func, buffers=tuple(b for b in func.buffers if b not in gone))


def _units(block: Block) -> set[Var]:
    return {it.var for it in block.iters if it.extent is const(1)}


def _ordinary_stores(func: PrimFunc, block: Block, what: str) -> dict[Buffer, Store]:
    """The stores of `block` by buffer. Raises ScheduleError unless it does nothing but store to each buffer a value
    computed from other buffers."""
    refuse_external(func, block, f"cannot {what} block {block.name!r}")
    if block.is_reduction or block.init is not None:
        raise refuse(func, f"cannot {what} block {block.name!r}: it is a reduction")
    stores = stores_in(block)
    if block.body != seq(stores) or len({s.buffer for s in stores}) != len(stores):
        raise refuse(func, f"cannot {what} block {block.name!r}: its body is more than one store to each buffer")
    own = [b.name for b in read_buffers(block) if b in written_buffers(block)]
    if own:
        raise refuse(func, f"cannot {what} block {block.name!r}: it reads {own[0]!r}, which it writes")
    return {s.buffer: s for s in stores}


def _require_intermediate(func: PrimFunc, block: Block, buffer: Buffer, what: str) -> None:
    if buffer in func.params:
        raise refuse(
            func, f"cannot {what} block {block.name!r}: it writes {buffer.name!r}, a parameter of the function"
        )


def _require_stable_inputs(func: PrimFunc, block: Block, what: str, readers: Iterable[str] = ()) -> None:
    """Raise ScheduleError if a buffer that `block` reads is written after it, so that its readers would compute other
    values in its place; `what` is a verb for the text, "cannot WHAT block". `readers` are names of the blocks that
    read its result.

    Allowed is a writer that accesses other rows than `block` in each iteration of a loop around both and around all
    `readers`: the step of a recurrence reads earlier rows of the state that it writes.
    """
    order = [b.name for b in blocks_in(func.body)]
    here = order.index(block.name)
    for buffer in read_buffers(block):
        for writer in writers_of(func, buffer):
            if order.index(writer.name) > here and not _other_rows(func, block, writer, buffer, set(readers)):
                raise refuse(
                    func,
                    f"cannot {what} block {block.name!r}: block {writer.name!r} writes its input {buffer.name!r} later",
                )


def _other_rows(func: PrimFunc, block: Block, writer: Block, buffer: Buffer, readers: set[str]) -> bool:
    """Whether, in each iteration of the loops around both blocks and all `readers`, `writer` writes other elements of
    `buffer` than `block` reads: some index depends on these loops only, and differs."""
    inside = [{x.var for x in loops_on(block_path(func, name))} for name in {block.name, writer.name, *readers}]
    common = set.intersection(*inside)
    own = [stmt for stmt in (*walk(block), *walk(writer)) if isinstance(stmt, Intrinsic)]
    if not readers or not common or own:
        return False

    def places(b: Block, indices: Sequence[Expr]) -> list[Expr]:
        bound = {it.var: it.binding for it in b.iters}
        return [substitute(i, bound) for i in indices]

    reads = [places(block, x.indices) for x in loads_in(block) if x.buffer == buffer]
    writes = [places(writer, x.indices) for x in stores_in(writer) if x.buffer == buffer]

    def differ(r: Expr, w: Expr) -> bool:
        decided = common.issuperset(v for e in (r, w) for v in variables(e) if v not in func.symbols)
        return decided and not loads(r) and not loads(w) and as_int(simplify(r - w)) not in (None, 0)

    return all(any(map(differ, r, w)) for r in reads for w in writes)


class InlinePrimitives:
    """A class with the primitives that compute blocks within others, from which `Schedule` and `Stage` inherit."""

    __slots__ = ()
    compute_inline = compute_inline
    reverse_compute_inline = reverse_compute_inline
