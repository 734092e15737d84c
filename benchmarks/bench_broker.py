"""Agents through a broker against agents with an actor each: `python -m benchmarks.bench_broker` (see --help).

N agents, a process each, call one policy on one row, all at the same time. They either have an `Actor` each on one
store (one copy of the weights for all, batch 1) or are agents of one `Broker`. The two take turns, several spells each,
and what is compared is calls per second of all agents together. Three ways of calling:

    free      call after call; the system switches when it likes, so an actor finds its caches warm
    turns     an agent lets the others go first after each call (`sched_yield`): every call finds another agent's caches
    stepping  between calls an agent walks through 512 KB of its own, as a step of an environment would

With `free` and `turns` nothing but calls happens. A broker's agents sleep while they wait, so they need no turns.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import tilewright as tw
from benchmarks import harness, policy_suite
from tilewright.runtime.broker.client import BrokerClient
from tilewright.runtime.broker.server import Broker

POLICIES = {"M256": policy_suite.m256, "HOK1": policy_suite.hok1, "NAT": policy_suite.nat, "AZ6": policy_suite.az}
STORE = "policy"
SAMPLES = 1 << 16
STEP_BYTES = 512 << 10
RECOMMENDED = 1.5
_READY, _GO, _STOP = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Spell:
    """One spell of one side: calls per second of all agents together, and seconds of a call (median, 99th percentile)
    and of a whole round of an agent (99th percentile: what it does between calls and waiting for a core included)."""

    calls: float
    p50: float
    p99: float
    round99: float


@dataclass(frozen=True, slots=True)
class Row:
    """One policy, number of agents and way of calling; medians over the spells. `gain` has its quartiles."""

    policy: str
    agents: int
    how: str
    shared: Spell
    broker: Spell
    gain: tuple[float, float, float]
    rows_per_batch: float


class Board:
    """Memory that parent and children share: flags, and each agent's counts and times."""

    def __init__(self, agents: int) -> None:
        self._map = mmap.mmap(-1, 4096 + agents * SAMPLES * 8)
        words = np.frombuffer(self._map, np.int64)
        self.flags = words[:512]
        self.times = words[512:].view(np.uint32).reshape(agents, 2, SAMPLES)

    def begin(self, spell: int) -> None:
        self.flags[_READY] = 0
        self.flags[_GO] = spell


def child(body: Callable[[], None]) -> int:
    """A forked child that runs the body and ends."""
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def inputs(policy: Any, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    arrays = []
    for spec in policy.inputs:
        values = random.random([1 if isinstance(d, str) else d for d in spec.shape])
        arrays.append((values * 255).astype(np.uint8) if spec.dtype == "u8" else values.astype(np.float32))
    return arrays


def agent(index: int, board: Board, counters: np.ndarray, brokered: bool, how: str) -> None:
    """Call in each spell from its start until its end, noting times."""
    policy: Any = BrokerClient(STORE, timeout=30.0, patience=60.0) if brokered else tw.attach(STORE, timeout=30.0)
    arguments = inputs(policy, index)
    found = policy(*arguments)
    out = tuple(np.empty_like(a) for a in found) if isinstance(found, tuple) else np.empty_like(found)
    ground = np.zeros(STEP_BYTES // 8)
    clock, times = time.perf_counter_ns, board.times[index]
    flags, spell = board.flags, 0
    counters[index] = -1
    while True:
        while flags[_GO] == spell:
            time.sleep(0.002)
        spell = int(flags[_GO])
        if spell < 0:
            return
        if spell % 2 != brokered:
            continue
        calls, end, before = 0, int(flags[_STOP]), clock()
        while before < end:
            if how == "stepping":
                ground += 1.0
            start = clock()
            policy(*arguments, out=out)
            stop = clock()
            if how == "turns" and not brokered:
                os.sched_yield()
            k = calls % SAMPLES
            times[0, k], times[1, k] = stop - start, stop - before
            calls, before = calls + 1, stop
        counters[index] = calls


def measure(name: str, agents: int, how: str, spells: int, seconds: float, options: dict[str, Any]) -> Row:
    """Both sides of one case."""
    model = tw.compile(POLICIES[name](), threads=1)
    board = Board(2 * agents)
    counters = board.flags[8 : 8 + 2 * agents]
    with tempfile.TemporaryDirectory(prefix="tilewright-bench-", dir="/dev/shm") as folder:
        os.environ["TILEWRIGHT_STORE_DIR"] = folder
        with tw.Publisher(STORE, model):
            children = [child(lambda: serve(agents, options, board))]
            children += [
                child(lambda k=k: agent(k, board, counters, k >= agents, how)) for k in range(2 * agents)
            ]  # fmt: skip
            try:
                return _compare(name, agents, how, board, counters, spells, seconds)
            finally:
                board.flags[_GO] = -1
                time.sleep(0.05)
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def serve(agents: int, options: dict[str, Any], board: Board) -> None:
    broker = Broker(STORE, agents=min(256, agents + 2), **options).start()
    while True:
        time.sleep(0.02)
        stats = broker.stats()
        board.flags[504:507] = stats.rows, stats.batches, int(stats.busy * 1e9)


def _compare(name: str, agents: int, how: str, board: Board, counters: np.ndarray, spells: int, seconds: float) -> Row:
    deadline = time.monotonic() + 120
    while not (counters == -1).all():
        if time.monotonic() > deadline:
            raise RuntimeError("agents do not start")
        time.sleep(0.01)
    results: dict[bool, list[Spell]] = {False: [], True: []}
    for k in range(2 * spells + 2):
        brokered = k % 2 == 0  # spells are numbered from 2
        mine = slice(agents, 2 * agents) if brokered else slice(0, agents)
        counters[mine] = -2
        before = board.flags[504:506].copy()
        board.flags[_STOP] = time.perf_counter_ns() + int(seconds * 1e9) + 5_000_000
        board.flags[_GO] = 2 + k + 1 if not brokered else 2 + k + 1
        limit = time.monotonic() + seconds + 60
        while (counters[mine] == -2).any():
            if time.monotonic() > limit:
                raise RuntimeError("agents do not end")
            time.sleep(0.02)
        if k >= 2:
            results[brokered].append(_spell(board, counters, mine, seconds))
    rows, batches = board.flags[504] - before[0], board.flags[505] - before[1]
    gains = [b.calls / s.calls for s, b in zip(results[False], results[True], strict=True)]
    quartiles = np.quantile(gains, [0.25, 0.5, 0.75])
    total = board.flags[504] / max(1, board.flags[505])
    del rows, batches
    return Row(
        name, agents, how, _median(results[False]), _median(results[True]),
        (float(quartiles[1]), float(quartiles[0]), float(quartiles[2])), float(total),
    )  # fmt: skip


def _spell(board: Board, counters: np.ndarray, mine: slice, seconds: float) -> Spell:
    calls = counters[mine]
    times = [
        board.times[k, :, : min(int(n), SAMPLES)] for k, n in zip(range(*mine.indices(1 << 20)), calls, strict=True)
    ]
    together = np.concatenate(times, axis=1) * 1e-9
    p50, p99 = np.quantile(together[0], [0.5, 0.99])
    return Spell(float(calls.sum() / seconds), float(p50), float(p99), float(np.quantile(together[1], 0.99)))


def _median(spells: list[Spell]) -> Spell:
    return Spell(*[statistics.median(getattr(s, f) for s in spells) for f in ("calls", "p50", "p99", "round99")])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_broker", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--agents", nargs="+", type=int, default=[8, 16, 32, 64])
    parser.add_argument("--how", nargs="+", choices=["free", "turns", "stepping"], default=["turns", "stepping"])
    parser.add_argument("--spells", type=int, default=5, help="of each side; medians are reported")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a spell")
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--max-wait", type=float, default=200e-6, help="seconds")
    parser.add_argument("--lanes", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/broker.md and .json")
    options = parser.parse_args()
    broker = {k: getattr(options, k) for k in ("max_batch", "max_wait", "lanes", "threads")}
    rows = []
    for policy in options.policies:
        for agents in options.agents:
            for how in options.how:
                row = measure(policy, agents, how, options.spells, options.seconds, broker)
                rows.append(row)
                print(line(row), flush=True)


def line(row: Row) -> str:
    s, b = row.shared, row.broker
    return (
        f"{row.policy:5} {row.agents:3} {row.how:9} shared {s.calls:8.0f}/s p50 {s.p50 * 1e3:8.3f} p99 {s.p99 * 1e3:8.3f} "
        f"round {s.round99 * 1e3:8.2f} ms; broker {b.calls:8.0f}/s p50 {b.p50 * 1e3:8.3f} p99 {b.p99 * 1e3:8.3f} round "
        f"{b.round99 * 1e3:8.2f} ms; gain {row.gain[0]:.2f} [{row.gain[1]:.2f}, {row.gain[2]:.2f}] "
        f"{row.rows_per_batch:.1f} rows"
    )


if __name__ == "__main__":
    main()
