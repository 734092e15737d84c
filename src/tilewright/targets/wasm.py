"""WebAssembly, 32 bits, with vectors of 128 bits, run in Node as bundles (`bundle/web.py`). Nothing was measured.

What the engine makes of it depends on the machine below: registers are counted as V8 has them on x86, 16 of which it
keeps one. Its optimising compiler orders a basic block by the results: each sum with all that leads to it, and before
the first one everything that several of them share (`isa.reads_first`). There is no multiply-add with one rounding, and
no prefetch.
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
"""With vector instructions whose last bits are the engine's choice: multiply-adds are rounded once where the machine
below can, and twice elsewhere."""

FAMILY = Family("wasm", "wasm32", {"wasm32-simd128": SIMD128, "wasm32-relaxed-simd": RELAXED})

__all__ = ["FAMILY"]
