"""The description of GPUs: their capabilities, and how many blocks of a kernel fit on a multiprocessor."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.support.classes import dataclass

COPY_BYTES = 16
"""The bytes that a thread moves by one instruction."""


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
        thread_registers: the most registers of a thread.
        shared: bytes of memory of a multiprocessor that the threads of a block share, at most.
        multiprocessors: how many there are.
        l2: bytes of the second level of cache.
        line: bytes that a request to memory moves.
        memory_bandwidth: GB/s of the GPU's memory.
        matrix: matrix instructions of a group of `lanes` threads.
        wide: matrix instructions of four such groups together, with factors in shared memory and at most n columns.
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
    wide: tuple[MatrixUnit, ...] = ()

    def blocks(self, threads: int, registers: int, shared: int) -> int:
        """How many blocks a multiprocessor holds at once; 0 if not even one.

        Args:
            threads: of a block.
            registers: of a thread; a warp allocates them in units of 256.
            shared: bytes of a block; the driver takes 1 KB of its own for each.
        """
        warps = -(-threads // self.lanes)
        of_warp = -(-registers * self.lanes // 256) * 256
        if not 0 < threads <= self.block_threads or registers > self.thread_registers or shared > self.shared:
            return 0
        limits = (
            RESIDENT_THREADS // (warps * self.lanes),
            self.registers // max(of_warp * warps, 1),
            (self.shared + 1024) // (shared + 1024),
            RESIDENT_BLOCKS,
        )
        return min(limits)


RESIDENT_THREADS = 2048
"""The most threads resident on a multiprocessor (compute capability 8.0 and 9.0)."""
RESIDENT_BLOCKS = 32
"""The most blocks resident on a multiprocessor."""

__all__ = ["Gpu", "MatrixUnit"]
