"""One copy of the weights for all agents of a node against a copy for each: calls per second, memory per process.

The agents take turns, as actors do that step their environments in between: a token goes round through pipes, and the
agent that has it makes one call. So each call finds the caches as the other agents left them. All agents of a ring run
on one processor; the ring of actors and the ring of private copies run in alternation, never together. Two more only
read the packed weights from end to end, shared or private: what the machine's caches and memory give at best.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

import tilewright as tw
from benchmarks.harness import Interval, bootstrap, markdown_table
from benchmarks.live.common import Child, program, proportional_set, store_folder

PAIRS_BAR = 2.5
"""Times the calls per second of private copies, for weights of 6 MB and more."""
MEMORY_BAR = 40.0
"""MB of each further attached process, the interpreter included."""


@dataclass(frozen=True, slots=True)
class SharedRow:
    """One policy with some agents."""

    policy: str
    agents: int
    raw: int
    packed: int
    shared: float  # calls/s
    private: float
    gain: Interval
    limit: Interval  # the gain where weights are only read

    def cells(self) -> list[object]:
        return [
            self.policy, self.agents, f"{self.raw / 1e6:.1f}", f"{self.packed / 1e6:.1f}", f"{self.private:.0f}",
            f"{self.shared:.0f}", self.gain, self.limit,
        ]  # fmt: skip


class Ring:
    """Agents in a circle of pipes."""

    def __init__(self, count: int, store: str, path: str | None, cpu: int, *, reading: bool = False) -> None:
        pipes = [os.pipe() for _ in range(count)]
        self._home, home = os.pipe()
        self.agents = []
        for k in range(count):
            own, following = pipes[k][0], pipes[(k + 1) % count][1]
            keep = (own, following, home)
            self.agents.append(
                Child(
                    "ring",
                    cpu=cpu,
                    keep=keep,
                    name=store,
                    program=path,
                    batch=1,
                    own=own,
                    following=following,
                    home=home,
                    reading=reading,
                )
            )
        self._first = pipes[0][1]
        self._ends = [end for pipe in pipes for end in pipe] + [self._home, home]

    def ready(self) -> None:
        for agent in self.agents:
            agent.receive()

    def run(self, calls: int) -> float:
        """Seconds for this many calls, taken in turns."""
        start = time.perf_counter()
        os.write(self._first, calls.to_bytes(8, "little"))
        os.read(self._home, 8)
        return time.perf_counter() - start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            agent.close()
        for end in self._ends:
            os.close(end)


def measure(policy: str, agents: int, rounds: int, turn: float) -> SharedRow:
    """Both ways in alternation; `turn` seconds each time."""
    path = str(program(policy))
    model = tw.load(path)
    with store_folder(), tw.Publisher(policy, model):
        rates = _rates(policy, path, agents, rounds, turn, reading=False)
        limits = _rates(policy, path, agents, rounds, turn, reading=True)
    sizes = [sum(p.nbytes for p in part) for part in (model.manifest.params, model.manifest.packed)]
    middle = np.median(rates, axis=0)
    gain, limit = (bootstrap(list(candidate[:, 0] / candidate[:, 1])) for candidate in (rates, limits))
    return SharedRow(policy, agents, sizes[0], sizes[1], float(middle[0]), float(middle[1]), gain, limit)


def _rates(policy: str, path: str, agents: int, rounds: int, turn: float, *, reading: bool) -> np.ndarray:
    """Calls per second [rounds, 2], of actors and of private copies."""
    cpu = max(os.sched_getaffinity(0))
    with (
        Ring(agents, policy, None, cpu, reading=reading) as shared,
        Ring(agents, policy, path, cpu, reading=reading) as private,
    ):
        rings = (shared, private)
        calls = []
        for ring in rings:
            ring.ready()
            calls.append(max(agents, int(agents * 4 * turn / ring.run(agents * 4))))
        return np.array([[n / ring.run(n) for n, ring in zip(calls, rings, strict=True)] for _ in range(rounds)])


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One policy: what attached processes cost, in MB (10^6 bytes)."""

    policy: str
    processes: int
    packed: float
    store: float  # all of the store that is in memory, with the publisher's
    store_growth: float  # what a further process adds to that, on average
    first: float  # the first attached process, which brings libraries with it
    further: float  # each process after that, on average
    most: float  # the dearest of them
    own: float  # anonymous memory of each further process
    private: float  # a further process with a copy of its own, on average

    def cells(self) -> list[object]:
        numbers = (
            self.packed, self.store, self.store_growth, self.first, self.further, self.most, self.own, self.private,
        )  # fmt: skip
        return [self.policy, self.processes, *(f"{n:.1f}" for n in numbers)]


def memory(policy: str, processes: int) -> MemoryRow:
    """PSS summed over all attached processes, as each is added."""
    path = str(program(policy))
    model = tw.load(path)
    with store_folder(), tw.Publisher(policy, model):
        totals = _grown(processes, policy, None)
        private = _grown(min(processes, 4), policy, path)
    steps, own, store = (np.diff([t[key] for t in totals]) for key in ("all", "own", "store"))
    return MemoryRow(
        policy,
        processes,
        sum(p.nbytes for p in model.manifest.packed) / 1e6,
        float(totals[-1]["store"]),
        float(store[1:].mean()),
        float(steps[0]),
        float(steps[1:].mean()),
        float(steps[1:].max()),
        float(own[1:].mean()),
        float(np.diff([t["all"] for t in private])[1:].mean()),
    )


def _grown(processes: int, store: str, path: str | None) -> list[dict[str, float]]:
    """For 0, 1, 2, ... processes: the proportional sets of the publisher (this process) and all of them, summed."""
    result, children = [_sum([os.getpid()])], []
    try:
        for _ in range(processes):
            children.append(Child("sit", name=store, program=path, batch=1, calls=20))
            children[-1].receive()
            result.append(_sum([os.getpid(), *(child.pid for child in children)]))
    finally:
        for child in children:
            child.close()
    return result


def _sum(pids: list[int]) -> dict[str, float]:
    parts = [proportional_set(pid) for pid in pids]
    return {key: sum(part[key] for part in parts) for key in parts[0]}


def as_text(rows: list[SharedRow]) -> str:
    header = [
        "policy", "agents", "raw MB", "packed MB", "private calls/s", "shared calls/s", "times [95 %]",
        "times if only read",
    ]  # fmt: skip
    text = markdown_table(header, [row.cells() for row in rows])
    return text + (
        f"\nBar: at least {PAIRS_BAR:g} times for weights of 6 MB and more. Only read: processes that read the packed"
        "\nweights from end to end in place of a call, which is as much as sharing can give on the machine.\n"
    )


def memory_text(rows: list[MemoryRow]) -> str:
    header = [
        "policy", "processes", "packed MB", "store, all together", "added by each", "first process", "each further",
        "the dearest", "of it anonymous", "each further with a private copy",
    ]  # fmt: skip
    text = markdown_table(header, [row.cells() for row in rows])
    return text + f"\nPSS, 10^6 bytes. Bar: each further process at most {MEMORY_BAR:g} MB.\n"


def as_dicts(rows: list[SharedRow] | list[MemoryRow]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]
