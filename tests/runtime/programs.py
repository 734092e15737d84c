"""Hand-written programs in LLVM text, so that the runtime is tested without the compiler."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np

from tilewright.native.link import compile_text, host_triple
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.program import Program
from tilewright.runtime.specs import (
    InputSpec,
    OutputSpec,
    PackedSpec,
    ParamSpec,
    StepSpec,
    SymbolSpec,
    TargetSpec,
    TempSpec,
)

TARGET = TargetSpec(host_triple(), str(llvm.get_host_cpu_name()))

_ENTRY = "(ptr %slots, ptr %dims, i64 %tid, i64 %nthreads, ptr %barrier)"

COPY = f"""
define void @copy(ptr noalias %x, ptr noalias %y, i64 %tid, i64 %nthreads, ptr %barrier) {{
  %v = load <16 x float>, ptr %x, align 4
  store <16 x float> %v, ptr %y, align 4
  ret void
}}
define void @tw_run{_ENTRY} {{
  %x = load ptr, ptr %slots
  %p = getelementptr ptr, ptr %slots, i64 1
  %y = load ptr, ptr %p
  call void @copy(ptr %x, ptr %y, i64 %tid, i64 %nthreads, ptr %barrier)
  ret void
}}
define void @tw_prepare{_ENTRY} {{
  ret void
}}
define void @tw_shapes(ptr %dims, ptr %out) {{
  store i64 16, ptr %out
  ret void
}}
"""


def copy16(dtype: str = "f32", code: str = COPY) -> Program:
    """y = x for 16 floats."""
    manifest = Manifest(
        name="copy16",
        target=TARGET,
        inputs=(InputSpec("x", dtype, (16,)),),
        outputs=(OutputSpec("y", dtype, (16,)),),
        run_steps=(StepSpec("copy", (0, 1), label="copy", traffic=((128, ()),)),),
        structure_key="c0ffee",
    )
    return Program(manifest, {"copy": compile_text(code)}, {}, {"graph": "y = x", "llvm": lambda: code})


AFFINE = """
declare void @tw_barrier(ptr, i64)
declare float @expf(float)

; t[i] = exp(x[i]) for this thread's part of n, into per-thread scratch first
define void @exponent(ptr noalias %x, ptr noalias %t, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) {
entry:
  %a = mul i64 %n, %tid
  %start = udiv i64 %a, %nthreads
  %tid1 = add i64 %tid, 1
  %b = mul i64 %n, %tid1
  %end = udiv i64 %b, %nthreads
  br label %test
test:
  %i = phi i64 [%start, %entry], [%i1, %body]
  %go = icmp slt i64 %i, %end
  br i1 %go, label %body, label %done
body:
  %px = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %px
  %e = call float @expf(float %v)
  %pt = getelementptr float, ptr %t, i64 %i
  store float %e, ptr %pt
  %i1 = add i64 %i, 1
  br label %test
done:
  call void @tw_barrier(ptr %barrier, i64 %nthreads)
  ret void
}

; y[i, j] = t[i] * w[j, 0] + w[j, 1], rows split over threads; w is [3, 2]: the raw [2, 3] transposed
define void @affine(ptr noalias %t, ptr noalias %w, ptr noalias %y, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) {
entry:
  %a = mul i64 %n, %tid
  %start = udiv i64 %a, %nthreads
  %tid1 = add i64 %tid, 1
  %b = mul i64 %n, %tid1
  %end = udiv i64 %b, %nthreads
  br label %test
test:
  %i = phi i64 [%start, %entry], [%i1, %next]
  %go = icmp slt i64 %i, %end
  br i1 %go, label %row, label %done
row:
  %pt = getelementptr float, ptr %t, i64 %i
  %v = load float, ptr %pt
  br label %column
column:
  %j = phi i64 [0, %row], [%j1, %column]
  %j2 = mul i64 %j, 2
  %j21 = add i64 %j2, 1
  %pw = getelementptr float, ptr %w, i64 %j2
  %pb = getelementptr float, ptr %w, i64 %j21
  %wv = load float, ptr %pw
  %bv = load float, ptr %pb
  %m = fmul float %v, %wv
  %s = fadd float %m, %bv
  %i3 = mul i64 %i, 3
  %at = add i64 %i3, %j
  %py = getelementptr float, ptr %y, i64 %at
  store float %s, ptr %py
  %j1 = add i64 %j, 1
  %more = icmp slt i64 %j1, 3
  br i1 %more, label %column, label %next
next:
  %i1 = add i64 %i, 1
  br label %test
done:
  call void @tw_barrier(ptr %barrier, i64 %nthreads)
  ret void
}

; c[0] = scale[0], on thread 0
define void @last(ptr noalias %scale, ptr noalias %c, i64 %tid, i64 %nthreads, ptr %barrier) {
  %first = icmp eq i64 %tid, 0
  br i1 %first, label %body, label %done
body:
  %v = load float, ptr %scale
  store float %v, ptr %c
  br label %done
done:
  call void @tw_barrier(ptr %barrier, i64 %nthreads)
  ret void
}
"""

ENTRY = f"""
declare void @tw_barrier(ptr, i64)
declare void @exponent(ptr, ptr, i64, i64, i64, ptr)
declare void @affine(ptr, ptr, ptr, i64, i64, i64, ptr)
declare void @last(ptr, ptr, i64, i64, ptr)

; run slots: 0 x, 1 y, 2 c, 3 packed w, 4 packed scale (alias), 5 t
define void @tw_run{_ENTRY} {{
  %n = load i64, ptr %dims
  %x = load ptr, ptr %slots
  %s1 = getelementptr ptr, ptr %slots, i64 1
  %s2 = getelementptr ptr, ptr %slots, i64 2
  %s3 = getelementptr ptr, ptr %slots, i64 3
  %s4 = getelementptr ptr, ptr %slots, i64 4
  %s5 = getelementptr ptr, ptr %slots, i64 5
  %y = load ptr, ptr %s1
  %c = load ptr, ptr %s2
  %w = load ptr, ptr %s3
  %scale = load ptr, ptr %s4
  %t = load ptr, ptr %s5
  call void @exponent(ptr %x, ptr %t, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier)
  call void @affine(ptr %t, ptr %w, ptr %y, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier)
  call void @last(ptr %scale, ptr %c, i64 %tid, i64 %nthreads, ptr %barrier)
  ret void
}}

; prepare slots: 0 raw w [2, 3], 1 raw scale [1], 2 packed w, 3 packed scale, 4 temp
define void @tw_prepare{_ENTRY} {{
entry:
  %first = icmp eq i64 %tid, 0
  br i1 %first, label %work, label %done
work:
  %raw = load ptr, ptr %slots
  %s2 = getelementptr ptr, ptr %slots, i64 2
  %s4 = getelementptr ptr, ptr %slots, i64 4
  %packed = load ptr, ptr %s2
  %temp = load ptr, ptr %s4
  call void @transpose(ptr %raw, ptr %packed, ptr %temp)
  br label %done
done:
  call void @tw_barrier(ptr %barrier, i64 %nthreads)
  ret void
}}

define void @transpose(ptr %raw, ptr %packed, ptr %temp) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %r = udiv i64 %i, 3
  %c = urem i64 %i, 3
  %c2 = mul i64 %c, 2
  %at = add i64 %c2, %r
  %p = getelementptr float, ptr %raw, i64 %i
  %v = load float, ptr %p
  %t = getelementptr float, ptr %temp, i64 %i
  store float %v, ptr %t
  %q = getelementptr float, ptr %packed, i64 %at
  store float %v, ptr %q
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, 6
  br i1 %more, label %loop, label %out
out:
  ret void
}}

define void @tw_shapes(ptr %dims, ptr %out) {{
  %n = load i64, ptr %dims
  %bytes = mul i64 %n, 4
  store i64 %bytes, ptr %out
  %p1 = getelementptr i64, ptr %out, i64 1
  store i64 %n, ptr %p1
  %p2 = getelementptr i64, ptr %out, i64 2
  store i64 3, ptr %p2
  %p3 = getelementptr i64, ptr %out, i64 3
  store i64 1, ptr %p3
  ret void
}}
"""


def affine(lo: int = 0, hi: int = 1 << 20, multiple: int = 1) -> Program:
    """y[n, 3] = exp(x[n]) w0 + w1 and c[1] = scale, with w given as [2, 3] and read transposed."""
    manifest = Manifest(
        name="affine",
        target=TARGET,
        symbols=(SymbolSpec("n", lo, hi, multiple),),
        inputs=(InputSpec("x", "f32", ("n",)),),
        outputs=(OutputSpec("y", "f32", ("n", 3)), OutputSpec("c", "f32", (1,))),
        params=(ParamSpec("w", "f32", (2, 3)), ParamSpec("scale", "f32", (1,))),
        packed=(PackedSpec("w", 24), PackedSpec("scale", 4, alias="scale")),
        run_temps=(TempSpec(0, 1),),
        run_steps=(
            StepSpec("exponent", (0, 5), (0,), "exp", flops=((1, ("n",)),)),
            StepSpec(
                "affine", (5, 3, 1), (0,), "multiply + add", flops=((6, ("n",)),), traffic=((16, ("n",)), (24, ()))
            ),
            StepSpec("last", (4, 2)),
        ),
        prepare_temps=(TempSpec(0, 0, 24),),
        prepare_steps=(StepSpec("transpose", (0, 2, 4)),),
        structure_key="af1e",
        schedule_version=3,
    )
    weights = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "scale": np.array([7.0], np.float32)}
    objects = {"kernels": compile_text(AFFINE), "entry": compile_text(ENTRY)}
    return Program(manifest, objects, weights, {"graph": "affine"})


def affine_reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The result of `affine`."""
    return (np.exp(x.astype(np.float64))[:, None] * w[0] + w[1]).astype(np.float32)
