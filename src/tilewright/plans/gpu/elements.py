"""One thread for each element of a stage. This is a routine, since `bind` cannot prove indices of several dimensions
that are joined and split again.

for n in 0..B { for f in 0..32 { for y in 0..20 { for k in 0..9 { block conv(...) } } } }
->
for b in 0..(B*640 + 255) // 256 thread(blockIdx.x) { for t in 0..256 thread(threadIdx.x) {
  let e = b * 256 + t
  if e < B*640 { for k in 0..9 { block conv(n = e // 640, f = e // 20 % 32, y = e % 20, k = k) } } } }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir.expr import Expr, Var, as_int, const, product
from tilewright.ir.loops import Block, BlockIter, For, If, Let, PrimFunc, Seq, Stmt, seq
from tilewright.ir.rewrite import fresh_name, names_of
from tilewright.plans.gpu.width import neighbours
from tilewright.schedule.routines import Routine, register
from tilewright.schedule.state import refuse

WARP = 32


def elements(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """`func` with a kernel for each stage, in which a thread computes an element. Raises ScheduleError if its loops are
    not nests of one block each."""
    names = set(names_of(func))
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    return func.with_body(seq(nest_of(func, nest, sizes["threads"], names) for nest in nests))


def nest_of(func: PrimFunc, nest: Stmt, threads: int, names: set[str]) -> Stmt:
    inner = nest
    while isinstance(inner, For):
        inner = inner.body
    if not isinstance(inner, Block):
        raise refuse(func, "what is no single block has no elements")
    spatial = [it for it in inner.iters if it.kind == "spatial"]
    width = 1 if inner.is_reduction else neighbours(inner)
    extents = [it.extent for it in spatial]
    if width > 1:
        extents[-1] = const((as_int(extents[-1]) or 0) // width)
    total = product(extents)
    known = as_int(total)
    if known is not None:
        threads = min(threads, -(-known // WARP) * WARP)
    element, grid, thread, lane = (_new(f"{inner.name}_{part}", names) for part in ("e", "b", "t", "v"))
    places = places_of(element, extents)
    if width > 1:
        places[-1] = places[-1] * width + lane
    own = dict(zip((it.var for it in spatial), places, strict=True))
    loops: list[For] = []
    iters: list[BlockIter] = []
    for it in inner.iters:
        if it.kind != "spatial":
            k = _new(it.var.name.removeprefix("v"), names)
            loops.append(For(k, it.extent, inner))
            own[it.var] = k
        iters.append(replace(it, binding=own[it.var]))
    body: Stmt = replace(inner, iters=tuple(iters))
    if width > 1:
        body = For(lane, const(width), body, "vectorized")
    for loop in reversed(loops):
        body = replace(loop, body=body)
    if known is None or known % threads:
        body = If(element < total, body)
    body = Let(element, grid * threads + thread, body)
    body = For(thread, const(threads), body, "thread", "threadIdx.x")
    return For(grid, (total + (threads - 1)) // threads, body, "thread", "blockIdx.x")


def places_of(element: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """The index in each dimension of element number `element` of an array with `extents`, in row-major order: for
    extents (2, 3), element 4 is at (1, 1)."""
    results: list[Expr] = []
    inside: Expr = const(1)
    for k, extent in reversed(list(enumerate(extents))):
        place = element if as_int(inside) == 1 else element // inside
        results.append(place % extent if k else place)
        inside = inside * extent
    return results[::-1]


def _new(name: str, names: set[str]) -> Var:
    result = fresh_name(name, names)
    names.add(result)
    return Var(result)


ELEMENTS = register(Routine("gpu elements", ("threads",), elements))

__all__ = ["ELEMENTS", "elements", "nest_of", "places_of"]
