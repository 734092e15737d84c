"""LLVM text of small loop programs: how lanes are addressed, masked and kept in registers, on two machines.

What such text computes is tested elsewhere, on programs of all kinds; this is about which instructions are taken.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.ir.parser import parse_func
from tilewright.targets.target import Target

F, N = "A: f32[n], B: f32[n], C: f32[n]", "n in 0..65536"


def over(lanes: int, body: str) -> str:
    return f"for i in 0..n // {lanes} {{ for v in 0..{lanes} vectorized {{ {body} }} }}"


def at(lanes: int) -> str:
    return f"i * {lanes} + v"


PROGRAMS: dict[str, tuple[str, str, str]] = {
    "whole vectors": (F, N, over(16, f"C[{at(16)}] = A[{at(16)}] * B[{at(16)}] + 1.0")),
    "a loop of symbolic length": (F, N, "for v in 0..n vectorized { C[v] = A[v] + B[v] }"),
    "lanes that fill no vector": (F, N, over(5, f"C[{at(5)}] = A[{at(5)}] - B[v]")),
    "several vectors and a rest": (F, N, over(24, f"C[{at(24)}] = A[{at(24)}] / B[{at(24)}]")),
    "backwards": (F, N, over(8, f"C[{at(8)}] = A[n - 1 - ({at(8)})]")),
    "strides": ("A: f32[n * 3], C: f32[n * 2]", N, over(8, f"C[({at(8)}) * 2] = A[({at(8)}) * 3 + 1]")),
    "a stride of any size": (
        "A: f32[16, n], C: f32[16, n]",
        N,
        "for j in 0..n { for v in 0..16 vectorized { C[v, j] = A[v, j] } }",
    ),
    "one for all lanes": (F, N, over(8, f"C[{at(8)}] = A[i] * B[0]")),
    "lanes in groups": (F, N, over(16, f"C[{at(16)}] = A[i + v // 4] * B[v % 4]")),
    "quotients of lanes": ("A: f32[n, 7], C: f32[n]", N, over(16, f"C[{at(16)}] = A[({at(16)}) // 7, ({at(16)}) % 7]")),
    "from places in memory": ("A: f32[n], I: i32[n], C: f32[n]", N, over(16, f"C[{at(16)}] = A[i64(I[{at(16)}])]")),
    "to places in memory": ("A: f32[n], I: i64[n], C: f32[n]", N, over(8, f"C[I[{at(8)}]] = A[{at(8)}]")),
    "a last vector": (
        F,
        N,
        over(16, f"if {at(16)} < n {{ C[{at(16)}] = A[{at(16)}] }}").replace("n // 16", "(n + 15) // 16"),
    ),
    "conditions of lanes": (
        F,
        N,
        over(16, f"if {at(16)} >= 3 and n - v > 2 {{ C[{at(16)}] = A[{at(16)}] }} else {{ C[{at(16)}] = 0.0 }}"),
    ),
    "conditions of values": (F, N, over(8, f"if A[{at(8)}] < B[{at(8)}] {{ C[{at(8)}] = A[{at(8)}] }}")),
    "one lane": (F, N, over(8, f"if v == 3 {{ C[{at(8)}] = A[{at(8)}] }} if v != i {{ C[{at(8)}] = B[{at(8)}] }}")),
    "reads at edges": (
        F,
        N,
        over(16, f"C[{at(16)}] = select({at(16)} >= 1 and {at(16)} < n - 1, A[{at(16)} - 1] + A[{at(16)} + 1], 0.0)"),
    ),
    "conditions outside": (F, N, f"if n % 4 == 1 {{ {over(8, f'C[{at(8)}] = A[{at(8)}]')} }}"),
    "sums of lanes": ("A: f32[n], C: f32[2]", N, f"C[0] = 0.0 C[1] = 1.0 {over(16, f'C[0] = C[0] + A[{at(16)}]')}"),
    "extrema of lanes": (
        "A: i32[n], C: i32[2]",
        N,
        f"{over(8, f'C[0] = max(C[0], A[{at(8)}])')} for k in 0..4 vectorized {{ C[1] = min(C[1], A[k]) }}",
    ),
    "half floats": (
        "A: f16[n], B: bf16[n], C: f16[n]",
        N,
        over(16, f"C[{at(16)}] = A[{at(16)}] * 2.0:f16 + f16(B[{at(16)}])"),
    ),
    "bytes": (
        "A: u8[n], B: i8[n], C: i32[n]",
        N,
        over(16, f"C[{at(16)}] = i32(A[{at(16)}]) * i32(B[{at(16)}]) + i32(A[{at(16)}] // 3:u8)"),
    ),
    "truth values": (
        "A: bool[n], B: f32[n], C: bool[n]",
        N,
        over(16, f"C[{at(16)}] = A[{at(16)}] and not B[{at(16)}] < 0.5"),
    ),
    "doubles and words": (
        "A: f64[n], B: i64[n], C: f64[n]",
        N,
        over(8, f"C[{at(8)}] = f64(B[{at(8)}] // 5) + sqrt(A[{at(8)}])"),
    ),
    "registers": (
        "A: f32[n, 16], C: f32[2, 16]",
        N,
        """
        alloc t: f32[2, 16] in local {
          for r in 0..2 unrolled { for v in 0..16 vectorized { t[r, v] = 0.0 } }
          for k in 0..n { for r1 in 0..2 unrolled { for v1 in 0..16 vectorized {
            t[r1, v1] = t[r1, v1] + A[k, v1] * A[k, r1] } } }
          for r2 in 0..2 unrolled { for v2 in 0..16 vectorized { C[r2, v2] = t[r2, v2] } }
        }""",
    ),
    "memory of its own": (
        "A: f32[64], C: f32[64]",
        "",
        """
        alloc t: f32[64] { for i in 0..64 { t[i] = A[63 - i] } for j in 0..64 { C[j] = t[j] * t[0] } }""",
    ),
    "a number for each lane": (
        "A: f32[n, 8], C: f32[n, 8]",
        N,
        """
        for i in 0..n { for v in 0..8 vectorized {
          alloc t: f32[2] in local { t[0] = A[i, v] t[1] = t[0] * t[0] C[i, v] = t[1] + t[0] } } }""",
    ),
    "names": (F, N, over(8, f"let x = A[{at(8)}] let k = i * 2 C[{at(8)}] = x * x + B[k]")),
    "divisions before loops": (
        "A: f32[m, n], C: f32[m, n]",
        "n in 1..4096, m in 1..4096",
        """
        for t in 0..m * n { for k in 0..2 { C[t // n, t % n] = A[t // n, 0] + f32(k) } }""",
    ),
    "bases before loops": (
        "A: f32[4, m, n, 8], C: f32[m, n, 8]",
        "n in 1..4096, m in 1..4096",
        """
        for i in 0..m { for c in 0..4 { for r in 0..2 unrolled { for v in 0..8 vectorized {
          C[i, r, v] = C[i, r, v] + A[c, i, r, v] } } } }""",
    ),
    "threads": (
        "A: f32[n], C: f32[n]",
        N,
        "for i in 0..n parallel { C[i] = A[i] } for j in 0..n parallel { A[j] = C[n - 1 - j] }",
    ),
    "one thread": ("A: f32[n], C: f32[1]", N, "C[0] = 0.0 for i in 0..n { C[0] = C[0] + A[i] }"),
    "unrolled": (
        F,
        N,
        "for i in 0..n // 4 { for u in 0..4 unrolled { if u < n % 4 { C[i * 4 + u] = A[i * 4 + u] } } }",
    ),
    "shared parts": (
        F,
        N,
        over(8, f"C[{at(8)}] = exp(A[{at(8)}] * B[i]) * (A[{at(8)}] * B[i]) + max(A[{at(8)}], 0.0)"),
    ),
    "tables": (
        "A: i64[n], C: f32[n]",
        N,
        over(8, f"C[{at(8)}] = lookup(A[{at(8)}], 1.0, 2.0, 4.0) + lookup(v, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)"),
    ),
    "transposed": (
        "A: f32[8, 8], C: f32[8, 8]",
        "",
        "for r in 0..8 unrolled { for v in 0..8 vectorized { C[v, r] = A[r, v] } }",
    ),
    "prefetched": (
        F,
        N,
        over(16, f"C[{at(16)}] = A[{at(16)}]").replace("// 16 {", "// 16 @prefetch(buffers=[A], nbytes=256) {"),
    ),
    "nothing": ("C: f32[0]", "", "for i in 0..0 { C[i] = 1.0 }"),
}


def lines(text: str) -> str:
    return "\n".join(x for x in text.splitlines() if not x.startswith(("target", "source_filename", ";")))


@pytest.mark.parametrize("name", PROGRAMS)
def test_text(name: str, golden: Callable[..., None]) -> None:
    params, symbols, body = PROGRAMS[name]
    func = parse_func(f"func @f({params}){f' where {symbols}' if symbols else ''} {{ {body} }}")
    golden("\n".join(f"; {t}\n{lines(emit_llvm(func, Target.parse(t)))}" for t in ("x86-64-v3", "znver4")), "ll")
