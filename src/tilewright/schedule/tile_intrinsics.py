"""Intrinsics of matrix registers: clear one, multiply two and add to a third, store one.

Sums live in a buffer of scope "tiles"; each matrix of its last two dimensions is a register. Register numbers must be
constants, so loops over matrices are unrolled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.dtype import DType, f32, i32
from tilewright.ir.expr import Buffer, Expr, Load, Var, cast, const
from tilewright.ir.loops import Block, BlockIter, For, PrimFunc, Stmt, Store
from tilewright.schedule.intrinsics import TensorIntrin, register
from tilewright.targets.isa import Dot

ROWS = LANES = 16
"""The number of rows of a register of sums, and of lanes in each row."""


def _nest(name: str, params: Sequence[Buffer], extents: Mapping[str, int], reduce: str, store: Store) -> PrimFunc:
    """A function of loops over `extents` around one block that executes `store`; its iterators are named after the
    loops, with a v in front."""
    loops = {k: Var(k) for k in extents}
    iters = tuple(
        BlockIter(Var(f"v{k}"), const(n), "reduce" if k in reduce else "spatial", loops[k]) for k, n in extents.items()
    )
    stmt: Stmt = Block(name, iters, store)
    for k, n in reversed(list(extents.items())):
        stmt = For(loops[k], const(n), stmt)
    return PrimFunc(name, tuple(params), stmt)


def _matrix(name: str, dtype: DType) -> tuple[Buffer, tuple[Expr, ...]]:
    return Buffer(name, dtype, (const(ROWS), const(LANES))), (Var("vi"), Var("vj"))


def _zero(dtype: DType) -> TensorIntrin:
    c, at = _matrix("C", dtype)
    name = f"tile_zero_{dtype.name}"
    return TensorIntrin(name, _nest(name, (c,), {"i": ROWS, "j": LANES}, "", Store(c, at, const(0, dtype))))


def _store(dtype: DType) -> TensorIntrin:
    (c, at), (d, _) = _matrix("C", dtype), _matrix("D", dtype)
    name = f"tile_store_{dtype.name}"
    return TensorIntrin(name, _nest(name, (c, d), {"i": ROWS, "j": LANES}, "", Store(d, at, Load(c, at))))


ZERO = {t: register(_zero(t)) for t in (i32, f32)}
"""Intrinsics that clear a register of sums, `C[i, j] = 0`, by the type of the sums."""
STORE = {t: register(_store(t)) for t in (i32, f32)}
"""Intrinsics that store a register of sums to memory, `D[i, j] = C[i, j]`, by the type of the sums."""


def product_of(dot: Dot) -> PrimFunc:
    """The description of a matrix instruction (a `Dot` with several rows)."""
    kind = f32 if dot.a.is_float else i32
    c, at = _matrix("C", kind)
    i, j = at
    s, k = Var("vs"), Var("vk")
    a = Buffer("A", dot.a, (const(dot.rows), const(dot.depth)))
    b = Buffer("B", dot.b, (const(dot.steps), const(dot.lanes), const(dot.group)))
    product = cast(Load(a, (i, s * dot.group + k)), kind) * cast(Load(b, (s, j, k)), kind)
    extents = {"i": dot.rows, "s": dot.steps, "j": dot.lanes, "k": dot.group}
    return _nest(dot.name, (a, b, c), extents, "sk", Store(c, at, Load(c, at) + product))


__all__ = ["LANES", "ROWS", "STORE", "ZERO", "product_of"]
