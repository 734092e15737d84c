"""Fair timing side by side: each contender in its own process, taking turns, compared round by round.

    results = race([
        Contender("tilewright", "tilewright.cli.peers:tilewright", {"path": "m.tw", "inputs": "x.npz", "threads": 1}),
        Contender("onnxruntime", "tilewright.cli.peers:onnxruntime", {"path": "m.onnx", "inputs": "x.npz"}),
    ])
    results[0].median, ratio(results[0], results[1])

Each contender has its own process because frameworks' idle workers spin and slow other code in their process. They take
turns because the speed of a shared machine varies: adjacent turns see the same speed, so that the median of paired
ratios is meaningful where absolute times are not. About 30 rounds resolve 1 % at 2 % noise.

A contender is named by a function "module:function" that runs in the child and returns what `contender.Prepared` says.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Literal

from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a contender's process: bytes of memory beyond those of the bare process, and CPUs; None for no
    limit."""

    memory: int | None = None
    cpus: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Contender:
    """A piece of work to be timed in its own process.

    Args:
        name: for people.
        setup: "module:function", importable in a fresh process; called with `arguments`.
        arguments: what JSON can carry.
        environment: variables set in its process.
        python: the interpreter of its process if not this one; it has packages of its own.
        limits: the limits of its process; None sets none.
    """

    name: str
    setup: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    limits: Limits | None = None


Failure = Literal["", "refused", "ended", "hung"]
"""How a contender failed: not at all, it raised an error, its process ended, it gave no answer in time."""


@dataclass(frozen=True, slots=True)
class Result:
    """The measurements of one contender.

    `times` has seconds per call, one entry a round (the mean over the round's calls); `error` says why there are none.
    `info` is what its setup reported, `setup_seconds` how long that took, `peak_memory` the process's largest size in
    bytes, `outputs` the file with the outputs (`contender.load_arrays` reads it) if they were asked for. `parts` has
    the seconds of each part of a call, a round each, where a contender times parts; `latencies` has the seconds of
    each single call, where a contender times those; `failure` is how it failed.
    """

    name: str
    times: tuple[float, ...]
    info: Mapping[str, Any]
    setup_seconds: float
    peak_memory: int = 0
    outputs: Path | None = None
    error: str | None = None
    parts: tuple[tuple[float, ...], ...] = ()
    failure: Failure = ""
    latencies: Sequence[float] = ()

    @property
    def median(self) -> float:
        """Median seconds per call; NaN if it failed."""
        return statistics.median(self.times) if self.times else float("nan")

    @property
    def spread(self) -> float:
        """Half the interquartile range of the times, as a share of the median."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4)
        return (high - low) / 2 / self.median


def ratio(a: Result, b: Result) -> float:
    """Median over the rounds of a's time by b's time; NaN if one failed. Below 1: a is faster."""
    pairs = [x / y for x, y in zip(a.times, b.times, strict=False)]
    return statistics.median(pairs) if pairs else float("nan")


def race(
    contenders: Sequence[Contender],
    *,
    rounds: int | None = 30,
    turn_seconds: float = 0.01,
    warmup_seconds: float = 0.2,
    pause_seconds: float = 0.0,
    timeout_seconds: float = 600.0,
    enough_seconds: float = float("inf"),
    outputs: Path | None = None,
    announce: Callable[[str], None] = lambda _text: None,
    team: Team | None = None,
) -> list[Result]:
    """Set all contenders up, then let them take turns.

    Args:
        rounds: turns of each; None: as many as there are in `enough_seconds`.
        turn_seconds: about how long a turn takes; at least one call.
        warmup_seconds: calls before the first turn.
        pause_seconds: rest between turns; give 0.03 when contenders have spinning workers.
        timeout_seconds: the longest that a setup or a turn may take.
        enough_seconds: no further round begins after this time, once there were three.
        outputs: a folder; each contender saves its outputs there as <number>.npz.
        announce: told about each setup and round, for a progress bar.
        team: processes to use again from an earlier race.

    A contender that fails has `error` set and no times; the others go on.
    """
    with contextlib.ExitStack() as stack:
        if team is None:
            team = stack.enter_context(Team())
        children = []
        for number, contender in enumerate(contenders):
            announce(f"{contender.name}: set up")
            child = _Child(contender, team.process(contender), timeout_seconds)
            child.prepare(warmup_seconds, turn_seconds, outputs / f"{number}.npz" if outputs else None)
            children.append(child)
        start = time.monotonic()
        for number in itertools.count() if rounds is None else range(rounds):
            if number >= 3 and time.monotonic() - start > enough_seconds:
                break
            announce(f"round {number + 1}" + ("" if rounds is None else f" of {rounds}"))
            # The order is turned round each time, so that no contender always follows the same neighbour.
            for child in children if number % 2 == 0 else reversed(children):
                child.turn()
                if pause_seconds:
                    time.sleep(pause_seconds)
        return [child.result() for child in children]


class Team:
    """Processes that stay for several races, one for each contender's name: imports are then paid once.

    A contender sets up anew for each race and its earlier work is dropped; a process that has ended is replaced. The
    peak of memory is the process's, so it covers the earlier races too.
    """

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_error: object) -> None:
        self.dismiss()

    def dismiss(self) -> None:
        """End all processes; later races start others."""
        self._stack.close()
        self._processes.clear()

    def process(self, contender: Contender) -> _Process:
        """The process for the contender's name and environment, started if there is none."""
        entry = self._processes.get(contender.name)
        if entry is not None and entry.alive and entry.environment == contender.environment:
            return entry
        if entry is not None:
            entry.popen.kill()
        self._processes[contender.name] = started = self._stack.enter_context(_process(contender))
        return started


@dataclass(frozen=True, slots=True)
class _Process:
    """A child process and the file with what it writes to stderr."""

    popen: subprocess.Popen[str]
    log: Path
    environment: Mapping[str, str]

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None


class _Child:
    """A contender in its process, with its answers so far."""

    def __init__(self, contender: Contender, process: _Process, timeout: float) -> None:
        self.contender = contender
        self.times: list[float] = []
        self.info: dict[str, Any] = {}
        self.setup_seconds = 0.0
        self.peak_memory = 0
        self.outputs: Path | None = None
        self.error: str | None = None
        self.parts: list[tuple[float, ...]] = []
        self.latencies = array("d")
        self.failure: Failure = ""
        self._process = process.popen
        self._log = process.log
        self._timeout = timeout

    def prepare(self, warmup_seconds: float, turn_seconds: float, outputs: Path | None) -> None:
        order = {"setup": self.contender.setup, "arguments": dict(self.contender.arguments)}
        answer = self._ask({**order, "warmup_seconds": warmup_seconds, "turn_seconds": turn_seconds})
        self.info = answer.get("info", {})
        self.setup_seconds = answer.get("setup_seconds", 0.0)
        if outputs is not None and self.error is None:
            self._ask({"save": str(outputs)})
            self.outputs = outputs if outputs.exists() else None

    def turn(self) -> None:
        answer = self._ask({"turn": True})
        if "seconds" in answer:
            self.times.append(answer["seconds"])
            self.peak_memory = answer["peak_memory"]
            self.parts.append(tuple(answer.get("parts", ())))
            self.latencies.extend(answer.get("latencies", ()))

    def result(self) -> Result:
        return Result(
            self.contender.name,
            () if self.error else tuple(self.times),
            self.info,
            self.setup_seconds,
            self.peak_memory,
            self.outputs,
            self.error,
            () if self.error else tuple(self.parts),
            self.failure,
            array("d") if self.error else self.latencies,
        )

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order and wait for its answer; an empty dict after the first failure."""
        if self.error is not None:
            return {}
        import selectors

        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(self._process.stdout, selectors.EVENT_READ)
                if not selector.select(self._timeout):
                    self._process.kill()
                    self._process.wait()
                    self.error, self.failure = f"no answer within {self._timeout:g} s", "hung"
                    return {}
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            self.error, self.failure = f"its process ended {_how(status)}\n{_tail(self._log)}".rstrip(), "ended"
            return {}
        answer: dict[str, Any] = json.loads(line)
        self.error = answer.get("error")
        self.failure = "refused" if self.error else ""
        return answer


def _how(status: int) -> str:
    """How a process ended, for people."""
    try:
        return f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
    except ValueError:  # a signal without a name
        return f"by signal {-status}"


@contextlib.contextmanager
def _process(contender: Contender) -> Iterator[_Process]:
    environment = {**os.environ, **contender.environment}
    # The child must find what the parent finds (code beside a script is on its sys.path alone) and, with -P, no more.
    shared = [
        path for path in sys.path if contender.python is None or not path.startswith((sys.prefix, sys.base_prefix))
    ]
    limits = [] if contender.limits is None else [json.dumps(asdict(contender.limits))]
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in shared)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr"
        with (
            log.open("w") as stderr,
            subprocess.Popen(
                [contender.python or sys.executable, "-P", "-m", "tilewright.measure.contender", *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
            ) as process,
        ):
            try:
                yield _Process(process, log, contender.environment)
            finally:
                process.kill()


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
