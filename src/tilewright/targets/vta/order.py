"""The partial order of instructions that the tokens of a program define.

Each counter of tokens is filled by one queue and emptied by one, so that the n-th pop always takes the n-th push. So
the order does not depend on timing: it is one partial order, composed of the queues' own orders and each pair of a push
and its pop (as in a marked graph; Commoner et al., 1971). It has a cycle, or a pop without a push, exactly if every run
stops before its end; and two instructions may run in either order exactly if they are unordered in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.support.classes import dataclass
from tilewright.targets.vta.access import Queue, queue_of
from tilewright.targets.vta.isa import Instruction

COUNTERS: tuple[tuple[Queue, Queue], ...] = (
    (Queue.LOAD, Queue.COMPUTE),
    (Queue.COMPUTE, Queue.LOAD),
    (Queue.COMPUTE, Queue.STORE),
    (Queue.STORE, Queue.COMPUTE),
)
"""The queues that fill and empty each of the four counters."""

Clock = tuple[int, int, int]
"""A number of instructions for each queue."""


@dataclass(frozen=True, slots=True)
class Order:
    """The partial order of a program.

    Args:
        queues: the numbers of each queue's instructions.
        waits: for each instruction, those of other queues whose tokens it pops.
        clocks: for each instruction that can run, how many of each queue must have run before it; its own queue's count
            is its position there.
        run: all instructions that can run, in one of their possible orders.
        stuck: the first instruction of each queue that never runs.
        invalid: instructions with tokens for a queue that does not exist.
        left: tokens that remain in each counter of `COUNTERS`.
    """

    queues: tuple[tuple[int, ...], ...]
    waits: tuple[tuple[int, ...], ...]
    clocks: tuple[Clock | None, ...]
    run: tuple[int, ...]
    stuck: tuple[int, ...]
    invalid: tuple[int, ...]
    left: tuple[int, ...]


def pops(instruction: Instruction) -> list[int]:
    """The counters from which an instruction pops a token."""
    t, queue = instruction.tokens, queue_of(instruction)
    results = [(t.pop_prev, queue - 1), (t.pop_next, queue + 1)]
    return [k for k, (a, b) in enumerate(COUNTERS) if b == queue and any(flag and side == a for flag, side in results)]


def pushes(instruction: Instruction) -> list[int]:
    """The counters to which an instruction pushes a token."""
    t, queue = instruction.tokens, queue_of(instruction)
    results = [(t.push_prev, queue - 1), (t.push_next, queue + 1)]
    return [k for k, (a, b) in enumerate(COUNTERS) if a == queue and any(flag and side == b for flag, side in results)]


def is_valid(instruction: Instruction) -> bool:
    """Whether all tokens of an instruction are for existing queues."""
    t, queue = instruction.tokens, queue_of(instruction)
    if queue is Queue.LOAD:
        return not (t.pop_prev or t.push_prev)
    return not (queue is Queue.STORE and (t.pop_next or t.push_next))


def order_of(program: Sequence[Instruction]) -> Order:
    """The partial order of a program."""
    queues: tuple[list[int], ...] = ([], [], [])
    pushed: tuple[list[int], ...] = ([], [], [], [])
    waits: list[list[int | None]] = [[] for _ in program]
    popped = [0] * 4
    for k, i in enumerate(program):
        queues[queue_of(i)].append(k)
        for counter in pushes(i):
            pushed[counter].append(k)
    for k, i in enumerate(program):
        for counter in pops(i):
            n = popped[counter]
            popped[counter] += 1
            waits[k].append(pushed[counter][n] if n < len(pushed[counter]) else None)
    clocks, run = _clocks(queues, waits)
    done = set(run)
    stuck = [next((k for k in queue if k not in done), None) for queue in queues]
    left = [len(p) for p in pushed]
    for k in run:
        for counter in pops(program[k]):
            left[counter] -= 1
    for k in set(range(len(program))) - done:
        for counter in pushes(program[k]):
            left[counter] -= 1
    return Order(
        tuple(tuple(q) for q in queues),
        tuple(tuple(w for w in each if w is not None) for each in waits),
        tuple(clocks),
        tuple(run),
        tuple(k for k in stuck if k is not None),
        tuple(k for k, i in enumerate(program) if not is_valid(i)),
        tuple(left),
    )


def _clocks(
    queues: Sequence[Sequence[int]], waits: Sequence[Sequence[int | None]]
) -> tuple[list[Clock | None], list[int]]:
    """(vector clock of each instruction that can run, None for others; an order in which they can run). `queues` has
    the instructions of each queue; `waits` has, for each instruction, the instructions that must run before it, None if
    one never comes."""
    clocks: list[Clock | None] = [None] * len(waits)
    places = [0, 0, 0]
    owner = {k: q for q, queue in enumerate(queues) for k in queue}
    run: list[int] = []
    moved = True
    while moved:
        moved = False
        for q, queue in enumerate(queues):
            while places[q] < len(queue):
                k = queue[places[q]]
                if any(w is None or clocks[w] is None for w in waits[k]):
                    break
                clock = list(clocks[queue[places[q] - 1]] or (0, 0, 0)) if places[q] else [0, 0, 0]
                for w in waits[k]:
                    other = clocks[w] if w is not None else None
                    assert w is not None and other is not None
                    seen = [*other]
                    seen[owner[w]] += 1
                    clock = [max(a, b) for a, b in zip(clock, seen, strict=True)]
                clock[q] = places[q]
                clocks[k] = (clock[0], clock[1], clock[2])
                run.append(k)
                places[q] += 1
                moved = True
    return clocks, run
