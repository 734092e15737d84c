"""What is known of GPUs: a record of capabilities. Nothing compiles for one yet, so none is a `Target`."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """A matrix instruction of a group of threads: (m x k) times (k x n), sums in `sums`."""

    a: DType
    b: DType
    sums: DType
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, by its maker's figures.

    Args:
        triple, cpu: LLVM's names.
        lanes: threads that execute an instruction together (a warp, a wavefront).
        block_threads: threads that share memory, at most.
        registers: of 32 bits, of a multiprocessor.
        thread_registers: of them, of a thread, at most.
        shared: bytes of memory of a multiprocessor that the threads of a block share, at most.
        multiprocessors: how many there are.
        l2: bytes of the second level of cache.
        line: bytes that a request to memory moves.
        memory_bandwidth: GB/s of the GPU's memory.
        matrix: matrix instructions of a group of `lanes` threads.
    """

    triple: str
    cpu: str
    lanes: int
    block_threads: int
    registers: int
    thread_registers: int
    shared: int
    multiprocessors: int
    l2: int
    line: int
    memory_bandwidth: float
    matrix: tuple[MatrixUnit, ...] = ()


__all__ = ["Gpu", "MatrixUnit"]
