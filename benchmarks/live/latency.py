"""Calls while versions change: is every output that of a whole version, and what does it cost the slowest calls?

Processes call as fast as they can (or with pauses, as actors do) while another one publishes at a fixed rate. Quiet and
loud spells alternate; a call's time is taken around the call alone, checking its output is not in it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tilewright as tw
from benchmarks.harness import Interval, bootstrap, markdown_table
from benchmarks.live.common import Child, inputs, other_weights, program, store_folder, summary

BAR = 1.2
SETS = 8


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One policy under one rate of publishing."""

    policy: str
    processes: int
    rate: float  # asked for
    reached: float
    pause: float
    calls: int  # while publishing
    torn: int
    back: int
    versions: int  # the most that one process saw
    quiet: dict[str, float]
    loud: dict[str, float]
    p99: Interval  # loud / quiet, spell by spell

    def cells(self) -> list[object]:
        def micro(times: dict[str, float], key: str) -> str:
            return f"{times[key] * 1e6:.3g}" if times[key] < 1e-3 else f"{times[key] * 1e6:.0f}"

        return [
            self.policy, self.processes, f"{self.pause * 1e3:g}", f"{self.rate:g} ({self.reached:.0f})", self.calls,
            self.versions, self.torn + self.back, micro(self.quiet, "p50"), micro(self.loud, "p50"),
            micro(self.quiet, "p99"), micro(self.loud, "p99"), self.p99,
        ]  # fmt: skip


def measure(
    policy: str,
    rate: float,
    *,
    calls: int,
    processes: int = 8,
    spells: int = 5,
    pause: float = 0.0,
    limit: float = 10.0,
) -> LatencyRow:
    """`calls` calls in all while publishing, in this many spells, and as many in quiet ones.

    Args:
        rate: publishes per second.
        pause: seconds between a process's calls.
        limit: seconds that a spell lasts at most.
    """
    path = program(policy)
    model = tw.load(path)
    each = -(-calls // processes // spells)
    with store_folder(), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sets = _sets(model, folder)
        with Child("publish", name=policy, program=str(path), sets=sets) as publisher:
            publisher.receive()
            children = [
                Child("check", name=policy, expected=str(folder / "expected.npz"), batch=1) for _ in range(processes)
            ]
            try:
                for child in children:
                    child.receive()
                results = [
                    _spell(publisher, children, folder, each, pause, limit, rate if k % 2 else 0.0)
                    for k in range(2 * spells + 2)
                ][2:]
            finally:
                for child in children:
                    child.close()
    quiet, loud = results[::2], results[1::2]
    ratios = [np.quantile(b.times, 0.99) / np.quantile(a.times, 0.99) for a, b in zip(quiet, loud, strict=True)]
    return LatencyRow(
        policy=policy,
        processes=processes,
        rate=rate,
        reached=float(np.mean([s.rate for s in loud])),
        pause=pause,
        calls=sum(len(s.times) for s in loud),
        torn=sum(s.torn for s in results),
        back=sum(s.back for s in results),
        versions=sum(s.versions for s in loud),
        quiet=summary(np.concatenate([s.times for s in quiet])),
        loud=summary(np.concatenate([s.times for s in loud])),
        p99=bootstrap(ratios),
    )


def _sets(model: tw.Model, folder: Path) -> list[str]:
    """Files of SETS sets of weights, and `expected.npz`: inputs and the outputs under each set."""
    paths, outputs = [], []
    arrays = inputs(model)
    for seed in range(SETS):
        weights = other_weights(model, seed)
        path = folder / f"set{seed}.npz"
        np.savez(path, **weights)  # type: ignore[arg-type]
        paths.append(str(path))
        model.update(weights)
        outputs.append(model.run(arrays))
    stacked = {f"out.{name}": np.stack([candidate[name] for candidate in outputs]) for name in outputs[0]}
    np.savez(folder / "expected.npz", **stacked, **{f"in.{k}": v for k, v in arrays.items()})  # type: ignore[arg-type]
    return paths


@dataclass(frozen=True, slots=True)
class _Spell:
    times: np.ndarray  # seconds
    torn: int
    back: int
    versions: int
    rate: float


def _spell(
    publisher: Child, children: list[Child], folder: Path, calls: int, pause: float, limit: float, rate: float
) -> _Spell:
    """All processes make their calls; the publisher works until they have."""
    for k, child in enumerate(children):
        child.send({"calls": calls, "pause": pause, "seconds": limit, "times": str(folder / f"times{k}.npy")})
    publisher.send({"rate": rate})
    results = [child.receive() for child in children]
    done = publisher.ask({"stop": True})
    times = np.concatenate([np.load(folder / f"times{k}.npy") for k in range(len(children))]) * 1e-9
    return _Spell(
        times,
        sum(f["torn"] for f in results),
        sum(f["back"] for f in results),
        max(f["versions"] for f in results),
        done["rate"],
    )


def as_text(rows: list[LatencyRow]) -> str:
    header = [
        "policy", "processes", "pause ms", "publishes/s (reached)", "calls", "versions seen", "torn or backwards",
        "quiet p50 µs", "loud p50", "quiet p99", "loud p99", "p99 loud / quiet [95 %]",
    ]  # fmt: skip
    text = markdown_table(header, [row.cells() for row in rows])
    return text + f"\nBar: p99 at most {BAR:g} times the quiet one; no output that is not one whole version's.\n"
