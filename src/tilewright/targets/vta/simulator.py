"""The functional simulator: runs a program's words on a memory image, and counts bytes and operations.

    machine = Machine()
    image = machine.run(words, {4096: image})        # bytes at DRAM addresses, written in place

The work of each instruction is native code, built once a process from `native.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tilewright.native.link import Library, compile_text
from tilewright.support.errors import CallError, Error
from tilewright.targets.vta.config import DEFAULT, Config, Memory
from tilewright.targets.vta.isa import WORD, Opcode, fields, opcodes, unpack
from tilewright.targets.vta.native import COUNTERS, FAULTS, simulator_text

Array = np.ndarray[Any, Any]

MAX_WORK = 1 << 31
"""The most operations and rows of a program that is run, which take some minutes."""


class SimulationError(Error):
    """A program that the machine cannot run to its end."""


@cache
def _library(config: Config) -> tuple[Library, dict[str, Any]]:
    names = {"tw_vta_run": "pqpq", "tw_vta_execute": "pp"}
    kinds = {"p": ctypes.c_void_p, "q": ctypes.c_int64}
    library = Library({"vta": compile_text(simulator_text(config))}, list(names))
    built = {n: ctypes.CFUNCTYPE(ctypes.c_int64, *(kinds[k] for k in s))(library[n]) for n, s in names.items()}
    return library, built


class Machine:
    """One VTA with the contents of its buffers (initially zeros), its tokens and its counters."""

    def __init__(self, config: Config = DEFAULT) -> None:
        self.config = config
        self.buffers = {m: _buffer(config, m) for m in (Memory.UOP, Memory.WGT, Memory.INP, Memory.ACC)}
        self.counts: Array = np.zeros(len(COUNTERS), np.uint64)
        self.tokens: Array = np.zeros(4, np.int64)

    @property
    def counters(self) -> dict[str, int]:
        """Bytes and operations since the machine was built, by the profiler's names."""
        return dict(zip(COUNTERS, self.counts.tolist(), strict=True))

    def run(self, words: Array, dram: Mapping[int, Array], first: int = 0) -> None:
        """Run a program (uint8[n, 16]) to its end, the queue `first` before the others.

        Args:
            words: the instructions.
            dram: memory by the address of its first byte; contiguous arrays, written in place.
            first: 0 load, 1 compute, 2 store.

        Raises SimulationError, which names the instruction, where one reaches beyond a memory or waits for ever.
        """
        words = _checked(words, self.config)
        table, selection = self._table(dram)
        function = _library(self.config)[1]["tw_vta_run"]
        self._raise(function(words.ctypes.data, len(words), table.ctypes.data, first))
        del selection

    def step(self, words: Array, order: Sequence[int], dram: Mapping[int, Array]) -> None:
        """Run the instructions of `words`, uint8[n, 16], whose numbers are in `order`, ignoring the tokens by which
        they would wait for each other. `dram`: memory by the address of its first byte. Raises SimulationError where an
        instruction reaches beyond a memory."""
        words = _checked(words, self.config)
        table, selection = self._table(dram)
        function = _library(self.config)[1]["tw_vta_execute"]
        for k in order:
            status = function(words.ctypes.data + k * WORD, table.ctypes.data)
            self._raise(status and status | k << 8)
        del selection

    def _table(self, dram: Mapping[int, Array]) -> tuple[Array, list[Array]]:
        """(the simulator's table of addresses, arrays that must live while it is used)."""
        for base, memory in dram.items():
            if base < 0 or not memory.flags.c_contiguous or not memory.flags.writeable:
                raise CallError("no DRAM", where=f"address {base}", expected="contiguous arrays that may be written")
        rows = [(base, a.nbytes, a.ctypes.data) for base, a in dram.items()]
        segments = np.array(rows, np.int64).reshape(-1, 3)
        b = self.buffers
        parts = (b[Memory.UOP], b[Memory.WGT], b[Memory.INP], b[Memory.ACC], segments)
        values = [p.ctypes.data for p in parts] + [len(rows), self.counts.ctypes.data, self.tokens.ctypes.data]
        return np.array(values, np.int64), [segments]

    def _raise(self, status: int) -> None:
        if status:
            raise SimulationError(FAULTS[status & 255], where=f"instruction {status >> 8}")


def _buffer(config: Config, memory: Memory) -> Array:
    shapes: dict[Memory, tuple[tuple[int, ...], Any]] = {
        Memory.UOP: ((), np.uint32),
        Memory.WGT: ((config.block, config.block), np.int8),
        Memory.INP: ((config.batch, config.block), np.int8),
    }
    shape, kind = shapes.get(memory, ((config.batch, config.block), np.int32))
    return np.zeros((config.rows(memory), *shape), kind)


def _checked(words: Array, config: Config) -> Array:
    """The words of a program as a contiguous array, which native code reads. Raises CallError if they are invalid, or
    need more than `MAX_WORK` operations."""
    if words.dtype != np.uint8 or words.ndim != 2 or words.shape[1] != WORD:
        raise CallError("no program", expected="uint8[n, 16]", got=f"{words.dtype}{list(words.shape)}")
    total = work(words, config)
    if total > MAX_WORK:
        raise SimulationError("the program has more operations than are simulated", expected=MAX_WORK, got=total)
    return np.ascontiguousarray(words)


def work(words: Array, config: Config = DEFAULT) -> int:
    """The number of operations of GEMM and ALU plus rows of LOAD and STORE in the program with the encoded instructions
    `words`."""
    codes = opcodes(words)
    total = 0
    for code in (Opcode.GEMM, Opcode.ALU, Opcode.LOAD, Opcode.STORE):
        v = unpack(words[codes == code], fields(code, config))
        if code in (Opcode.GEMM, Opcode.ALU):
            each = v["iter_out"] * v["iter_in"] * np.maximum(v["uop_end"] - v["uop_bgn"], 0)
        else:
            each = v["y_size"] * v["x_size"]
        total += int(each.astype(np.float64).sum())  # which does not wrap
    return total
