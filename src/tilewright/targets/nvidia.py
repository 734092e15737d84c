"""NVIDIA: compute capability 8.0 and 9.0 (A100 and H100 whitepapers, CUDA C++ programming guide, PTX ISA).

Code for them is emitted as PTX, which the driver compiles; costs were not fitted on one.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.dtype import bf16, f16, f32, i8, i32
from tilewright.targets.gpu import Gpu, MatrixUnit
from tilewright.targets.isa import Isa
from tilewright.targets.memory import Caches, Ceilings
from tilewright.targets.registry import Family
from tilewright.targets.target import Target

TRIPLE = "nvptx64-nvidia-cuda"

MMA = (
    MatrixUnit(f32, f32, f32, 16, 8, 8),
    MatrixUnit(f16, f16, f32, 16, 8, 16),
    MatrixUnit(bf16, bf16, f32, 16, 8, 16),
    MatrixUnit(i8, i8, i32, 16, 8, 32),
)
"""`mma.sync`, from Ampere on; of f32 factors it uses the first 10 bits of the mantissa (TF32)."""

WGMMA = (
    MatrixUnit(f32, f32, f32, 64, 256, 8),
    MatrixUnit(f16, f16, f32, 64, 256, 16),
    MatrixUnit(bf16, bf16, f32, 64, 256, 16),
    MatrixUnit(i8, i8, i32, 64, 256, 32),
)
"""Hopper's `wgmma`. PTX that uses it is for this architecture only ("sm_90a"), and does not run on later ones."""

A100 = Gpu(
    TRIPLE,
    "sm_80",
    lanes=32,
    block_threads=1024,
    registers=64 << 10,
    thread_registers=255,
    shared=163 << 10,
    multiprocessors=108,
    l2=40 << 20,
    line=128,
    memory_bandwidth=1555.0,
    matrix=MMA,
)
"""A100 SXM4, 40 GB."""

H100 = Gpu(
    TRIPLE,
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

H100A = replace(H100, cpu="sm_90a", wide=WGMMA)
"""An H100, including the instructions that later GPUs do not run."""

PTX = "ptx80"
"""The version of PTX that is emitted, which drivers from 525 (CUDA 12.0) on accept."""


def _target(gpu: Gpu, frequency: float) -> Target:
    """A GPU as code generation asks for it: a thread moves 16 bytes at once, multiplies and adds with one rounding, and
    minima and maxima keep NaN. A core is a multiprocessor: 128 multiply-adds and 128 bytes of shared memory a cycle; of
    the second level it gets 48 (microbenchmarks of others, "Dissecting the NVIDIA Hopper architecture", 2024), of
    memory its share.

    Args:
        frequency: the clock, in GHz, that the whitepaper's peak is stated for.
    """
    isa = Isa(vector_bits=128, registers=gpu.thread_registers, fma=True, extrema_keep_nan=True)
    caches = Caches(l1=gpu.shared, l2=gpu.l2, l3=gpu.l2, line=gpu.line)
    ceilings = Ceilings(
        fma_per_cycle=32.0,
        l1_bandwidth=128.0,
        l2_bandwidth=48.0,
        l3_bandwidth=48.0,
        memory_bandwidth=gpu.memory_bandwidth / frequency / gpu.multiprocessors,
        frequency=frequency,
    )
    return Target(
        gpu.triple, gpu.cpu, (PTX,), isa=isa, caches=caches, ceilings=ceilings, cores=gpu.multiprocessors, gpu=gpu
    )


FAMILY = Family(
    "nvidia",
    "nvptx64",
    {
        "nvidia-sm_80": _target(A100, 1.41),
        "nvidia-sm_90": _target(H100, 1.755),
        "nvidia-sm_90a": _target(H100A, 1.755),
    },
)

__all__ = ["A100", "FAMILY", "H100", "H100A", "MMA", "WGMMA"]
