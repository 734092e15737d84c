"""Random programs of open sizes, called at many sizes from 0 up with all that they touch between guarded pages.

    python -m tests.fuzz.guarded --calls 100000                all doors, in child processes, with a progress bar
    python -m tests.fuzz.guarded --door onnx --seed 44 --programs 1

A child prints each seed before it tries it. One that ends by a signal has read or written outside; one whose results
differ between two calls on the same inputs has read unwritten memory; one that raises anything but an error of ours
is a fault as well, and one that takes longer than ten minutes for a program.
"""

from __future__ import annotations

import argparse
import importlib
import random
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
SECONDS = 600
"""How long a program may take, compiled and called at all sizes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An access or result of a program that must not be."""

    door: str
    seed: int
    what: str

    def __str__(self) -> str:
        return f"{self.door} {self.seed}: {self.what}"


def tried(door: str, seed: int) -> tuple[int, int]:
    """Calls that ran, and calls that were refused, of the program of a seed. Raises AssertionError for a fault."""
    from tests.fuzz.guards import GUARD, TooLarge

    kind = importlib.import_module(f"tests.fuzz.open_{door}")
    rng = random.Random(seed)
    ran = refused = 0
    try:
        call = kind.compiled(seed, rng.choice((1, 1, 1, 2, 3)))
    except Error:
        return 0, 0
    pairs = [(n, m) for n in SIZES for m in rng.sample(SIZES, 6)] + [(rng.choice(SIZES), m) for m in SIZES[:12]]
    for n, m in pairs:
        results = []
        for GUARD.at_end, GUARD.fill in ((True, 0xFF), (False, 0x2A)):
            try:
                results.append(_arrays(call(n, m)))
                ran += 1
            except (Error, TooLarge):
                refused += 1
            GUARD.pages.free()
        if len(results) == 2:
            assert all(map(_same, *results)), f"reads what nobody wrote, at n = {n}, m = {m}"
    return ran, refused


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
    for seed in range(first, first + count):
        print("seed", seed, flush=True)
        try:
            ran, refused = tried(door, seed)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            print(
                "fault",
                f"{type(error).__name__}: {str(error)[:300]} ({last.filename}:{last.lineno})".replace("\n", " "),
            )
            continue
        print("calls", ran, refused, flush=True)


def report(door: str, first: int, count: int) -> Iterator[tuple[int, int] | Fault]:
    """The reports of children about programs: their calls, or a fault. One that ends by a signal is followed by
    another."""
    seed, end = first, first + count
    while seed < end:
        command = [sys.executable, "-m", "tests.fuzz.guarded", "--child", door, str(seed), str(end - seed)]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            deferred = threading.Event()
            try:
                for word, rest in _words(process, deferred):
                    if word == "seed":
                        seed = int(rest)
                    elif word == "calls":
                        ran, refused = map(int, rest.split())
                        yield ran, refused
                    elif word == "fault":
                        yield Fault(door, seed, rest)
            finally:
                process.kill()
                code = process.wait()
            if code == 0:
                return
            errors.seek(0)
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            yield Fault(
                door, seed, f"took more than {SECONDS} s" if deferred.is_set() else f"{name} {errors.read()[-500:]}"
            )
            seed += 1


def _words(process: Any, deferred: threading.Event) -> Iterator[tuple[str, str]]:
    """The lines that a child prints, as a word and the rest. It is killed where one takes too long."""

    def stop() -> None:
        deferred.set()
        process.kill()

    while True:
        timer = threading.Timer(SECONDS, stop)
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
    started, ran, refused, faults = time.monotonic(), 0, 0, []
    with progress("guarded calls", total=None if options.programs else options.calls) as step:
        for door in doors:
            mine = 0
            for said in report(door, options.seed, options.programs or 10**6):
                if isinstance(said, Fault):
                    faults.append(said)
                    print(f"{said}\n    {_text(said)}", flush=True)
                else:
                    mine += sum(said)
                    ran, refused = ran + said[0], refused + said[1]
                    for _ in range(sum(said)):
                        step(door)
                if not options.programs and mine >= options.calls / len(doors):
                    break
    print(f"{ran} calls ran, {refused} were refused, {len(faults)} faults, {time.monotonic() - started:.0f} s")
    return bool(faults)


def _text(fault: Fault) -> str:
    return str(importlib.import_module(f"tests.fuzz.open_{fault.door}").text(fault.seed))


if __name__ == "__main__":
    sys.exit(main())
