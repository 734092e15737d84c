"""Agents through a broker against agents with an actor each: `python -m benchmarks.bench_broker` (see --help).

N agents, a process each, call one policy on one row, all at the same time. They either have an `Actor` each on one
store (one copy of the weights for all, batch 1) or are agents of one `Broker`. The two take turns, several spells each,
and what is compared is calls per second of all agents together. Three ways of calling:

    turns     an actor lets the others go first after each call (sched_yield): each call finds other agents' caches
    free      call after call; the system switches when it likes, so an actor finds its caches warm
    stepping  between calls an agent walks through 256 KB of its own, as a step of an environment would

With turns and free nothing but calls happens. A broker's agents sleep while they wait, which is taking turns already.
Times are of a call, and of an agent's whole round: from answer to answer, waiting for a core included.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import signal
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import tilewright as tw
from benchmarks import harness, policy_suite
from benchmarks.live.common import wide

POLICIES = {
    "M256": policy_suite.m256, "HOK1": policy_suite.hok1, "NAT": policy_suite.nat, "AZ6": policy_suite.az, "W16": wide,
}  # fmt: skip
SECONDS = {"AZ6": 1.5}
"""Seconds of a spell by policy, where it takes longer than usual until every agent has called often enough."""
WAYS = ("turns", "free", "stepping")
REPORT = "broker"
STORE = "policy"
SAMPLES = 1 << 15
STEP_BYTES = 256 << 10
RECOMMENDED = 1.5
_GO, _STOP, _ROWS, _BATCHES, _COUNTS = 0, 1, 2, 3, 8


@dataclass(frozen=True, slots=True)
class Spell:
    """One spell of one side: calls per second of all agents together; seconds of a call (median, 99th percentile) and
    of an agent's round (99th percentile)."""

    calls: float
    p50: float
    p99: float
    round99: float


@dataclass(frozen=True, slots=True)
class Row:
    """One policy, number of agents and way of calling; medians over the spells. `gain`: median and quartiles of the
    broker's calls per second by the actors', spell by spell."""

    policy: str
    agents: int
    how: str
    shared: Spell
    broker: Spell
    gain: tuple[float, float, float]
    rows_per_batch: float
    options: str

    @property
    def key(self) -> str:
        return f"{self.policy} {self.agents} {self.how}"

    @property
    def verdict(self) -> str:
        if self.gain[0] >= RECOMMENDED:
            return "recommended"
        return "not recommended" if self.gain[0] < 1.1 else "some gain"


class Board:
    """Memory that parent and children share: words, and each agent's times of calls and rounds in nanoseconds."""

    def __init__(self, agents: int) -> None:
        self._map = mmap.mmap(-1, 4096 + agents * SAMPLES * 8)
        self.words = np.frombuffer(self._map, np.int64)[:512]
        self.times = np.frombuffer(self._map, np.uint32)[1024:].reshape(agents, 2, SAMPLES)
        self.counts = self.words[_COUNTS : _COUNTS + agents]


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


def agent(index: int, board: Board, brokered: bool, how: str) -> None:
    """Call in each spell of this side from its start until its end, noting times. Odd spells are the broker's."""
    policy: Any = (
        tw.BrokerClient(STORE, timeout=30.0, call_timeout=60.0) if brokered else tw.attach(STORE, timeout=30.0)
    )
    arguments = inputs(policy, index)
    result = policy(*arguments)
    out = tuple(np.empty_like(a) for a in result) if isinstance(result, tuple) else np.empty_like(result)
    ground = np.zeros(STEP_BYTES // 8)
    clock, calls_of, rounds_of = time.perf_counter_ns, *map(memoryview, board.times[index])  # type: ignore[misc]
    steps, yields = how == "stepping", how == "turns" and not brokered
    words, spell = board.words, 0
    board.counts[index] = -1
    while True:
        while words[_GO] == spell:
            time.sleep(0.002)
        spell = int(words[_GO])
        if spell < 0:
            return
        if spell % 2 != brokered:
            continue
        calls, end, before = 0, int(words[_STOP]), clock()
        while before < end:
            if steps:
                ground += 1.0
            start = clock()
            policy(*arguments, out=out)
            stop = clock()
            if yields:
                os.sched_yield()
            k = calls % SAMPLES
            calls_of[k], rounds_of[k] = stop - start, stop - before
            calls, before = calls + 1, stop
        board.counts[index] = calls


def serve(agents: int, options: dict[str, Any], board: Board) -> None:
    broker = tw.Broker(STORE, agents=agents + 1, **options).start()
    while True:
        time.sleep(0.02)
        stats = broker.stats()
        board.words[_ROWS], board.words[_BATCHES] = stats.rows, stats.batches


def measure(name: str, agents: int, how: str, spells: int, seconds: float, options: dict[str, Any]) -> Row:
    """Both sides of one case: actors are children 0 to N - 1, the broker's agents N to 2 N - 1."""
    model = tw.compile(POLICIES[name](), threads=1)
    board = Board(2 * agents)
    with tempfile.TemporaryDirectory(prefix="tilewright-bench-", dir="/dev/shm") as folder:
        os.environ["TILEWRIGHT_STORE_DIR"] = folder
        with tw.Publisher(STORE, model):
            children = [child(lambda k=k: agent(k, board, k >= agents, how)) for k in range(2 * agents)]
            children.append(child(lambda: serve(agents, options, board)))
            try:
                sides = _spells(board, agents, spells, seconds)
            finally:
                board.words[_GO] = -1
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
    shared, broker = sides
    gains = np.quantile([b.calls / s.calls for s, b in zip(shared, broker, strict=True)], [0.5, 0.25, 0.75])
    each = float(board.words[_ROWS] / max(1, board.words[_BATCHES]))
    told = ", ".join(f"{key}={value:g}" for key, value in options.items() if value is not None)
    return Row(name, agents, how, _median(shared), _median(broker), tuple(map(float, gains)), each, told)


def _spells(board: Board, agents: int, spells: int, seconds: float) -> tuple[list[Spell], list[Spell]]:
    """Spells of both sides in turn, after one of each that does not count."""
    _wait(lambda: bool((board.counts == -1).all()), 120.0)
    sides: tuple[list[Spell], list[Spell]] = ([], [])
    for k in range(2 * spells + 2):
        mine = np.arange(agents) + (k % 2) * agents
        board.counts[mine] = -2
        board.words[_STOP] = time.perf_counter_ns() + int(seconds * 1e9)
        board.words[_GO] = 2 + k
        _wait(lambda mine=mine: bool((board.counts[mine] != -2).all()), seconds + 60.0)
        if k >= 2:
            sides[k % 2].append(_spell(board, mine, seconds))
    return sides


def _wait(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("the agents do not answer")
        time.sleep(0.01)


def _spell(board: Board, mine: np.ndarray, seconds: float) -> Spell:
    times = np.concatenate([board.times[k, :, : min(int(board.counts[k]), SAMPLES)] for k in mine], axis=1) * 1e-9
    p50, p99 = np.quantile(times[0], [0.5, 0.99])
    calls = float(board.counts[mine].sum()) / seconds
    return Spell(calls, float(p50), float(p99), float(np.quantile(times[1], 0.99)))


def _median(spells: list[Spell]) -> Spell:
    return Spell(*[statistics.median(getattr(s, field) for s in spells) for field in Spell.__slots__])


# -- the report --------------------------------------------------------------------------------------------------------


def as_text(rows: Sequence[Row]) -> str:
    """A table for each way of calling."""
    parts = []
    for how in WAYS:
        chosen = [row for row in rows if row.how == how]
        if not chosen:
            continue
        header = ["policy", "agents", "actors, calls/s", "broker, calls/s", "gain", "quartiles", "rows a batch"]
        header += ["call p50 / p99, ms", "broker's", "round p99, ms", "broker's", ""]
        table = harness.markdown_table(header, [_cells(row) for row in chosen])
        parts.append(f"## {how}\n\n{table}")
    return "\n".join(parts)


def _cells(row: Row) -> list[object]:
    s, b = row.shared, row.broker

    def ms(seconds: float) -> str:
        return f"{seconds * 1e3:.3g}"

    return [
        row.policy, row.agents, f"{s.calls:.0f}", f"{b.calls:.0f}", f"**{row.gain[0]:.2f}**",
        f"{row.gain[1]:.2f}-{row.gain[2]:.2f}", f"{row.rows_per_batch:.1f}", f"{ms(s.p50)} / {ms(s.p99)}",
        f"{ms(b.p50)} / {ms(b.p99)}", ms(s.round99), ms(b.round99), row.verdict,
    ]  # fmt: skip


def write(rows: Sequence[Row], command: str) -> str:
    """Merge rows into the report and write it."""
    path = harness.RESULTS / f"{REPORT}.json"
    stored = {_key(r): r for r in json.loads(path.read_text())["rows"]} if path.exists() else {}
    for row in rows:
        stored[row.key] = {**asdict(row), "command": command, "commit": harness.commit(), "date": harness.now()}
    order = [f"{p} {n} {how}" for how in WAYS for p in POLICIES for n in range(1, 257)]
    merged = sorted(stored.values(), key=lambda r: order.index(_key(r)))
    path.write_text(json.dumps({"environment": harness.environment(), "rows": merged}, indent=1) + "\n")
    results = [_row(r) for r in merged]
    notes = (__doc__ or "").split("\n\n", 1)[1].replace("\n    ", "\n- ")
    commands = "".join(f"- `{c}`\n" for c in dict.fromkeys(r["command"] for r in merged))
    text = f"{notes}\nMeasured with\n\n{commands}\n{as_text(results)}"
    return str(harness.write_markdown(REPORT, "Agents through a broker", text))


def _key(row: dict[str, Any]) -> str:
    return f"{row['policy']} {row['agents']} {row['how']}"


def _row(result: dict[str, Any]) -> Row:
    sides = {side: Spell(**result[side]) for side in ("shared", "broker")}
    ordinary = {k: result[k] for k in ("policy", "agents", "how", "rows_per_batch", "options")}
    return Row(**ordinary, **sides, gain=tuple(result["gain"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_broker", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--agents", nargs="+", type=int, default=[8, 16, 32, 64])
    parser.add_argument("--how", nargs="+", choices=WAYS, default=["turns", "free"])
    parser.add_argument("--spells", type=int, default=5, help="of each side; medians are reported")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a spell (of AZ6: 1.5 at least)")
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--max-wait", type=float, default=200e-6, help="seconds")
    parser.add_argument("--lanes", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--realtime", action="store_true", help="schedule both sides round robin before all else (a busy machine; root)"
    )
    parser.add_argument("--no-report", action="store_true", help="leave benchmarks/results/broker.md and .json alone")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    chosen = {k: getattr(options, k) for k in ("max_batch", "max_wait", "lanes", "threads")}
    rows: list[Row] = []
    command = f"python -m benchmarks.bench_broker{' --realtime' if options.realtime else ''} --spells {options.spells}"
    with contextlib.suppress(KeyboardInterrupt):
        for how in options.how:
            for policy in options.policies:
                for agents in options.agents:
                    seconds = max(options.seconds, SECONDS.get(policy, 0.0))
                    rows.append(measure(policy, agents, how, options.spells, seconds, chosen))
                    print(" | ".join(map(str, _cells(rows[-1]))), flush=True)
    if not options.no_report:
        print("wrote", write(rows, command))


if __name__ == "__main__":
    main()
