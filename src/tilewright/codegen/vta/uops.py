"""Micro-operations: lists in DRAM, loaded into their buffer when an instruction first needs them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.targets.vta.config import DEFAULT, Memory
from tilewright.targets.vta.isa import Instruction, Load, pack, uop_fields

Array = np.ndarray[Any, Any]


class Uops:
    """The lists of a program; what loads them goes to the program.

    A list stands once in DRAM. In the buffer it stays until another one takes its place: lists follow each other there,
    from the start again when the end is reached. GEMM, ALU and these loads are of one queue, so that no token is
    needed.
    """

    def __init__(self, address: int, program: list[Instruction]) -> None:
        self.address = address
        self.program = program
        self._lists: dict[bytes, int] = {}
        self._parts: list[bytes] = []
        self._resident: dict[bytes, int] = {}
        self._next = 0

    def place(self, rows: Array) -> tuple[int, int]:
        """Where the micro-operations with these rows (int64[n, operands]) are in the buffer: begin and end."""
        columns = {name: np.zeros(len(rows), np.int64) for name, _ in uop_fields()}
        for k, name in enumerate(("dst", "src", "wgt")[: rows.shape[1]]):
            columns[name] = rows[:, k]
        content = pack(columns, uop_fields(), 4).tobytes()
        count = len(rows)
        if content not in self._resident:
            if self._next + count > DEFAULT.rows(Memory.UOP):
                self._next = 0
                self._resident.clear()
            at = self._lists.get(content)
            if at is None:
                at = self._lists[content] = sum(map(len, self._parts)) // 4
                self._parts.append(content)
            self.program.append(Load(Memory.UOP, self._next, self.address // 4 + at, 1, count, count))
            self._resident[content] = self._next
            self._next += count
        bgn = self._resident[content]
        return bgn, bgn + count

    def words(self) -> Array:
        """All lists as they lie in DRAM, uint8[n]."""
        return np.frombuffer(b"".join(self._parts) or bytes(4), np.uint8).copy()
