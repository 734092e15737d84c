"""`make engine`: 10,000 random programs against the same lines one by one, all interleavings of short programs, and how
long a push takes; of the engine in Python and of the native one."""

from __future__ import annotations

import argparse
import time

import numpy as np

from tests.engine import interleavings, native_push, programs
from tilewright.engine import Engine
from tilewright.engine.native import available


def push_seconds(workers: int, native: bool, count: int = 20_000) -> list[float]:
    """Seconds of pushes, one by one, of operations that read a variable and write another."""
    seconds = []
    with Engine(workers, native=native) as engine:
        a, b = engine.variable("a"), engine.variable("b")
        for k in range(count):
            begin = time.perf_counter()
            engine.push(int, (a,), (b,))
            seconds.append(time.perf_counter() - begin)
            if k % 100 == 0:
                engine.wait()
    return seconds


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.engine.run", description=__doc__)
    options.add_argument("--programs", type=int, default=10_000, help="random programs")
    options.add_argument("--six", type=int, default=2000, help="random programs of six operations, all interleavings")
    chosen = options.parse_args()
    cores = [False, True] if available() else [False]
    for native in cores:
        kind = "native queues" if native else "queues in Python"
        for workers in (1, 4):
            with Engine(workers, native=native) as engine:
                for seed in range(chosen.programs):
                    programs.check(engine, seed)
            print(f"{kind}: {chosen.programs} random programs on {workers} workers: as if serial", flush=True)
        explored(kind, interleavings.NativeQueues if native else interleavings.PythonQueues, chosen.six)
        for workers in (0, 1, 2):
            seconds = push_seconds(workers, native)
            print(
                f"{kind}: a push by Python, {workers} workers: {1e6 * np.median(seconds):.1f} us in the median, "
                f"{1e6 * min(seconds):.1f} at best"
            )
    for workers in (1, 2) if available() else ():
        with Engine(workers, native=True) as engine:
            times, counted = native_push.nanoseconds(engine, 20_000)
        assert counted == 20_000
        print(
            f"a push by native code, {workers} workers: {np.median(times) / 1e3:.2f} us in the median, "
            f"{times.mean() / 1e3:.2f} in the mean, {times.min() / 1e3:.2f} at best"
        )


def explored(kind: str, queues: type[interleavings.Queues], six: int) -> None:
    """Visit all interleavings of short programs, and say how many states there are."""
    states = sum(interleavings.explore(p, 1, queues) for n in range(1, 7) for p in interleavings.programs(n, 1))
    print(f"{kind}: all programs of up to 6 operations on one variable: as if serial in all {states} states")
    states = sum(interleavings.explore(p, 2, queues) for n in range(1, 5) for p in interleavings.programs(n, 2))
    print(f"{kind}: all programs of up to 4 operations on two variables: as if serial in all {states} states")
    rng, states = np.random.default_rng(6), 0
    for _ in range(six):
        uses = rng.choice(3, (6, 3), p=[0.3, 0.35, 0.35])
        program = [
            (
                frozenset(np.flatnonzero(u == 1).tolist()),
                frozenset(np.flatnonzero(u == 2).tolist()),
                bool(rng.random() < 0.15),
            )
            for u in uses
        ]
        states += interleavings.explore(program, 3, queues)
    print(f"{kind}: {six} programs of 6 operations on three variables: as if serial in all {states} states")


if __name__ == "__main__":
    main()
