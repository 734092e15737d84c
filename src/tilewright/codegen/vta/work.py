"""GEMM and ALU operations before their micro-operations have addresses, and optimisations of a complete program.

    reset R; products into R; R += B; R >>= s; clip R      ->      R = max(R, B); products into R; R >>= s; clip R

Sums wrap, so that a bias may be added first. Where all that R may still hold is less than any bias, MAX puts the bias
there whatever it was: two cycles a row for the three of a reset and an addition. `floor` is the caller's promise of how
large the biases are (`plans/vta/layers.py: with_offset`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.codegen.vta.nests import Nest, nests
from tilewright.codegen.vta.transfers import pictures
from tilewright.support.classes import dataclass
from tilewright.targets.vta.config import DEFAULT, Memory
from tilewright.targets.vta.isa import Alu, AluOp, Gemm, Instruction, Load, Store

Array = np.ndarray[Any, Any]

_UNKNOWN = 1 << 40
"""An upper bound of an accumulator of which nothing is known, larger than any that it can hold."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A GEMM, or an operation of the ALU if `op` is set, whose second operand is the number `imm`, or another row if
    that is None."""

    nest: Nest
    op: AluOp | None = None
    imm: int | None = None
    reset: bool = False

    def rows(self, operand: int) -> Array:
        """The row of operand number `operand` in every operation."""
        (out, inner), uops = self.nest.steps[operand], self.nest.uops[:, operand]
        extents = self.nest.extents
        moved = np.arange(extents[0])[:, None] * out + np.arange(extents[1]) * inner
        return (moved.ravel()[:, None] + uops).ravel()

    def instruction(self, bgn: int, end: int) -> Instruction:
        """The instruction whose micro-operations are at `bgn` to `end` of their buffer."""
        dst, *others = self.nest.steps
        src, wgt = (*others, (0, 0), (0, 0))[:2]
        if self.op is None:
            return Gemm(bgn, end, *self.nest.extents, *dst, *src, *wgt, reset=self.reset)
        use = self.imm is not None
        return Alu(self.op, bgn, end, *self.nest.extents, *dst, *src, use_imm=use, imm=self.imm or 0)


Item = Work | Instruction


def started_with_biases(items: Sequence[Item], floor: int) -> list[Item]:
    """The program `items` with biases put into sums as their first values, where possible. `floor`: no bias is less."""
    written = [np.unique(item.rows(0)) if isinstance(item, Work) else np.zeros(0, np.int64) for item in items]
    resets = [k for k, item in enumerate(items) if _is_reset(item)]
    moves = dict(filter(None, (_addition_of(items, k, written) for k in resets)))
    gone = set(moves.values())
    most = np.full(DEFAULT.rows(Memory.ACC), _UNKNOWN)
    results: list[Item] = []
    for k, item in enumerate(items):
        if k in gone:
            continue
        if k in moves:
            addition = items[moves[k]]
            assert isinstance(addition, Work) and isinstance(item, Work)
            if most[item.rows(0)].max() <= floor:
                item = Work(addition.nest, AluOp.MAX)
            else:
                results.append(item)
                _bound(most, item)
                item = addition
        results.append(item)
        _bound(most, item)
    return results


PIECE = 64
"""The least number of rows of each piece into which the last results are divided: the ALU takes longer for them than a
transfer's latency."""
MAX_PIECES = 8


def with_last_in_pieces(items: Sequence[Item]) -> list[Item]:
    """The program with its last arithmetic and stores divided into pieces, so that only the last piece's store comes
    after all arithmetic. The program is unchanged if the rows are not consecutive or too few."""
    at = len(items)
    while at and isinstance(items[at - 1], Store):
        at -= 1
    stores, begin = [s for s in items[at:] if isinstance(s, Store)], at
    while begin and _is_last(items[begin - 1], items[at - 1]):
        begin -= 1
    works = [w for w in items[begin:at] if isinstance(w, Work)]
    if not works or not stores:
        return list(items)
    rows = np.sort(works[0].rows(0))
    stored = sorted(
        (s.sram_base + k, s.dram_base + k // s.x_size * s.x_stride + k % s.x_size)
        for s in stores
        for k in range(s.x_size * s.y_size)
    )
    count = min(MAX_PIECES, len(rows) // PIECE)
    if count < 2 or not np.array_equal(rows, rows[0] + np.arange(len(rows))) or [r for r, _ in stored] != rows.tolist():
        return list(items)
    dram = np.array([d for _, d in stored])
    results = list(items[:begin])
    for mine, there in zip(np.array_split(rows, count), np.array_split(dram, count), strict=True):
        results += [replace(w, nest=nest) for w in works for nest in nests([mine], depth=0)]
        for p in pictures(mine, there, np.ones(mine.shape, bool)):
            results.append(Store(Memory.OUT, p.sram_base, p.dram_base, p.y_size, p.x_size, p.x_stride))
    return results


def _is_last(item: Item, last: Item) -> bool:
    """Whether `item` is an ALU operation with a number that works on the rows of `last`."""
    if not isinstance(item, Work) or not isinstance(last, Work) or item.op is None or item.imm is None:
        return False
    return np.array_equal(np.sort(item.rows(0)), np.sort(last.rows(0)))


def _is_reset(item: Item) -> bool:
    return isinstance(item, Work) and item.reset


def _addition_of(items: Sequence[Item], start: int, written: Sequence[Array]) -> tuple[int, int] | None:
    """For the reset at position `start`: that position, and the position of the addition of rows to the sums that it
    clears. None if there is none, or if something other than products is between. `written`: the rows that each item
    writes."""
    rows = written[start]
    for k in range(start + 1, len(items)):
        item = items[k]
        if isinstance(item, Load):
            if item.memory in (Memory.ACC, Memory.ACC8):
                return None
            continue
        if not isinstance(item, Work):
            continue
        reads = item.op is not None and item.imm is None and np.isin(item.rows(1), rows).any()
        if item.op is None and not item.reset:
            continue
        if not reads and not np.isin(written[k], rows, assume_unique=True).any():
            continue
        is_addition = item.op is AluOp.ADD and item.imm is None and np.array_equal(written[k], rows)
        return (start, k) if is_addition and not np.isin(item.rows(1), rows).any() else None
    return None


def _bound(most: Array, item: Item) -> None:
    """Update `most`, an upper bound of the numbers in each accumulator row, for the effect of `item`."""
    if isinstance(item, Load) and item.memory in (Memory.ACC, Memory.ACC8):
        most[item.sram_base : item.sram_base + item.rows] = _UNKNOWN
    elif isinstance(item, Work):
        rows = item.rows(0)
        known = item.imm if item.op is AluOp.MIN and item.imm is not None else _UNKNOWN
        most[rows] = np.minimum(most[rows], known) if item.op is AluOp.MIN else known


__all__ = ["Item", "Work", "started_with_biases", "with_last_in_pieces"]
