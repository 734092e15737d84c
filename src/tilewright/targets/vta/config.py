"""The configuration of a VTA: sizes of blocks and buffers, and the widths of fields that follow from them."""

from __future__ import annotations

from enum import IntEnum

from tilewright.support.classes import dataclass
from tilewright.support.errors import TargetError


class Memory(IntEnum):
    """The memories that LOAD and STORE refer to, by their number in the instruction word."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC8 = 5


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a VTA, as logarithms to base 2; the defaults are those of the public `fsim_sample` configuration.

    Args:
        log_batch: rows of activations in one operation of the GEMM core.
        log_block: input channels, and output channels, of one operation.
        log_uop_bytes, log_inp_bytes, log_wgt_bytes, log_acc_bytes: sizes of the buffers.

    Activations, weights and results are int8, accumulators int32. Raises TargetError for sizes that no word can hold.
    """

    log_batch: int = 0
    log_block: int = 4
    log_uop_bytes: int = 15
    log_inp_bytes: int = 15
    log_wgt_bytes: int = 18
    log_acc_bytes: int = 17

    def __post_init__(self) -> None:
        widths = (self.uop_bits, self.acc_bits, self.inp_bits, self.wgt_bits)
        fits = min(widths) >= 1 and self.acc_bits + self.inp_bits + self.wgt_bits <= 32 and self.uop_bits <= 13
        if self.log_batch < 0 or self.log_block < 0 or not fits:
            got = f"{self.uop_bits}, {self.acc_bits}, {self.inp_bits} and {self.wgt_bits} bits for rows of UOP, ACC, "
            got += "INP and WGT"
            raise TargetError("the rows of the buffers do not fit into the words", where="VTA configuration", got=got)

    @property
    def batch(self) -> int:
        return 1 << self.log_batch

    @property
    def block(self) -> int:
        return 1 << self.log_block

    @property
    def uop_bits(self) -> int:
        """Bits that number a row of the buffer of micro-operations."""
        return self.log_uop_bytes - 2

    @property
    def inp_bits(self) -> int:
        return self.log_inp_bytes - self.log_batch - self.log_block

    @property
    def wgt_bits(self) -> int:
        return self.log_wgt_bytes - 2 * self.log_block

    @property
    def acc_bits(self) -> int:
        return self.log_acc_bytes - 2 - self.log_batch - self.log_block

    @property
    def lanes(self) -> int:
        """Values in a row of accumulators."""
        return self.batch * self.block

    def rows(self, memory: Memory) -> int:
        """Rows of a memory's buffer; OUT and ACC8 are the accumulators."""
        match memory:
            case Memory.UOP:
                return 1 << self.uop_bits
            case Memory.WGT:
                return 1 << self.wgt_bits
            case Memory.INP:
                return 1 << self.inp_bits
            case Memory.ACC | Memory.OUT | Memory.ACC8:
                return 1 << self.acc_bits

    def dram_bytes(self, memory: Memory) -> int:
        """Bytes of one row in DRAM: the unit of `dram_base` and `x_stride`."""
        match memory:
            case Memory.UOP:
                return 4
            case Memory.WGT:
                return self.block * self.block
            case Memory.INP:
                return self.batch * self.block
            case Memory.ACC:
                return 4 * self.lanes
            case Memory.OUT | Memory.ACC8:
                return self.lanes

    def buffer_bytes(self, memory: Memory) -> int:
        """Bytes of one row in the accelerator's buffer. Rows of ACC8 have one byte for each lane in DRAM and four in
        the buffer."""
        return 4 * self.lanes if memory is Memory.ACC8 else self.dram_bytes(memory)


DEFAULT = Config()
"""Batch 1, blocks of 16 x 16: the target `vta-1x16x16`."""
