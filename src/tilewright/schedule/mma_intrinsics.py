"""Intrinsics of GPUs that the threads of a warp compute together, each as what one of its threads gets.

Lane `l` of a warp has rows g and g + 8 of a matrix of 16 rows, and columns 2t and 2t + 1 of one of 8 columns, where
g = l // 4 and t = l % 4: C[2, 2] of its sums, to which it adds products of rows A[2, depth] and columns B[2, depth].
"""

from __future__ import annotations

from math import inf

from tilewright.ir.dtype import DType, bf16, f16, f32, i8, i32
from tilewright.ir.expr import Buffer, Load, Op, Var, const
from tilewright.ir.loops import Block, BlockIter, For, PrimFunc, Store
from tilewright.schedule.intrinsics import TensorIntrin, describe, register

DEPTH = {f32: 8, f16: 16, bf16: 16, i8: 32}
"""Products of each sum that one instruction adds, by the type of the factors; f32 are rounded to TF32."""

SUMS: dict[DType, DType] = {f32: f32, f16: f32, bf16: f32, i8: i32}
"""The type of the sums by that of the factors."""


def _product(t: DType) -> TensorIntrin:
    name = f"mma_{t.name}"
    extents = {"r": 2, "c": 2, "k": DEPTH[t]}
    maps = {"A": "rk", "B": "ck", "C": "rc"}
    return TensorIntrin(name, describe(name, extents, "k", (t, t, SUMS[t]), maps))


def _copy(t: DType, count: int) -> TensorIntrin:
    """`D[i] = S[i]`, 16 bytes."""
    name = f"copy_async_{t.name}"
    i, vi = Var("i"), Var("vi")
    d, s = (Buffer(n, t, (const(count),)) for n in "DS")
    block = Block(name, (BlockIter(vi, const(count), "spatial", i),), Store(d, (vi,), Load(s, (vi,))))
    return TensorIntrin(name, PrimFunc(name, (d, s), For(i, const(count), block)))


MMA = {t: register(_product(t)) for t in DEPTH}
"""Products of fragments, by the type of the factors."""

WARP = 32
"""Threads of a warp."""


def _reduction(name: str, t: DType) -> TensorIntrin:
    """`y = x[0] + x[1] + ...` over a warp's lanes, each of which gets it."""
    k, vk = Var("k"), Var("vk")
    y, x = Buffer("y", t, ()), Buffer("x", t, (const(WARP),))
    bound = {-inf: t.min, inf: t.max} if not t.is_float else {}
    value = const(bound.get(_IDENTITY[name], _IDENTITY[name]), t)
    body = Store(y, (), Op(name, (Load(y, ()), Load(x, (vk,))), t))
    called = f"warp_{name}_{t.name}"
    block = Block(called, (BlockIter(vk, const(WARP), "reduce", k),), body, Store(y, (), value))
    return TensorIntrin(called, PrimFunc(called, (y, x), For(k, const(WARP), block)))


_IDENTITY = {"add": 0, "mul": 1, "max": -inf, "min": inf, "larger": -inf}
"""The reduction of nothing, by operator."""

WARP_REDUCE = {
    (name, t): register(_reduction(name, t)) for t in (f32, i32) for name in _IDENTITY if t is f32 or name != "larger"
}
"""Reductions over a warp's lanes, by operator and type."""

COPY_BYTES = 16
"""Bytes that a thread moves at once."""
COPY_ASYNC = {t: register(_copy(t, COPY_BYTES // t.itemsize)) for t in DEPTH}
"""Copies of 16 bytes from a parameter to shared memory that go on while the thread does other things, by type. They are
complete after the next barrier of the block, for all of its threads; until then no thread may touch what they write."""
_COPIES = frozenset(intrin.name for intrin in COPY_ASYNC.values())


def is_async(name: str) -> bool:
    """Whether what an intrinsic writes is there after the next barrier of the block only."""
    return name in _COPIES


__all__ = ["COPY_ASYNC", "COPY_BYTES", "DEPTH", "MMA", "SUMS", "WARP", "WARP_REDUCE", "is_async"]
