"""Races of candidates in child processes that may crash, hang, grow or be wrong without harm to the tuner.

Each candidate has a process of its own, on stated CPUs, with bounded memory and time. What goes wrong in it is an
outcome, not an error. The tuner's process only waits meanwhile: nothing is compiled while something is timed.

Races may share a team of processes: each candidate is loaded anew, into the memory that an earlier one left, and in
another process than before, so that what a process's memory is like favours none in the end. Where a virtual
machine gets its memory from the host when it is touched, and gives back what is free, 100 MB of fresh weights take
half a second, more than five turns of ResNet-50.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from tilewright.measure.contender import load_arrays
from tilewright.measure.paired import Contender, Limits, Result, Team, race
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.tuning import subject
from tilewright.tuning.programs import Built
from tilewright.tuning.significance import ratios, there_and_back

Outcome = Literal["timed", "refused", "wrong", "crashed", "timeout", "memory"]
"""The outcome of a candidate: timed; no code could be made or loaded; its results were wrong; its process died; it took
too long; it took too much memory."""

MEMORY = 4 << 30
"""Bytes of memory that a candidate's process may take beyond the interpreter and the model's own size."""
TURN_SECONDS = 0.006
LOADINGS, ROUNDS = 5, 12
"""How often a verification loads both programs anew, and the turns of each loading, of which half are in each order."""
FLOOR = 1e-5
"""Differences of outputs, relative to their scale, up to this one may come from the order of summation alone."""
LOOSER = 2.0
"""A candidate's outputs may be this many times as far from the exact program's outputs as the untuned program's."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The result of a race for one candidate: for each round the seconds of each step, and its largest difference from
    the exact program's outputs relative to their scale; or what went wrong and why."""

    outcome: Outcome
    rounds: tuple[tuple[float, ...], ...] = ()
    error: float = 0.0
    why: str = ""


class Races(Protocol):
    """An interface that times programs: by processes on this machine, or from a test's numbers. `own_error` is how far
    the untuned program's outputs are from the exact one's, relative to their scale."""

    @property
    def own_error(self) -> float: ...

    def steps(self, candidates: Sequence[Built], rounds: int) -> list[Timed]:
        """Time all candidates in turns, step by step; the first one is the incumbent."""

    def verify(self, incumbent: Built, challenger: Built) -> tuple[tuple[tuple[float, ...], ...], Timed]:
        """Race whole programs, freshly loaded several times. Returns the ratios of the rounds by loading, and the
        challenger's result."""


@dataclass(frozen=True, slots=True)
class Processes:
    """Races in processes on this machine.

    Args:
        weights, inputs: files that all candidates share.
        threads: the number of threads of a call.
        memory: bytes that a process may take beyond what it starts with.
        timeout: seconds that an answer may take.
        announce: called with a text about the progress.
        setup: what the processes run: step by step, and whole.
        team: processes that stay for all races; None: each race has its own.
    """

    weights: Path
    inputs: Path
    threads: int
    memory: int = MEMORY
    timeout: float = 60.0
    announce: Callable[[str], None] = lambda _text: None
    setup: tuple[str, str] = (subject.STEPS, subject.CALLS)
    reference: Mapping[str, Any] | None = None
    allowed: float = float("inf")
    own_error: float = 0.0
    team: Team | None = None
    _races: Iterator[int] = field(default_factory=count, repr=False, compare=False)

    def compared_with(self, exact: Built, untuned: Built) -> Processes:
        """A copy that compares outputs with those of the exact program. A candidate may deviate a little more than
        the untuned program does."""
        results, outputs = self._race([exact, untuned], self.setup[1], 1)
        must = [Timed(_outcome(r), why=_first_line(r.error)) for r in results]
        for candidate in must:
            if candidate.outcome != "timed":
                raise CallError(f"the untuned program cannot be timed: {candidate.why}", hint="`tilewright doctor`")
        own = difference(outputs[0], outputs[1])
        return replace(self, reference=outputs[0], allowed=max(FLOOR, LOOSER * own), own_error=own)

    def steps(self, candidates: Sequence[Built], rounds: int) -> list[Timed]:
        results, outputs = self._race(candidates, self.setup[0], rounds, self.team)
        matches = [self._compared(r, o) for r, o in zip(results, outputs, strict=True)]
        if any(timed.outcome != "timed" for timed in matches):
            self._dismiss()
        return matches

    def _dismiss(self) -> None:
        """End the shared processes after a failure, which may have left them in a bad state."""
        if self.team is not None:
            self.team.dismiss()

    def compared(self, candidates: Sequence[Built], reference: Mapping[str, Any] | None, allowed: float) -> list[Timed]:
        """Time all candidates in turns, in new processes, and compare their outputs with `reference` (None: with the
        first candidate's). Returns a result for each, which has the outcome "wrong" if its `difference` exceeds
        `allowed`."""
        results, outputs = self._race(candidates, self.setup[0], ROUNDS)
        evaluate = replace(self, reference=outputs[0] if reference is None else reference, allowed=allowed)
        return [evaluate._compared(r, o) for r, o in zip(results, outputs, strict=True)]

    def verify(self, incumbent: Built, challenger: Built) -> tuple[tuple[tuple[float, ...], ...], Timed]:
        loadings = []
        state = Timed("timed")
        for _ in range(LOADINGS):
            (first, second), outputs = self._race([incumbent, challenger], self.setup[1], ROUNDS, self.team)
            state = self._compared(second, outputs[1])
            if state.outcome != "timed" or first.error:
                self._dismiss()
                break
            loadings.append(there_and_back(ratios(first.times, second.times)))
        return tuple(loadings), state

    def _race(
        self, candidates: Sequence[Built], setup: str, rounds: int, team: Team | None = None
    ) -> tuple[list[Result], list[Mapping[str, Any] | None]]:
        limits = Limits(self.memory, cpus_for(self.threads))
        # No contender meets the same process, and what its memory is like, each time.
        first = next(self._races) if team is not None else 0
        contenders = [
            Contender(str((first + k) % len(candidates)), setup, self._arguments(built), limits=limits)
            for k, built in enumerate(candidates)
        ]
        with tempfile.TemporaryDirectory(prefix="tilewright-tune-") as folder:
            results = race(
                contenders,
                rounds=rounds,
                turn_seconds=TURN_SECONDS,
                warmup_seconds=0.02,
                timeout_seconds=self.timeout,
                outputs=Path(folder),
                announce=self.announce,
                team=team,
            )
            outputs: list[Mapping[str, Any] | None] = [
                None if r.outputs is None else load_arrays(str(r.outputs)) for r in results
            ]
        return results, outputs

    def _arguments(self, built: Built) -> dict[str, Any]:
        return {
            "code": built.code,
            "weights": str(self.weights),
            "inputs": str(self.inputs),
            "threads": self.threads,
        }

    def _compared(self, result: Result, outputs: Mapping[str, Any] | None) -> Timed:
        outcome = _outcome(result)
        if outcome != "timed":
            return Timed(outcome, why=_first_line(result.error))
        error = difference(self.reference, outputs)
        if error > self.allowed:
            return Timed(
                "wrong", error=error, why=f"off by {error:.1e} of the outputs' scale, {self.allowed:.1e} allowed"
            )
        return Timed("timed", result.parts, error)


def cpus_for(threads: int) -> tuple[int, ...] | None:
    """The last CPUs that this process may use, as many as threads, since other work tends to run on the first. None
    if there are fewer than `threads`, or if the system does not state them."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return tuple(usable[-threads:]) if threads <= len(usable) else None


def difference(wanted: Mapping[str, Any] | None, result: Mapping[str, Any] | None) -> float:
    """The largest difference of two programs' outputs by name: of floats relative to the largest finite element of each
    output in `wanted`; of other types 1 if any element differs, else 0. Infinity if one of them lacks an output, if
    shapes or types differ, or if elements that differ are not finite. 0 if `wanted` is None."""
    if wanted is None:
        return 0.0
    if result is None or wanted.keys() != result.keys():
        return float("inf")
    return max((_difference(np.asarray(wanted[name]), np.asarray(result[name])) for name in wanted), default=0.0)


def _difference(wanted: np.ndarray[Any, Any], result: np.ndarray[Any, Any]) -> float:
    if wanted.shape != result.shape or wanted.dtype != result.dtype:
        return float("inf")
    if wanted.dtype.kind not in "fc":
        return 0.0 if np.array_equal(wanted, result) else 1.0
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    a, b = wanted.astype(wide), result.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not (np.isfinite(a[~same]).all() and np.isfinite(b[~same]).all()):
        return float("inf")
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) or 1.0
    return float(np.abs(a[~same] - b[~same]).max()) / scale


def _outcome(result: Result) -> Outcome:
    match result.failure:
        case "":
            return "timed"
        case "ended":
            return "crashed"
        case "hung":
            return "timeout"
    return "memory" if (result.error or "").startswith("MemoryError") else "refused"


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]
