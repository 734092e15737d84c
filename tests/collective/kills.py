"""Ranks that are killed in the middle of operations: all others must raise in time, and go on together without it.

`python -m tests.collective.kills --count 1000` (`make kills`).
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import multiprocessing
import os
import random
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.collective.group import Group, join
from tilewright.support.errors import CollectiveError

TIMEOUT = 20.0
"""Seconds that ranks wait for each other: none should."""


def operations(group: Group, seed: int) -> None:
    """Random operations, equal on all ranks, without end."""
    rng = random.Random(seed)
    small, large = np.ones(50, np.float32), np.ones(700_000 + group.ranks, np.float32)
    rows = np.ones((group.ranks, 3000), np.float32)
    while True:
        array = rng.choice([small, large])
        match rng.randrange(7):
            case 0:
                group.all_reduce(array, "max")
            case 1:
                group.broadcast(array, rng.randrange(group.ranks))
            case 2:
                group.all_gather(array[:3000])
            case 3:
                group.reduce_scatter(rows)
            case 4:
                group.barrier()
            case 5:
                group.reduce(array, rng.randrange(group.ranks), "max")
            case 6:
                group.all_to_all(list(rows), list(rows.copy()))


def _rank(rank: int, ranks: int, victim: int, seed: int, folder: Path, send: Any) -> None:
    try:
        threads, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        faulthandler.dump_traceback_later(0.9 * TIMEOUT, exit=False)  # says where a rank hangs
        with join("first", rank, ranks, timeout=TIMEOUT, directory=folder) as group:
            send.send(("ready", rank))
            try:
                operations(group, seed)
            except CollectiveError as error:
                text = str(error)
        begin = time.monotonic()
        with join("second", rank - (rank > victim), ranks - 1, timeout=TIMEOUT, directory=folder) as group:
            total = float(group.all_reduce(np.ones(1))[0])
        faulthandler.cancel_dump_traceback_later()
        del group  # whose mapping is a file, too
        gc.collect()
        for _ in range(200):  # the thread that was to print where a rank hangs takes a moment to end
            grown = len(os.listdir("/proc/self/task")) - threads, len(os.listdir("/proc/self/fd")) - files
            if max(grown) <= 0:
                break
            time.sleep(0.01)
        send.send(("error", (text, begin, total, grown)))
    except BaseException:
        send.send(("wrong", traceback.format_exc()))


def kill_one(seed: int, folder: Path) -> None:
    """Kill a rank at a random moment; AssertionError unless each other names it, goes on, and leaves nothing."""
    rng, context = random.Random(seed), multiprocessing.get_context("fork")
    ranks = rng.randint(2, 4)
    victim = rng.randrange(ranks)
    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [
        context.Process(target=_rank, args=(r, ranks, victim, seed, folder, pipes[r][1]), daemon=True)
        for r in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        for receive, _ in pipes:
            assert receive.poll(TIMEOUT), f"seed {seed}: a rank did not join"
            kind, text = receive.recv()
            assert kind == "ready", text
        time.sleep(rng.random() * 0.02)
        pid = processes[victim].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        for r, (receive, _) in enumerate(pipes):
            if r != victim:
                assert receive.poll(TIMEOUT), f"seed {seed}: rank {r} hangs"
                kind, value = receive.recv()
                assert kind == "error", value
                text, raised, total, grown = value
                assert f"rank {victim} has died or left" in text, f"seed {seed}: {text}"
                assert f"rank {r} of {ranks}, call " in text, text
                assert raised - killed < TIMEOUT, f"seed {seed}: {raised - killed:.1f} s"
                assert total == ranks - 1
                assert max(grown) <= 0, f"seed {seed}: threads and files that stay: {grown}"
        left = [p.name for p in (folder / "groups").iterdir()]
        assert not left, f"seed {seed}: {left}"
    finally:
        for process in processes:
            process.join(5)
            process.kill()
            process.join()


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.collective.kills", description=__doc__)
    options.add_argument("--first", type=int, default=0, help="the first one's seed")
    options.add_argument("--count", type=int, default=1000)
    chosen = options.parse_args()
    before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        for seed in range(chosen.first, chosen.first + chosen.count):
            kill_one(seed, Path(name))
            if seed % 100 == 99:
                print(f"kills {chosen.first} to {seed}: every other rank said so and went on", flush=True)
    left = set(os.listdir("/dev/shm")) - before
    print(f"left in /dev/shm: {sorted(left) or 'nothing'}")


if __name__ == "__main__":
    main()
