"""Dot instructions of x86: sums of products of neighbouring pairs, for bf16 and for 16-bit integers.

Every one multiplies a group of elements of A, the same for all lanes, with a group of B in each lane:

    for i in 0..lanes { for k in 0..group { C[i] = C[i] + cast(A[k]) * cast(B[i, k]) } }

The bf16 instruction takes and gives no denormals and adds each pair before it adds to C (Intel SDM, VDPBF16PS).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.dtype import DType, bf16, f32, i8, i16, i32, u8
from tilewright.schedule.intrinsics import VNNI_16X4_U8I8I32, TensorIntrin, describe, register
from tilewright.support.errors import ScheduleError
from tilewright.targets.target import Target


@dataclass(frozen=True, slots=True)
class Dot:
    """An instruction: `lanes` sums of `group` products; `cost` in multiply-adds of a full vector."""

    intrin: TensorIntrin
    a: DType
    b: DType
    lanes: int
    group: int
    cost: float


def _splat(pairs: int) -> str:
    return f"""\
  %two = load i32, ptr %a, align 1
  %one = insertelement <{pairs} x i32> poison, i32 %two, i64 0
  %all = shufflevector <{pairs} x i32> %one, <{pairs} x i32> poison, <{pairs} x i32> zeroinitializer
"""


def _bf16_text() -> str:
    return f"""\
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define internal void @tw.intrin.dot_16x2_bf16(ptr %a, ptr %b, i64 %bs, ptr %c) alwaysinline {{
{_splat(16)}  %left = bitcast <16 x i32> %all to <32 x bfloat>
  %right = load <32 x bfloat>, ptr %b, align 2
  %old = load <16 x float>, ptr %c, align 4
  %new = call <16 x float>
    @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %old, <32 x bfloat> %left, <32 x bfloat> %right)
  store <16 x float> %new, ptr %c, align 4
  ret void
}}"""


def _madd_text(name: str, lanes: int, b: DType) -> str:
    """Products of pairs added to C; with VNNI LLVM makes one instruction of the two."""
    function = "avx2.pmadd.wd" if lanes == 8 else "avx512.pmaddw.d.512"
    pair = f"<{2 * lanes} x i16>"
    read = f"  %right = load {pair}, ptr %b, align 2\n"
    if b is i8:
        read = (
            f"  %narrow = load <{2 * lanes} x i8>, ptr %b, align 1\n"
            f"  %right = sext <{2 * lanes} x i8> %narrow to {pair}\n"
        )
    return f"""\
declare <{lanes} x i32> @llvm.x86.{function}({pair}, {pair})
define internal void @tw.intrin.{name}(ptr %a, ptr %b, i64 %bs, ptr %c) alwaysinline {{
{_splat(lanes)}  %left = bitcast <{lanes} x i32> %all to {pair}
{read}  %sum = call <{lanes} x i32> @llvm.x86.{function}({pair} %left, {pair} %right)
  %old = load <{lanes} x i32>, ptr %c, align 4
  %new = add <{lanes} x i32> %old, %sum
  store <{lanes} x i32> %new, ptr %c, align 4
  ret void
}}"""


def _dot(name: str, a: DType, b: DType, lanes: int, text: str, features: tuple[str, ...], cost: float) -> Dot:
    result = f32 if a.is_float else i32
    description = describe(name, {"i": lanes, "k": 2}, "k", (a, b, result), {"A": "k", "B": "ik", "C": "i"})
    return Dot(register(TensorIntrin(name, description, text, features, dense=True)), a, b, lanes, 2, cost)


def _madd(lanes: int, b: DType) -> Dot:
    name = f"dot_{lanes}x2_i16{b.name}"
    features = ("avx2",) if lanes == 8 else ("avx512f", "avx512bw")
    return _dot(name, i16, b, lanes, _madd_text(name, lanes, b), features, 1.25)


DOTS: tuple[Dot, ...] = (
    _dot("dot_16x2_bf16", bf16, bf16, 16, _bf16_text(), ("avx512f", "avx512bf16"), 1.0),
    Dot(VNNI_16X4_U8I8I32, u8, i8, 16, 4, 1.0),
    _madd(16, i8),
    _madd(16, i16),
    _madd(8, i8),
    _madd(8, i16),
)
"""In order of preference."""


def find_dot(a: DType, b: DType, target: Target) -> Dot | None:
    """The target's instruction for activations of type `a` and weights of type `b`."""
    for dot in DOTS:
        if dot.a is a and dot.b is b and all(map(target.has, dot.intrin.features)):
            return dot
    return None


def named_dot(name: str) -> Dot:
    """The instruction of this name. Raises ScheduleError if there is none."""
    found = next((dot for dot in DOTS if dot.intrin.name == name), None)
    if found is None:
        known = ", ".join(dot.intrin.name for dot in DOTS)
        raise ScheduleError(f"no dot instruction is called {name!r}", expected=f"one of {known}")
    return found


__all__ = ["DOTS", "Dot", "find_dot", "named_dot"]
