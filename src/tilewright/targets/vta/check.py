"""Checks that a program has a unique result: finds deadlocks, races between queues, and accumulators that are written
again too soon.

    for fault in faults(program, {4096: image}):
        print(fault)

Rows of GEMM and ALU are data, so that the program is run during the analysis. Each reported fault occurs in some run,
and no other faults occur in any run: see `order.py`. Races are found in the way of FastTrack (Flanagan and Freund,
2009): each row keeps each queue's last reader and writer, since all earlier ones of that queue come before these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.targets.vta.access import DRAM_ROW, Accesses, Place, Queue, accesses, queue_of, reuse
from tilewright.targets.vta.assembly import line
from tilewright.targets.vta.config import DEFAULT, Config, Memory
from tilewright.targets.vta.isa import Gemm, Instruction, encode
from tilewright.targets.vta.order import COUNTERS, Order, order_of
from tilewright.targets.vta.simulator import Machine, SimulationError

Array = np.ndarray[Any, Any]
Kind = Literal["deadlock", "race", "hazard", "tokens", "invalid", "failure"]

GEMM_DEPTH = 4
"""Operations between two writes of a row that the pipeline of the GEMM core needs: the add of one is over before the
next one reads the row. The public core is built with such a pipeline; recorded programs keep a distance of 4 where they
keep one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, with the instructions that it is about."""

    kind: Kind
    instructions: tuple[int, ...]
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(frozen=True, slots=True)
class Analysis:
    """A program's order, the rows of each instruction that can run, and the faults."""

    order: Order
    accesses: dict[int, Accesses]
    faults: tuple[Fault, ...]


def analyse(
    program: Sequence[Instruction], dram: Mapping[int, Array], config: Config = DEFAULT, depth: int = GEMM_DEPTH
) -> Analysis:
    """Analyse all legal orders of a program at once. `dram` is copied, not written. `depth` is the least distance
    between two operations of a GEMM that write one row."""
    order = order_of(program)
    results = [*_invalid(program, order), *_stuck(program, order)]
    machine, memory = Machine(config), {base: a.copy() for base, a in dram.items()}
    words = encode(list(program), config)
    rows: dict[int, Accesses] = {}
    races = _Races(program, order, config, memory)
    for k in order.run:
        i = program[k]
        uops = machine.buffers[Memory.UOP]
        try:
            machine.step(words, [k], memory)
        except SimulationError as error:
            results.append(Fault("failure", (k,), f"{error.what}: {_named(program, k)}"))
            break
        rows[k] = accesses(i, uops, config)
        races.add(k, rows[k])
        if isinstance(i, Gemm) and 0 < (distance := reuse(i, uops, config)) < depth:
            what = f"a row of accumulators is written again after {distance} operations, fewer than {depth}"
            results.append(Fault("hazard", (k,), f"{what}: {_named(program, k)}"))
    if not order.stuck and any(order.left):
        texts = [f"{n} {_pair(k)}" for k, n in enumerate(order.left) if n]
        results.append(Fault("tokens", (), f"tokens are left over: {', '.join(texts)}"))
    return Analysis(order, rows, (*results, *races.results.values()))


def faults(program: Sequence[Instruction], dram: Mapping[int, Array], config: Config = DEFAULT) -> tuple[Fault, ...]:
    """The faults of a program, in any of its legal orders."""
    return analyse(program, dram, config).faults


def _named(program: Sequence[Instruction], k: int) -> str:
    return f"instruction {k} ({line(program[k])})"


def _pair(counter: int) -> str:
    a, b = COUNTERS[counter]
    return f"{a.name.lower()} to {b.name.lower()}"


def _invalid(program: Sequence[Instruction], order: Order) -> list[Fault]:
    what = "a token to a queue that there is not"
    return [Fault("invalid", (k,), f"{what}: {_named(program, k)}") for k in order.invalid]


def _stuck(program: Sequence[Instruction], order: Order) -> list[Fault]:
    if not order.stuck:
        return []
    names = "; ".join(f"{queue_of(program[k]).name.lower()} at {_named(program, k)}" for k in order.stuck)
    return [Fault("deadlock", order.stuck, f"these queues wait for ever: {names}")]


class _Races:
    """The last reader and writer of each row, by queue, and the pairs of accesses without an order."""

    def __init__(
        self, program: Sequence[Instruction], order: Order, config: Config, memory: Mapping[int, Array]
    ) -> None:
        self.program, self.order, self.memory = program, order, memory
        self.results: dict[tuple[int, int], Fault] = {}
        buffers = (Memory.UOP, Memory.WGT, Memory.INP, Memory.ACC)
        sizes = [config.rows(m) for m in buffers] + [sum(a.nbytes // DRAM_ROW + 1 for a in memory.values())]
        # By place, reads before writes, queue and row: the place of the last one in its queue, -1 if there is none.
        self.last = [np.full((2, 3, size), -1, np.int32) for size in sizes]

    def add(self, k: int, rows: Accesses) -> None:
        clock = self.order.clocks[k]
        assert clock is not None
        queue = queue_of(self.program[k])
        for place, touched in rows.reads:
            self._compare(k, queue, clock, place, touched, (1,))
        for place, touched in rows.writes:
            self._compare(k, queue, clock, place, touched, (0, 1))

    def _compare(
        self, k: int, queue: Queue, clock: tuple[int, int, int], place: Place, rows: Array, kinds: tuple[int, ...]
    ) -> None:
        at = self._placed(place, rows)
        last = self.last[place]
        for other in Queue:
            if other is queue:
                continue
            for kind in kinds:
                wrong = last[kind, other, at] >= clock[other]
                for number in np.unique(last[kind, other, at[wrong]]).tolist():
                    first = self.order.queues[other][number]
                    pair = (min(first, k), max(first, k))
                    row = int(rows[np.argmax(wrong)])
                    self.results.setdefault(pair, Fault("race", pair, self._said(pair, place, row)))
        last[0 if kinds == (1,) else 1, queue, at] = clock[queue]

    def _placed(self, place: Place, rows: Array) -> Array:
        """Rows of DRAM numbered consecutively over all of its images, by which they index arrays; rows of buffers as
        they are."""
        if place is not Place.DRAM:
            return rows
        at, offset = np.zeros(len(rows), np.int64), 0
        for base, image in self.memory.items():
            first, count = base // DRAM_ROW, image.nbytes // DRAM_ROW + 1
            inside = (rows >= first) & (rows < first + count)
            at[inside] = rows[inside] - first + offset
            offset += count
        return at

    def _said(self, pair: tuple[int, int], place: Place, row: int) -> str:
        where = f"bytes at {row * DRAM_ROW} of DRAM" if place is Place.DRAM else f"row {row} of {place.name}"
        both = " and ".join(_named(self.program, k) for k in pair)
        return f"nothing orders two accesses to {where}, of {both}"
