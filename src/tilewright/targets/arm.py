"""Arm, 64 bits: NEON of 128 bits, and SVE whose width is known.

No times were measured on such a machine: results were checked in an emulator (`make targets`); costs are those of x86,
except those that follow from having 32 registers; ceilings are estimates for servers of about 2020 and a phone's core
(21 November 2026, commit 08c0715; machines not recorded).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.dtype import bf16, i8, u8
from tilewright.targets.costs import Costs, Origin
from tilewright.targets.isa import Dot, Isa, offered
from tilewright.targets.memory import Caches, Ceilings
from tilewright.targets.registry import Family
from tilewright.targets.target import Target

TRIPLE = "aarch64-unknown-linux-gnu"

NEON = ("fp-armv8", "neon")
A76 = (*NEON, "fullfp16", "dotprod")
V1 = (*NEON, "fullfp16", "dotprod", "bf16", "i8mm")


def _dot_text(name: str, call: str, vector: str, sums: str) -> str:
    """LLVM text of the function `tw.intrin.<name>`, which adds to C, a vector `sums`, the products of a group of A,
    which all lanes share, and of B, a `vector` of 16 bytes, by the instruction `call`. If A and B have one type, A is
    the second operand, so that it may be one lane of a register."""
    first, second = ("left", "right") if call.startswith("us") else ("right", "left")
    return f"""\
declare {sums} @llvm.aarch64.neon.{call}({sums}, {vector}, {vector})
define internal void @tw.intrin.{name}(ptr %a, ptr %b, i64 %bs, ptr %c) alwaysinline {{
  %group = load i32, ptr %a, align 1
  %one = insertelement <4 x i32> poison, i32 %group, i64 0
  %all = shufflevector <4 x i32> %one, <4 x i32> poison, <4 x i32> zeroinitializer
  %left = bitcast <4 x i32> %all to {vector}
  %right = load {vector}, ptr %b, align 1
  %old = load {sums}, ptr %c, align 4
  %new = call {sums} @llvm.aarch64.neon.{call}({sums} %old, {vector} %{first}, {vector} %{second})
  store {sums} %new, ptr %c, align 4
  ret void
}}"""


_USDOT = _dot_text("usdot_4x4_u8i8", "usdot.v4i32.v16i8", "<16 x i8>", "<4 x i32>")
_SDOT = _dot_text("sdot_4x4_i8i8", "sdot.v4i32.v16i8", "<16 x i8>", "<4 x i32>")
_BFDOT = _dot_text("bfdot_4x2_bf16", "bfdot.v4f32.v8bf16", "<8 x bfloat>", "<4 x float>")


def _mmla_text(name: str, call: str, vector: str, sums: str) -> str:
    """LLVM text of the function `tw.intrin.<name>`, which adds to the four sums of C, a vector `sums`, the products of
    two groups of A and two of B, a `vector` of 16 bytes each, by the instruction `call`."""
    return f"""\
declare {sums} @llvm.aarch64.neon.{call}({sums}, {vector}, {vector})
define internal void @tw.intrin.{name}(ptr %a, i64 %as, ptr %b, i64 %bs, ptr %c, i64 %cs) alwaysinline {{
  %left = load {vector}, ptr %a, align 1
  %right = load {vector}, ptr %b, align 1
  %old = load {sums}, ptr %c, align 4
  %new = call {sums} @llvm.aarch64.neon.{call}({sums} %old, {vector} %left, {vector} %right)
  store {sums} %new, ptr %c, align 4
  ret void
}}"""


_USMMLA = _mmla_text("usmmla_2x2x8_u8i8", "usmmla.v4i32.v16i8", "<16 x i8>", "<4 x i32>")
_SMMLA = _mmla_text("smmla_2x2x8_i8i8", "smmla.v4i32.v16i8", "<16 x i8>", "<4 x i32>")
_BFMMLA = _mmla_text("bfmmla_2x2x4_bf16", "bfmmla", "<8 x bfloat>", "<4 x float>")

DOTS = (
    Dot("bfdot_4x2_bf16", bf16, bf16, 4, 2, ("bf16",), 1.0, _BFDOT),
    Dot("usdot_4x4_u8i8", u8, i8, 4, 4, ("i8mm",), 1.0, _USDOT),
    Dot("sdot_4x4_i8i8", i8, i8, 4, 4, ("dotprod",), 1.0, _SDOT),
    Dot("bfmmla_2x2x4_bf16", bf16, bf16, 2, 4, ("bf16",), 1.0, _BFMMLA, rows=2),
    Dot("usmmla_2x2x8_u8i8", u8, i8, 2, 8, ("i8mm",), 1.0, _USMMLA, rows=2),
    Dot("smmla_2x2x8_i8i8", i8, i8, 2, 8, ("i8mm",), 1.0, _SMMLA, rows=2),
)
"""The dot instructions of the extensions i8mm, dotprod and bf16."""

ISA = Isa(vector_bits=128, registers=32, fma=True, elements=True, extrema_keep_nan=True)

CEILINGS = Ceilings(
    fma_per_cycle=2.0, l1_bandwidth=32.0, l2_bandwidth=16.0, l3_bandwidth=9.5, memory_bandwidth=6.7, streams=4
)

COSTS = Costs().fitted(Origin("2026-11-21", commit="92de22e"), constant_registers=4)


SERVER = Caches(l1=64 << 10, l1_ways=4, way=16 << 10, l2=1 << 20, l3=8 << 20)
"""A core's share of Neoverse N1 and V1, by Arm's technical reference manuals: 64 KB in four ways, 1 MB in eight."""

PHONE = replace(CEILINGS, l2_bandwidth=12.0, l3_bandwidth=6.0, memory_bandwidth=4.0, streams=2)
"""Estimates for a core of a phone or board of about 2016, with lower memory bandwidths than a server's."""


def processor(cpu: str, features: tuple[str, ...]) -> Target:
    """The description of a processor of this name with these features."""
    isa = replace(ISA, dots=offered(DOTS, features))
    return Target(TRIPLE, cpu, tuple(sorted(features)), isa=isa, ceilings=CEILINGS, costs=COSTS)


def scalable(cpu: str, features: tuple[str, ...], bits: int) -> Target:
    """A processor with SVE registers of `bits` bits: code for it only runs on machines of this width. LLVM would load
    the elements of several steps in pairs and spill their broadcasts, so that a loop body has one step. Dot
    instructions are NEON's, of 128 bits."""
    result = processor(cpu, features)
    isa = replace(result.isa, vector_bits=bits, scalable=True, elements=False, single_steps=True)
    return replace(result, isa=isa)


FAMILY = Family(
    "arm",
    "aarch64",
    {
        "neoverse-n1": replace(processor("neoverse-n1", A76), caches=SERVER),
        "neoverse-v1": replace(processor("neoverse-v1", V1), caches=SERVER),
        "neoverse-v1-sve": replace(scalable("neoverse-v1", (*V1, "sve"), 256), caches=SERVER),
        "cortex-a72": replace(processor("cortex-a72", NEON), ceilings=PHONE),
        "generic-aarch64": processor("generic", NEON),
        "android-arm64": replace(processor("cortex-a76", A76), triple="aarch64-unknown-linux-android", ceilings=PHONE),
        "macos-arm64": replace(processor("apple-m1", A76), triple="arm64-apple-macosx11.0.0"),
    },
    DOTS,
    describe=processor,
)

__all__ = ["DOTS", "FAMILY", "processor", "scalable"]
