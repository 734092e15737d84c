"""A second simulator of VTA, one row after the other in Python and NumPy, written apart from the first: the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.targets.vta.config import Memory
from tilewright.targets.vta.isa import Alu, AluOp, Gemm, Instruction, Load, Store

BYTES = {Memory.UOP: 4, Memory.WGT: 256, Memory.INP: 16, Memory.ACC: 64, Memory.ACC8: 16}


class Reference:
    """The default configuration, with DRAM as one array from address `base` on."""

    def __init__(self, dram: np.ndarray[Any, Any], base: int = 4096) -> None:
        self.dram, self.base = dram, base
        self.uop = np.zeros((8192, 3), np.int64)
        self.buffers: dict[Memory, Any] = {
            Memory.WGT: np.zeros((1024, 16, 16), np.int8),
            Memory.INP: np.zeros((2048, 16), np.int8),
            Memory.ACC: np.zeros((2048, 16), np.int32),
        }
        names = "inp_load_nbytes wgt_load_nbytes acc_load_nbytes uop_load_nbytes out_store_nbytes"
        self.counters = dict.fromkeys([*names.split(), "gemm_counter", "alu_counter"], 0)

    def run(self, program: Sequence[Instruction]) -> None:
        """All instructions, one after the other."""
        for instruction in program:
            match instruction:
                case Load():
                    self.load(instruction)
                case Store():
                    self.store(instruction)
                case Gemm():
                    self.gemm(instruction)
                case Alu():
                    self.alu(instruction)

    def row(self, memory: Memory, number: int) -> np.ndarray[Any, Any]:
        at = number * BYTES[memory] - self.base
        assert 0 <= at <= len(self.dram) - BYTES[memory]
        return self.dram[at : at + BYTES[memory]]

    def put(self, memory: Memory, place: int, row: np.ndarray[Any, Any]) -> None:
        match memory:
            case Memory.UOP:
                word = int(row.view("<u4")[0])
                self.uop[place] = (word & 2047, word >> 11 & 2047, word >> 22)
            case Memory.WGT:
                self.buffers[memory][place] = row.view(np.int8).reshape(16, 16)
            case Memory.INP:
                self.buffers[memory][place] = row.view(np.int8)
            case Memory.ACC:
                self.buffers[memory][place] = row.view("<i4")
            case Memory.ACC8:
                self.buffers[Memory.ACC][place] = row.view(np.int8).astype(np.int32)

    def load(self, i: Load) -> None:
        if i.x_size == 0:
            return
        place = i.sram_base
        for y in range(-i.y_pad_0, i.y_size + i.y_pad_1):
            for x in range(-i.x_pad_0, i.x_size + i.x_pad_1):
                inside = 0 <= y < i.y_size and 0 <= x < i.x_size
                zero = np.zeros(BYTES[i.memory], np.uint8)
                self.put(i.memory, place, self.row(i.memory, i.dram_base + y * i.x_stride + x) if inside else zero)
                place += 1
        name = {Memory.INP: "inp", Memory.WGT: "wgt", Memory.UOP: "uop"}.get(i.memory, "acc")
        size = 64 if i.memory is Memory.ACC8 else BYTES[i.memory]
        self.counters[f"{name}_load_nbytes"] += i.x_size * i.y_size * size

    def store(self, i: Store) -> None:
        for y in range(i.y_size):
            for x in range(i.x_size):
                value = self.buffers[Memory.ACC][i.sram_base + y * i.x_size + x]
                self.row(Memory.INP, i.dram_base + y * i.x_stride + x)[:] = (value & 255).astype(np.uint8)
        self.counters["out_store_nbytes"] += i.y_size * i.x_size * 16

    def points(self, i: Gemm | Alu) -> list[tuple[int, int, int]]:
        wgt = (i.wgt_out, i.wgt_in) if isinstance(i, Gemm) else (0, 0)
        return [
            (d + o * i.dst_out + n * i.dst_in, s + o * i.src_out + n * i.src_in, w + o * wgt[0] + n * wgt[1])
            for o in range(i.iter_out)
            for n in range(i.iter_in)
            for d, s, w in self.uop[i.uop_bgn : i.uop_end].tolist()
        ]

    def gemm(self, i: Gemm) -> None:
        acc, inp, wgt = (self.buffers[m] for m in (Memory.ACC, Memory.INP, Memory.WGT))
        for d, s, w in self.points(i):
            if i.reset:
                acc[d] = 0
            else:
                acc[d] += wgt[w].astype(np.int32) @ inp[s].astype(np.int32)
                self.counters["gemm_counter"] += 1

    def alu(self, i: Alu) -> None:
        acc = self.buffers[Memory.ACC]
        for d, s, _ in self.points(i):
            x, y = acc[d].astype(np.int64), np.int64(i.imm) if i.use_imm else acc[s].astype(np.int64)
            y = np.broadcast_to(y, x.shape)
            match i.op:
                case AluOp.MIN:
                    z = np.minimum(x, y)
                case AluOp.MAX:
                    z = np.maximum(x, y)
                case AluOp.ADD:
                    z = x + y
                case AluOp.MUL:
                    z = np.array([a * b & 0xFFFFFFFF for a, b in zip(x.tolist(), y.tolist(), strict=True)])
                case AluOp.SHR:
                    z = np.where(y >= 0, x >> np.maximum(y, 0), x << np.maximum(-y, 0))
            acc[d] = (z & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
            self.counters["alu_counter"] += 1
