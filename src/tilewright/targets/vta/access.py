"""The rows of the memories that an instruction reads and writes, and how soon a GEMM writes a row twice.

GEMM and ALU take rows from micro-operations, which are data: `Rows.of` is asked with the content of their buffer.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.targets.vta.config import DEFAULT, Config, Memory
from tilewright.targets.vta.isa import Alu, Gemm, Instruction, Load, Store, Uop, unpack, uop_fields

Array = np.ndarray[Any, Any]


class Queue(IntEnum):
    LOAD = 0
    COMPUTE = 1
    STORE = 2


class Place(IntEnum):
    """A memory that has rows: a buffer, or DRAM, whose rows here are 4 bytes."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    DRAM = 4


DRAM_ROW = 4
"""Bytes of a row of DRAM; the rows of all memories are multiples of it."""

_PLACES = {
    Memory.UOP: Place.UOP, Memory.WGT: Place.WGT, Memory.INP: Place.INP, Memory.ACC: Place.ACC,
    Memory.OUT: Place.ACC, Memory.ACC8: Place.ACC,
}  # fmt: skip

NONE: Array = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Accesses:
    """The rows of each memory that an instruction reads and writes, sorted and each once."""

    reads: tuple[tuple[Place, Array], ...] = ()
    writes: tuple[tuple[Place, Array], ...] = ()


def queue_of(instruction: Instruction) -> Queue:
    """The queue that an instruction runs in."""
    if isinstance(instruction, Store):
        return Queue.STORE
    loads = isinstance(instruction, Load) and instruction.memory in (Memory.INP, Memory.WGT)
    return Queue.LOAD if loads else Queue.COMPUTE


def accesses(instruction: Instruction, uops: Array, config: Config = DEFAULT) -> Accesses:
    """The rows that an instruction reads and writes; `uops` is the content of the buffer of micro-operations,
    uint32[n]."""
    match instruction:
        case Load() if instruction.rows:
            written = np.arange(instruction.sram_base, instruction.sram_base + instruction.rows)
            read = _dram(instruction, config)
            return Accesses(((Place.DRAM, read),), ((_PLACES[instruction.memory], written),))
        case Store():
            read = np.arange(instruction.sram_base, instruction.sram_base + instruction.x_size * instruction.y_size)
            return Accesses(((Place.ACC, read),), ((Place.DRAM, _dram(instruction, config)),))
        case Gemm() | Alu() if instruction.operations:
            return _computed(instruction, uops, config)
    return Accesses()


def _dram(i: Load | Store, config: Config) -> Array:
    size = config.dram_bytes(i.memory) // DRAM_ROW
    lines = i.dram_base + np.arange(i.y_size)[:, None] * i.x_stride + np.arange(i.x_size)
    rows: Array = np.unique(lines)[:, None] * size + np.arange(size)
    return rows.ravel()


def points(i: Gemm | Alu, uops: Array, config: Config = DEFAULT) -> Uop:
    """The rows that each operation of the instruction `i`, with the micro-operations `uops`, accesses, in order: a
    micro-operation whose fields are arrays int64[operations]."""
    used = uops[i.uop_bgn : i.uop_end].astype("<u4")
    columns = unpack(used.view(np.uint8).reshape(-1, 4), uop_fields(config))
    outer, inner = np.arange(i.iter_out)[:, None, None], np.arange(i.iter_in)[:, None]

    def rows(name: str) -> Array:
        steps = (getattr(i, f"{name}_out", 0), getattr(i, f"{name}_in", 0))
        result: Array = columns[name] + outer * steps[0] + inner * steps[1]
        return result.ravel()

    return Uop(rows("dst"), rows("src"), rows("wgt"))  # type: ignore[arg-type]


def _computed(i: Gemm | Alu, uops: Array, config: Config) -> Accesses:
    at = points(i, uops, config)
    used = np.arange(i.uop_bgn, i.uop_end)
    dst, src, wgt = (np.unique(np.asarray(rows)) for rows in (at.dst, at.src, at.wgt))
    reads: list[tuple[Place, Array]] = [(Place.UOP, used)]
    if isinstance(i, Gemm) and i.reset:
        return Accesses(tuple(reads), ((Place.ACC, dst),))
    if isinstance(i, Gemm):
        reads += [(Place.INP, src), (Place.WGT, wgt), (Place.ACC, dst)]
    else:
        reads += [(Place.ACC, dst if i.use_imm else np.union1d(dst, src))]
    return Accesses(tuple(reads), ((Place.ACC, dst),))


def reuse(i: Gemm, uops: Array, config: Config = DEFAULT) -> int:
    """The least distance between two operations of the GEMM `i`, with the micro-operations `uops`, that write the same
    row: 1 if they are consecutive, 0 if no row is written twice."""
    if i.reset or i.operations < 2:
        return 0
    dst = np.asarray(points(i, uops, config).dst)
    order = np.argsort(dst, kind="stable")
    repeated = dst[order][1:] == dst[order][:-1]
    return int((order[1:] - order[:-1])[repeated].min()) if repeated.any() else 0
