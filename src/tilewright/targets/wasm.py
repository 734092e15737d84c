"""WebAssembly, 32 bits, with vectors of 128 bits, run in Node as bundles (`bundle/web.py`). Nothing was measured.

The machine code depends on the engine and the processor: registers are counted as for V8 on x86, which has 16 and
reserves one. V8's optimising compiler orders a basic block by its results: each sum with all operations that it needs,
and before the first one everything that several sums share (`isa.reads_first`). There is no fused multiply-add, and no
prefetch.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.targets.isa import Isa
from tilewright.targets.registry import Family
from tilewright.targets.target import Target

SIMD128 = Target(
    "wasm32-unknown-unknown",
    "generic",
    ("simd128",),
    isa=Isa(vector_bits=128, registers=15, extrema_keep_nan=True, reads_first=True, single_steps=True),
)

RELAXED = replace(SIMD128, features=("relaxed-simd", "simd128"), isa=replace(SIMD128.isa, loose_extrema=True))
"""With vector instructions whose last bits the engine chooses: a multiply-add is rounded once if the processor can, and
twice elsewhere."""

FAMILY = Family("wasm", "wasm32", {"wasm32-simd128": SIMD128, "wasm32-relaxed-simd": RELAXED})

__all__ = ["FAMILY"]
