"""Adds tokens to a program without any: the fewest that keep each pair of accesses to a row in program order.

    load a; gemm a; load a          ->      load a +next; gemm a -prev +prev; load a -next

For each instruction and each other queue, the last instruction there that it must wait for is known from the rows; a
pair that is ordered already, also by way of the third queue, gets no token. Between load and store there is no counter:
an instruction of the compute queue that does nothing is inserted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.support.errors import CompileError
from tilewright.targets.vta.access import Place, Queue, accesses, queue_of
from tilewright.targets.vta.config import DEFAULT, Config, Memory
from tilewright.targets.vta.isa import NO_TOKENS, Finish, Instruction, Load, encode
from tilewright.targets.vta.simulator import Machine

Array = np.ndarray[Any, Any]

_PUSH = {
    (Queue.LOAD, Queue.COMPUTE): "push_next", (Queue.COMPUTE, Queue.LOAD): "push_prev",
    (Queue.COMPUTE, Queue.STORE): "push_next", (Queue.STORE, Queue.COMPUTE): "push_prev",
}  # fmt: skip
_POP = {
    (Queue.LOAD, Queue.COMPUTE): "pop_prev", (Queue.COMPUTE, Queue.LOAD): "pop_next",
    (Queue.COMPUTE, Queue.STORE): "pop_prev", (Queue.STORE, Queue.COMPUTE): "pop_next",
}  # fmt: skip


def with_tokens(
    program: Sequence[Instruction], dram: Mapping[int, Array], config: Config = DEFAULT
) -> list[Instruction]:
    """The program with tokens, ended by a FINISH that waits for all other instructions.

    Args:
        program: instructions in an order that is right; a FINISH at most at its end.
        dram: at least the memory that micro-operations are loaded from, by address.
        config: the machine's sizes.

    Raises CompileError for a program that has tokens already.
    """
    if any(i.tokens != NO_TOKENS for i in program):
        raise CompileError("the program has tokens already", expected="none")
    machine, memory = Machine(config), dict(dram)
    waits = _Waits()
    for i in program:
        if isinstance(i, Finish):
            continue
        if isinstance(i, Load) and i.memory is Memory.UOP:
            machine.step(encode([i], config), [0], memory)
        rows = accesses(i, machine.buffers[Memory.UOP], config)
        waits.add(i, rows.reads, rows.writes)
    waits.finish()
    return waits.program


class _Waits:
    """A program to which tokens are being added, and for each queue how many instructions of the others it knows to
    have ended."""

    def __init__(self) -> None:
        self.program: list[Instruction] = []
        self.places: list[list[int]] = [[], [], []]
        self.clocks: list[list[int]] = []
        self.known = [[0, 0, 0] for _ in Queue]
        self.last: dict[tuple[Place, int, Queue], Array] = {}

    def add(self, i: Instruction, reads: Sequence[tuple[Place, Array]], writes: Sequence[tuple[Place, Array]]) -> None:
        """Append the instruction `i` to its queue, after the instructions of other queues that access the same rows:
        `reads` and `writes` list (memory, rows)."""
        queue = queue_of(i)
        needed = [0, 0, 0]
        for kinds, touched in (((1,), reads), ((0, 1), writes)):
            for place, rows in touched:
                for other in Queue:
                    if other is not queue and len(rows):
                        results = (self._last(place, kind, other, int(rows[-1]) + 1)[rows].max() for kind in kinds)
                        needed[other] = max(needed[other], *results)
        waits = self._waited(queue, needed)
        self._append(i, queue, waits)
        for kind, touched in ((0, reads), (1, writes)):
            for place, rows in touched:
                if len(rows):
                    self._last(place, kind, queue, int(rows[-1]) + 1)[rows] = len(self.places[queue])

    def finish(self) -> None:
        """Append a FINISH that waits for everything."""
        counts = [len(p) for p in self.places]
        self._append(Finish(), Queue.COMPUTE, self._waited(Queue.COMPUTE, counts))

    def _last(self, place: Place, kind: int, queue: Queue, size: int) -> Array:
        """For each of `size` rows of a memory, how many instructions of `queue` there are up to the last that read it
        (`kind` 0) or wrote it (1)."""
        key = (place, kind, queue)
        entry = self.last.get(key)
        if entry is None or len(entry) < size:
            larger = np.zeros(max(size, 2 * len(entry) if entry is not None else 4096), np.int32)
            if entry is not None:
                larger[: len(entry)] = entry
            self.last[key] = entry = larger
        return entry

    def _waited(self, queue: Queue, needed: Sequence[int]) -> list[Queue]:
        """The queues for which `queue` must still wait so that `needed` instructions of each have ended."""
        if queue is not Queue.COMPUTE:
            return self._waited_outside(queue, needed)
        missing = [q for q in Queue if q is not queue and needed[q] > self.known[queue][q]]
        return [self._wait(queue, self.places[q][needed[q] - 1], q) for q in missing]

    def _waited_outside(self, queue: Queue, needed: Sequence[int]) -> list[Queue]:
        """The queues for which a load or store must wait: only compute, or none, as tokens exist only between
        neighbours."""
        across = Queue(2 - queue)
        direct = needed[Queue.COMPUTE] if needed[Queue.COMPUTE] > self.known[queue][Queue.COMPUTE] else 0
        known = self.known[queue][across]
        if direct:
            known = max(known, self.clocks[self.places[Queue.COMPUTE][direct - 1]][across])
        if needed[across] > known:  # an instruction that does nothing waits for it, after all others of its queue
            between = [n if q is across else 0 for q, n in zip(Queue, needed, strict=True)]
            self._append(Load(Memory.UOP), Queue.COMPUTE, self._waited(Queue.COMPUTE, between))
            direct = len(self.places[Queue.COMPUTE])
        return [self._wait(queue, self.places[Queue.COMPUTE][direct - 1], Queue.COMPUTE)] if direct else []

    def _wait(self, queue: Queue, k: int, other: Queue) -> Queue:
        """Let the next instruction of `queue` wait for the earlier instruction at index `k` of the program, which runs
        in the queue `other` and pushes a token. Returns `other`."""
        i = self.program[k]
        self.program[k] = replace(i, tokens=replace(i.tokens, **{_PUSH[other, queue]: True}))
        self.known[queue] = [max(a, b) for a, b in zip(self.known[queue], self.clocks[k], strict=True)]
        return other

    def _append(self, i: Instruction, queue: Queue, waits: Sequence[Queue]) -> None:
        tokens = NO_TOKENS
        for other in waits:
            tokens = replace(tokens, **{_POP[other, queue]: True})
        self.program.append(replace(i, tokens=tokens))
        self.places[queue].append(len(self.program) - 1)
        self.known[queue][queue] = len(self.places[queue])
        self.clocks.append([*self.known[queue]])
