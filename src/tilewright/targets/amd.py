"""AMD's GPUs: capabilities only (CDNA 3 whitepaper and ISA guide). Nothing compiles for them yet. Its CPUs are in
`x86.py`."""

from __future__ import annotations

from tilewright.ir.dtype import bf16, f16, f32, i8, i32
from tilewright.targets.gpu import Gpu, MatrixUnit

MFMA = (
    MatrixUnit(f32, f32, f32, 32, 32, 2),
    MatrixUnit(f16, f16, f32, 32, 32, 8),
    MatrixUnit(bf16, bf16, f32, 32, 32, 8),
    MatrixUnit(i8, i8, i32, 32, 32, 16),
)

MI300X = Gpu(
    "amdgcn-amd-amdhsa",
    "gfx942",
    lanes=64,
    block_threads=1024,
    registers=128 << 10,
    thread_registers=512,
    shared=64 << 10,
    multiprocessors=304,
    l2=4 << 20,
    line=128,
    memory_bandwidth=5300.0,
    matrix=MFMA,
)
"""MI300X; the second-level cache is that of one of its eight dies."""

__all__ = ["MFMA", "MI300X"]
