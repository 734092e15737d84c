"""An output in the place of an input: safe where nothing reads an element of the input after its own was written.

    for i in 0..n { C[i] = A[i] * 2.0 }     in place     for i in 0..n { A[i] = A[i] * 2.0 }

A reader of the input is either the block that writes the output, at the element that it writes, or is in a nest before
all nests that write it.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arith import prove_equal
from tilewright.ir.expr import Buffer, as_int
from tilewright.ir.loops import Block, PrimFunc, Seq
from tilewright.ir.rewrite import exprs_of, loads, replace_buffers, walk
from tilewright.schedule.dependence import injective, spatial_bindings
from tilewright.schedule.state import (
    block_path,
    blocks_in,
    conjuncts,
    extents_of,
    intrinsics_in,
    loops_on,
    read_buffers,
    refuse,
    stores_in,
    written_buffers,
)


def in_place(func: PrimFunc, output: str, source: str) -> PrimFunc:
    """`func` with writes to parameter `source` in place of those to parameter `output`, which is removed. Raises
    ScheduleError if an element might be read after it was overwritten."""
    params = {b.name: b for b in func.params}
    what = f"cannot write {output!r} in the place of {source!r}"
    missing = [n for n in (output, source) if n not in params]
    if missing:
        raise refuse(func, f"{what}: {missing[0]!r} is no parameter")
    target, old = params[output], params[source]
    shapes = list(zip(target.shape, old.shape, strict=False))
    if (
        target == old
        or target.dtype is not old.dtype
        or len(target.shape) != len(old.shape)
        or not all(prove_equal(a, b) for a, b in shapes)
    ):
        raise refuse(func, f"{what}: they differ", expected=_type(target), got=_type(old))
    if old in written_buffers(func.body):
        raise refuse(func, f"{what}: {source!r} is written already")
    _check(func, target, old, what)
    new = replace(old, align=max(old.align or 0, target.align or 0) or None)
    body = replace_buffers(func.body, {target: new, old: new})
    return replace(func, params=tuple(new if b == old else b for b in func.params if b != target), body=body)


def _check(func: PrimFunc, target: Buffer, old: Buffer, what: str) -> None:
    """Raise ScheduleError, whose text begins with `what`, unless every read of an element of `old` comes before the
    element of `target` at the same indices is written."""
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    writing = [k for k, nest in enumerate(nests) if target in written_buffers(nest)]
    if not writing:
        raise refuse(func, f"{what}: nothing writes {target.name!r}")
    for k, nest in enumerate(nests):
        for block in blocks_in(nest):
            if k < writing[0] or old not in read_buffers(block):
                continue
            if k > writing[0] and k not in writing:
                raise refuse(func, f"{what}: block {block.name!r} reads {old.name!r} after that")
            if not _at_its_own_element(func, block, target, old):
                raise refuse(
                    func,
                    f"{what}: block {block.name!r} reads elements of {old.name!r} that may be overwritten",
                    hint="cache_read copies what is read first; only the element that is written may be read in place",
                )
    if len(writing) > 1 and any(old in read_buffers(nests[k]) for k in writing[1:]):
        raise refuse(func, f"{what}: several nests write {target.name!r}, and later ones read {old.name!r}")


def _at_its_own_element(func: PrimFunc, block: Block, target: Buffer, old: Buffer) -> bool:
    """Whether `block` writes each element of `target` once, and reads `old` only at the indices that it writes."""
    loops = loops_on(block_path(func, block.name))
    extents, conditions = extents_of(loops), conjuncts(block.predicate)
    if not all(injective(spatial_bindings(block), x.var, extents, conditions) for x in loops if as_int(x.extent) != 1):
        return False
    stores = list(stores_in(block))
    if block.is_reduction or block.init is not None or intrinsics_in(block):
        return False
    if [s.buffer for s in stores].count(target) != 1:
        return False
    (store,) = [s for s in stores if s.buffer == target]
    if stores[-1] is not store:
        return False
    points = (x.indices for s in walk(block.body) for e in exprs_of(s) for x in loads(e) if x.buffer == old)
    return all(all(map(prove_equal, store.indices, point)) for point in points)


def _type(b: Buffer) -> str:
    return f"{b.dtype}[{', '.join(map(str, b.shape))}]"
