"""Micro-operations: lists in DRAM, loaded into their buffer when an instruction first needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.codegen.vta.work import Item, Work
from tilewright.targets.vta.config import DEFAULT, Memory
from tilewright.targets.vta.isa import Instruction, Load, pack, uop_fields

Array = np.ndarray[Any, Any]


class Uops:
    """Builds the program and the lists of micro-operations that its instructions use. A load of a list stands before
    the first instruction that needs it.

    A list is in DRAM once. If all lists fit into the buffer, they are loaded at once at the beginning; else each stays
    there until another one takes its place: lists follow each other, from the start again when the end is reached.
    GEMM, ALU and these loads are of one queue, so that no token is needed.
    """

    def __init__(self, address: int) -> None:
        self.address = address
        self.program: list[Instruction] = []
        self._lists: dict[bytes, int] = {}
        self._parts: list[bytes] = []
        self._resident: dict[bytes, int] = {}
        self._next = 0

    def program_of(self, items: Sequence[Item]) -> None:
        """Append the instructions of `items` to the program."""
        contents = dict.fromkeys(_packed(item.nest.uops) for item in items if isinstance(item, Work))
        count = sum(map(len, contents)) // 4
        if 0 < count <= DEFAULT.rows(Memory.UOP):
            for content in contents:
                self._resident[content] = self._lists[content] = sum(map(len, self._parts)) // 4
                self._parts.append(content)
            self.program.append(Load(Memory.UOP, 0, self.address // 4, 1, count, count))
        for item in items:
            self.program.append(item.instruction(*self.place(item.nest.uops)) if isinstance(item, Work) else item)

    def place(self, rows: Array) -> tuple[int, int]:
        """The begin and end in the buffer of the micro-operations with these rows (int64[n, operands]), which are
        loaded if they are not there."""
        content, count = _packed(rows), len(rows)
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
        """All lists of micro-operations as one array of bytes, uint8[n], as DRAM holds them."""
        return np.frombuffer(b"".join(self._parts) or bytes(4), np.uint8).copy()


def _packed(rows: Array) -> bytes:
    """The bytes of micro-operations whose operands have these rows."""
    columns = {name: np.zeros(len(rows), np.int64) for name, _ in uop_fields()}
    for k, name in enumerate(("dst", "src", "wgt")[: rows.shape[1]]):
        columns[name] = rows[:, k]
    return pack(columns, uop_fields(), 4).tobytes()
