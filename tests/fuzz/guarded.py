"""Random programs of open sizes, called at many sizes from 0 up with all that they touch between guarded pages.

    python -m tests.fuzz.guarded --calls 100000                all doors, in child processes, with a progress bar
    python -m tests.fuzz.guarded --door onnx --seed 44 --programs 1

A case is a program at a pair of sizes, of which each program has some forty; it is called twice, on different unwritten
bytes. A call counts where a program of ours ran in guarded memory: what PyTorch ran itself is counted on its own.

A child prints each seed before it tries it. One that ends by a signal has read or written outside; one whose results
differ between two calls on the same inputs has read unwritten memory; one that raises anything but an error of ours
is a fault as well, and one that takes more than five minutes of the processor for a program.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import Error
from tilewright.support.progress import progress

DOORS = ("onnx", "te", "torch", "jax", "jax_values", "stablehlo", "dynamo", "exported")
SIZES = (*range(10), 15, 16, 17, 31, 33, 64, 65, 130)
PAIRS = 40
"""Pairs of sizes a program is called at."""
SECONDS = 300
"""Seconds of the processor that a program may take, compiled and called at all sizes."""
WAIT = 3600
"""Seconds by the clock that a program may take: one that sleeps takes none of the processor's."""
PROGRAMS = 150
"""Programs that a child tries, after which another takes its place: caches of PyTorch and JAX only grow."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An access or result of a program that must not be."""

    door: str
    seed: int
    what: str

    def __str__(self) -> str:
        return f"{self.door} {self.seed}: {self.what}"


@dataclass(frozen=True, slots=True)
class Tried:
    """The calls of a program that ran in guarded memory, those that were refused, and those that ran elsewhere."""

    ran: int = 0
    refused: int = 0
    elsewhere: int = 0

    @property
    def calls(self) -> int:
        return self.ran + self.refused + self.elsewhere


def tried(door: str, seed: int) -> Tried:
    """The calls of the program of a seed. Raises AssertionError for a fault."""
    from tests.fuzz.guards import GUARD, Enough, TooLarge

    kind = importlib.import_module(f"tests.fuzz.open_{door}")
    rng = random.Random(seed)
    ran = refused = elsewhere = 0
    try:
        call = kind.compiled(seed, rng.choice((1, 1, 1, 1, 1, 1, 2, 3)))
    except Error:
        return Tried()
    for n, m in getattr(kind, "pairs", pairs)(rng):
        results = []
        for GUARD.at_end, GUARD.fill in ((True, 0xFF), (False, 0x2A)):
            before = GUARD.calls
            try:
                results.append(_arrays(call(n, m)))
                ran += GUARD.calls > before
                elsewhere += GUARD.calls == before
            except (Error, TooLarge):
                refused += 1
            except Enough:
                return Tried(ran, refused, elsewhere)
            GUARD.pages.free()
        if len(results) == 2:
            assert all(map(_same, *results)), f"reads what nobody wrote, at n = {n}, m = {m}"
    return Tried(ran, refused, elsewhere)


def pairs(rng: random.Random) -> list[tuple[int, int]]:
    """Pairs of sizes: each of SIZES once or more, and a few of all others."""
    ns = [*SIZES, *SIZES, *(rng.randint(0, 200) for _ in range(PAIRS - 2 * len(SIZES)))]
    ms = rng.choices(SIZES, k=PAIRS)
    return list(dict.fromkeys(zip(ns, ms, strict=True)))


def _arrays(result: Any) -> list[Any]:
    """The arrays of a result, in memory of their own."""
    values = result.values() if isinstance(result, dict) else result if isinstance(result, tuple | list) else [result]
    return [np.array(a) for a in values]


def _same(a: Any, b: Any) -> bool:
    exact = a.dtype.kind not in "fc" and a.dtype.kind != "V"
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=not exact))


def child(door: str, first: int, count: int) -> None:
    """Try programs in this process, and say so line by line."""
    from tests.fuzz.guards import install

    install()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)  # PyTorch prints each trace that fails
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    for seed in range(first, first + count):
        print("seed", seed, flush=True)
        # SIGXCPU ends a process at its limit, whatever it runs.
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS, most))
        try:
            said = tried(door, seed)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            print(
                "fault",
                f"{type(error).__name__}: {str(error)[:300]} ({last.filename}:{last.lineno})".replace("\n", " "),
            )
            continue
        print("calls", said.ran, said.refused, said.elsewhere, flush=True)


def report(door: str, first: int, count: int) -> Iterator[Tried | Fault]:
    """The reports of children about programs: their calls, or a fault. One that ends is followed by another."""
    seed, end = first, first + count
    # What is compiled is small: no processes and no thread pools help.
    environment = {"TILEWRIGHT_PROCESSES": "1", "OMP_NUM_THREADS": "1"} | os.environ
    while seed < end:
        until = min(seed + PROGRAMS, end)
        command = [sys.executable, "-m", "tests.fuzz.guarded", "--child", door, str(seed), str(until - seed)]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
            deferred = threading.Event()
            try:
                for word, rest in _words(process, deferred):
                    if word == "seed":
                        seed = int(rest)
                    elif word == "calls":
                        yield Tried(*map(int, rest.split()))
                    elif word == "fault":
                        yield Fault(door, seed, rest)
            finally:
                process.kill()
                code = process.wait()
            if code == 0:
                seed = until
                continue
            errors.seek(0)
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            yield Fault(
                door, seed, f"took more than {WAIT} s" if deferred.is_set() else f"{name} {errors.read()[-500:]}"
            )
            seed += 1


def _words(process: Any, deferred: threading.Event) -> Iterator[tuple[str, str]]:
    """The lines that a child prints, as a word and the rest. It is killed where one takes too long."""

    def stop() -> None:
        deferred.set()
        process.kill()

    while True:
        timer = threading.Timer(WAIT, stop)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if not line:
            process.wait()
            return
        word, _, rest = line.partition(" ")
        yield word, rest.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="calls to make, all doors together")
    parser.add_argument("--door", choices=DOORS, action="append", help="one of the doors; all if not given")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--programs", type=int, help="programs of each door, whatever the calls")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], *map(int, options.child[1:]))
        return 0
    doors = options.door or DOORS
    started, totals, faults = time.monotonic(), [0, 0, 0], []
    with progress("guarded calls", total=None if options.programs else options.calls) as step:
        for door in doors:
            mine = programs = 0
            for said in report(door, options.seed, options.programs or 10**6):
                if isinstance(said, Fault):
                    faults.append(said)
                    print(f"{said}\n    {_text(said)}", flush=True)
                else:
                    mine, programs = mine + said.calls, programs + (said.ran > 0)
                    totals = [a + b for a, b in zip(totals, (said.ran, said.refused, said.elsewhere), strict=True)]
                    for _ in range(said.calls):
                        step(door)
                if not options.programs and mine >= options.calls / len(doors):
                    break
            print(f"{door}: {programs} programs ran", flush=True)
    ran, refused, elsewhere = totals
    print(
        f"{ran} calls ran, {refused} were refused, {elsewhere} ran elsewhere, {len(faults)} faults,"
        f" {time.monotonic() - started:.0f} s"
    )
    return bool(faults)


def _text(fault: Fault) -> str:
    return str(importlib.import_module(f"tests.fuzz.open_{fault.door}").text(fault.seed))


if __name__ == "__main__":
    sys.exit(main())
