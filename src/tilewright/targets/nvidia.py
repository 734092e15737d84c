"""NVIDIA: capabilities only (H100 whitepaper, CUDA C++ programming guide, PTX ISA). Nothing compiles for them yet."""

from __future__ import annotations

from tilewright.ir.dtype import bf16, f16, f32, i8, i32
from tilewright.targets.gpu import Gpu, MatrixUnit

MMA = (
    MatrixUnit(f16, f16, f32, 16, 8, 16),
    MatrixUnit(bf16, bf16, f32, 16, 8, 16),
    MatrixUnit(i8, i8, i32, 16, 8, 32),
)
"""`mma.sync` from Ampere on; Hopper's `wgmma` takes four warps together and is not listed."""

H100 = Gpu(
    "nvptx64-nvidia-cuda",
    "sm_90",
    lanes=32,
    block_threads=1024,
    registers=64 << 10,
    thread_registers=255,
    shared=227 << 10,
    multiprocessors=132,
    l2=50 << 20,
    line=128,
    memory_bandwidth=3350.0,
    matrix=MMA,
)
"""H100 SXM5, 80 GB."""

__all__ = ["H100", "MMA"]
