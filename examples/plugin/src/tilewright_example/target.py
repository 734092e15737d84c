"""A machine that Tilewright does not know: 16 registers of 256 bits, no multiply-add with one rounding."""

from __future__ import annotations

from tilewright.targets import x86
from tilewright.targets.costs import Costs, Origin
from tilewright.targets.isa import Isa
from tilewright.targets.memory import Caches, Ceilings
from tilewright.targets.registry import Family
from tilewright.targets.target import Target

SANDY_BRIDGE = Target(
    "x86_64-unknown-linux-gnu",
    "sandybridge",
    tuple(sorted((*x86.V2, "avx", "xsave"))),
    isa=Isa(vector_bits=256, registers=16, masked_reads=True, streams_stores=True),
    caches=Caches(l1=32 << 10, l2=256 << 10, l3=8 << 20),
    ceilings=Ceilings(fma_per_cycle=1.0, l1_bandwidth=32.0, l2_bandwidth=24.0),
    costs=Costs().fitted(Origin("2011-01-09", "Sandy Bridge", "the maker's manual"), fma_latency=8.0),
)

FAMILY = Family("example", "x86_64", {"sandy-bridge": SANDY_BRIDGE})
