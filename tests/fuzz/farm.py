"""Runs fuzz cases in worker processes: who crashes, hangs or takes too much memory is found and named by its seed."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
"""Processor seconds are what matters, but a worker that waits shows none: seconds by the clock, with room to spare."""


@dataclass(slots=True)
class Report:
    """The outcomes of the cases: outcomes counted, failures by seed."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        return sum(self.outcomes.values()) + len(self.failures)

    def __str__(self) -> str:
        lines = [
            f"{self.cases} cases in {self.seconds:.0f} s, slowest {self.slowest[0]:.1f} s (seed {self.slowest[1]})"
        ]
        lines += [f"{count:8} {name}" for name, count in self.outcomes.most_common()]
        lines += [f"FAILED seed {seed}: {text}" for seed, text in sorted(self.failures.items())]
        return "\n".join(lines)


class _Worker:
    def __init__(self, kind: str) -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.seed: int | None = None
        self.stage = "new"
        self.since = time.monotonic()
        self.buffer = b""

    def give(self, seed: int) -> None:
        assert self.process.stdin is not None
        self.seed, self.since = seed, time.monotonic()
        try:
            self.process.stdin.write(f"{seed}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is seen by the reader

    def lines(self) -> Iterator[dict[str, object]]:
        """The lines that are there; raises EOFError when the process has ended."""
        assert self.process.stdout is not None
        data = self.process.stdout.read()
        if data == b"":
            raise EOFError
        *whole, self.buffer = (self.buffer + (data or b"")).split(b"\n")
        for line in whole:
            yield json.loads(line)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def run(kind: str, seeds: Iterable[int], workers: int = 2, limit: float = LIMIT_S) -> Report:
    """All cases, by `workers` processes. A worker that ends or is silent for `limit` seconds is replaced."""
    report, start = Report(), time.monotonic()
    waiting = iter(seeds)
    busy: dict[int, _Worker] = {}
    selector = selectors.DefaultSelector()

    def begin(worker: _Worker | None) -> None:
        seed = next(waiting, None)
        if seed is None:
            if worker is not None:
                retire(worker)
            return
        if worker is None:
            worker = _Worker(kind)
            assert worker.process.stdout is not None
            busy[worker.process.stdout.fileno()] = worker
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        worker.give(seed)

    def retire(worker: _Worker) -> None:
        assert worker.process.stdout is not None
        busy.pop(worker.process.stdout.fileno())
        selector.unregister(worker.process.stdout)
        worker.stop()

    for _ in range(workers):
        begin(None)
    while busy:
        for key, _ in selector.select(timeout=1.0):
            worker: _Worker = key.data
            try:
                for line in worker.lines():
                    if _note(report, worker, line):
                        begin(worker)
            except EOFError:
                code = worker.process.wait()
                name = signal.Signals(-code).name if code < 0 else f"status {code}"
                if worker.seed is not None:
                    report.failures[worker.seed] = f"crashed with {name} in stage {worker.stage}"
                retire(worker)
                begin(None)
        for worker in list(busy.values()):
            timeout = limit if worker.stage != "new" else limit + LIMIT_S
            if worker.seed is not None and time.monotonic() - worker.since > timeout:
                report.failures[worker.seed] = f"no answer in {limit:.0f} s in stage {worker.stage}"
                retire(worker)
                begin(None)
    report.seconds = time.monotonic() - start
    return report


def _note(report: Report, worker: _Worker, line: dict[str, object]) -> bool:
    """Takes a line into the report; True when the case is done."""
    if "stage" in line:
        worker.stage = str(line["stage"])
        return False
    if "outcome" in line:
        report.outcomes[str(line["outcome"])] += 1
        report.slowest = max(report.slowest, (float(str(line["seconds"])), int(str(line["seed"]))))
    elif "failure" in line:
        report.failures[int(str(line["seed"]))] = f"{line['failure']}\n{line['detail']}"
    else:  # it has read the seed: what it took to start does not count
        worker.stage, worker.since = "start", time.monotonic()
        return False
    worker.seed = None
    return True


def main() -> None:
    kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(run(kind, range(first, first + count)))


if __name__ == "__main__":
    main()
