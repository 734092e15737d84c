"""A lesson: one computation scheduled step by step, each step timed, the last raced against others.

Rounds of ours and of each peer alternate in one process on one thread, and the ratio is the median over the rounds,
since machines are noisy.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.schedule.stages import StageSchedule
from tilewright.targets.target import Target

BAR = 24
"""Characters of the longest bar."""

Call = Callable[[], object]
Step = tuple[str, str]
"""A step's name, and why it is taken."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Something that computes the same, to be raced; and the share of its speed that the last step should have."""

    call: Call
    bar: float


@dataclass(frozen=True, slots=True)
class Lesson:
    """A computation and the steps of its schedule.

    Args:
        tensors: the arguments of the kernel, results last.
        schedule: what the steps change; each time `steps` gives a name, the schedule is built and timed.
        arrays: what the kernel is called with, results last.
        wanted: the results, computed otherwise.
        tolerance: the largest absolute difference from `wanted`.
        amount: what one call does, in `unit`s a nanosecond: operations for GFLOP/s, bytes for GB/s.
        peers: what the last step is raced against.
    """

    tensors: Sequence[te.Tensor]
    schedule: StageSchedule
    steps: Iterable[Step]
    arrays: Sequence[Any]
    wanted: Sequence[Any]
    tolerance: float
    amount: float
    unit: str = "GFLOP/s"
    peers: Mapping[str, Peer] = field(default_factory=dict)

    @property
    def results(self) -> Sequence[Any]:
        """The arrays that a call writes."""
        return self.arrays[len(self.arrays) - len(self.wanted) :]


def options(text: str | None, sizes: Mapping[str, int], arguments: list[str] | None) -> argparse.Namespace:
    """The command line of a lesson: its sizes and `--rounds`."""
    parser = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"default {size}")
    parser.add_argument("--rounds", type=int, default=15, help="rounds against each peer")
    return parser.parse_args(arguments)


def seconds(call: Call) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def race(ours: Call, theirs: Call, rounds: int) -> tuple[float, float, float]:
    """Medians of both in seconds, and the median over the rounds of their time by ours (above 1: we are faster)."""
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    mine, other = zip(*pairs, strict=True)
    return statistics.median(mine), statistics.median(other), statistics.median(b / a for a, b in pairs)


def bar(share: float) -> str:
    """A bar for a share of the fastest: whole blocks, and a last one in eighths."""
    eighths = round(share * 8 * BAR)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def take(lesson: Lesson, rounds: int) -> int:
    """Take each step, show its loops and its time, and race the last. 0 if it has met every bar, else 1."""
    times: dict[str, float] = {}
    kernel = None
    for name, why in lesson.steps:
        kernel = tw.build(lesson.schedule, lesson.tensors, name=name.replace("-", "_").replace(" ", "_"))
        print(f"\n=== {name}: {why}\n\n{kernel.source('loops')}")
        times[name] = _checked(lesson, kernel, name)
        print(f"{times[name] * 1e3:.2f} ms, {lesson.amount / times[name] / 1e9:.1f} {lesson.unit} on one thread")
    if kernel is None:
        raise ValueError("a lesson needs a step")
    last, ratios = list(times)[-1], {}
    for name, peer in lesson.peers.items():
        times[f"{last}, beside {name}"], times[name], ratios[name] = race(
            lambda: kernel(*lesson.arrays), peer.call, rounds
        )
    cores = max(2, Target.host().cores)
    shared = tw.build(lesson.schedule, lesson.tensors, threads=cores)
    times[f"{cores} threads"] = _checked(lesson, shared, "threads")
    width = max(map(len, times))
    print(f"\n{'step':{width}}{'ms':>10}{lesson.unit:>10}{'times naive':>13}  speed")
    naive, least = next(iter(times.values())), min(times.values())
    for name, spent in times.items():
        figures = f"{spent * 1e3:10.2f}{lesson.amount / spent / 1e9:10.1f}{naive / spent:13.1f}"
        print(f"{name:{width}}{figures}  {bar(least / spent)}")
    for name, ratio in ratios.items():
        print(f"{ratio:.2f} of the speed of {name} (bar {lesson.peers[name].bar})")
    return 0 if all(ratio >= lesson.peers[name].bar for name, ratio in ratios.items()) else 1


def _checked(lesson: Lesson, kernel: Callable[..., object], name: str) -> float:
    """Seconds of a call (the median of nine where one is short), after its results were compared with the wanted."""
    for array in lesson.results:
        array[...] = np.nan if array.dtype.kind == "f" else -1
    spent = seconds(lambda: kernel(*lesson.arrays))
    for array, wanted in zip(lesson.results, lesson.wanted, strict=True):
        assert np.abs(array - wanted).max() <= lesson.tolerance, f"{name} is wrong"
    return statistics.median(seconds(lambda: kernel(*lesson.arrays)) for _ in range(9)) if spent < 0.5 else spent
