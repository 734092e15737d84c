"""Runs a program in its legal orders, to see whether they leave the same memory.

Orders that only differ in the order of independent instructions leave the same memory, so that one of them represents
all (sleep sets; Godefroid, 1996). A program without races has one such class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.targets.vta.access import Accesses
from tilewright.targets.vta.check import Analysis, analyse
from tilewright.targets.vta.config import DEFAULT, Config
from tilewright.targets.vta.isa import Instruction, encode
from tilewright.targets.vta.order import Order
from tilewright.targets.vta.simulator import Machine

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Explored:
    """The outcome of running a program in several orders.

    Args:
        orders: how many orders were run.
        complete: whether these represent all legal orders, or are a sample.
        outcomes: one order for each different final memory.
        analysis: the result of the static check of the program.
    """

    orders: int
    complete: bool
    outcomes: tuple[tuple[int, ...], ...]
    analysis: Analysis


def explore(
    program: Sequence[Instruction], dram: Mapping[int, Array], config: Config = DEFAULT, limit: int = 200, seed: int = 0
) -> Explored:
    """Run a program on the arrays `dram` (by address) in all of its legal orders, one for each equivalence class, if
    there are at most `limit` classes; else in `limit` random orders, which `seed` determines. Returns the results.
    Instructions that can never run are omitted."""
    analysis = analyse(program, dram, config)
    conflicts = _conflicts(analysis)
    words = encode(list(program), config)
    orders: list[tuple[int, ...]] = []
    complete = True
    for order in classes(analysis.order, conflicts):
        if len(orders) == limit:
            complete = False
            rng = np.random.default_rng(seed)
            orders = [by_chance(analysis.order, rng) for _ in range(limit)]
            break
        orders.append(order)
    outcomes: dict[bytes, tuple[int, ...]] = {}
    for order in orders:
        machine, memory = Machine(config), {base: a.copy() for base, a in dram.items()}
        machine.step(words, [k for k in order if k in analysis.accesses], memory)
        digest = blake2b(digest_size=16)
        for part in (*memory.values(), *machine.buffers.values()):
            digest.update(part.tobytes())
        outcomes.setdefault(digest.digest(), order)
    return Explored(len(orders), complete, tuple(outcomes.values()), analysis)


def classes(order: Order, conflicts: Mapping[int, frozenset[int]]) -> Iterator[tuple[int, ...]]:
    """One legal order for each class of orders in which conflicting instructions have the same order."""
    queues = [tuple(k for k in q if order.clocks[k] is not None) for q in order.queues]
    total = sum(map(len, queues))
    path: list[int] = []
    # A level for each instruction of the path: what is still to be tried there, and what sleeps.
    levels: list[tuple[list[int], set[int]]] = [(_enabled(order, queues, path), set())]
    while levels:
        choices, asleep = levels[-1]
        if len(path) == total and not choices:
            yield tuple(path)
        if not choices:
            levels.pop()
            if path:
                done = path.pop()
                levels[-1][1].add(done)
            continue
        k = choices.pop(0)
        if k in asleep:
            continue
        path.append(k)
        still = {s for s in asleep if s not in conflicts.get(k, ())}
        levels.append((_enabled(order, queues, path), still))


def _enabled(order: Order, queues: Sequence[tuple[int, ...]], path: Sequence[int]) -> list[int]:
    """The instructions of `queues` that can run next, after the ones in `path`."""
    done = set(path)
    results = []
    for queue in queues:
        k = next((k for k in queue if k not in done), None)
        if k is not None and all(w in done for w in order.waits[k]):
            results.append(k)
    return results


def by_chance(order: Order, rng: np.random.Generator) -> tuple[int, ...]:
    """A random legal order of the instructions."""
    queues = [tuple(k for k in q if order.clocks[k] is not None) for q in order.queues]
    path: list[int] = []
    while choices := _enabled(order, queues, path):
        path.append(choices[int(rng.integers(len(choices)))])
    return tuple(path)


def _conflicts(analysis: Analysis) -> dict[int, frozenset[int]]:
    """For each instruction the instructions of other queues with which its order matters: one of the two writes a row
    that the other reads or writes."""
    result: dict[int, set[int]] = {k: set() for k in analysis.accesses}
    owner = {k: q for q, queue in enumerate(analysis.order.queues) for k in queue}
    racing = [(a, b) for a in result for b in result if a < b and owner[a] != owner[b]]
    for a, b in racing:
        if _touch(analysis.accesses[a], analysis.accesses[b]):
            result[a].add(b)
            result[b].add(a)
    return {k: frozenset(v) for k, v in result.items()}


def _touch(a: Accesses, b: Accesses) -> bool:
    """Whether one of two instructions writes a row that the other reads or writes."""
    for one, other in ((a, b), (b, a)):
        for place, rows in one.writes:
            for place_2, rows_2 in (*other.reads, *other.writes):
                if place == place_2 and len(rows) and len(rows_2) and np.intersect1d(rows, rows_2).size:
                    return True
    return False
