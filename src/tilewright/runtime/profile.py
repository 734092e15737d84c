"""Time per kernel: the manifest's steps as native code with the clock read between them (`stepwise.py`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.native.link import Library, compile_text
from tilewright.runtime.arguments import BoundInputs
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import aligned_bytes, function
from tilewright.runtime.outputs import uninitialised
from tilewright.runtime.specs import StepSpec, evaluate
from tilewright.runtime.stepwise import profile_text
from tilewright.runtime.threads import pool
from tilewright.runtime.trace_events import known
from tilewright.runtime.weights.packed import WeightSet, packed_nbytes
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError

if TYPE_CHECKING:
    from tilewright.runtime.engine import Engine


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of one kernel: seconds of all of its calls in a run (the median of repeated runs), its share of the run,
    and rates if its work is known."""

    kernel: str
    label: str
    seconds: float
    share: float
    gflops: float | None
    gbytes: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """Kernels in the order in which they run, and the median time of a whole run."""

    kernels: tuple[KernelTime, ...]
    seconds: float
    symbols: dict[str, int]
    threads: int

    def __str__(self) -> str:
        rows = [("", "us", "share", "GFLOP/s", "GB/s", "kernel")]
        for k in self.kernels:
            rates = [f"{r:.1f}" if r is not None else "-" for r in (k.gflops, k.gbytes)]
            label = k.label if len(k.label) <= 60 else k.label[:57] + "..."
            rows.append((label, f"{k.seconds * 1e6:.2f}", f"{k.share:.1%}", rates[0], rates[1], k.kernel))
        widths = [max(len(row[c]) for row in rows) for c in range(5)]
        lines = []
        for row in rows:
            numbers = "  ".join(cell.rjust(width) for cell, width in zip(row[1:5], widths[1:], strict=True))
            lines.append(f"{row[0]:<{widths[0]}}  {numbers}  {row[5]}".rstrip())
        return "\n".join([*lines, f"a run: {self.seconds * 1e6:.2f} us, {self.threads} threads"])


def measure(
    engine: Engine, weights: Sequence[int], bound: BoundInputs, repeat: int, threads: int | None = None
) -> Profile:
    """Run the program `repeat` times on these inputs, with the clock read after every kernel.

    Args:
        weights: addresses of the packed parameters.
        threads: of these runs; if None, the most that calls may use.
    """
    keep, slots = run_slots(engine, weights, bound)
    symbols = dict(zip((s.name for s in engine.manifest.symbols), bound.dims, strict=True))
    result = _measure(engine, engine.manifest.run_steps, slots, symbols, repeat, threads)
    del keep
    return result


def measure_prepare(engine: Engine, raw: Sequence[Array], repeat: int) -> Profile:
    """Time the packing of these raw weights `repeat` times, into memory that is discarded."""
    weights = WeightSet(engine.manifest, raw, aligned_bytes(packed_nbytes(engine.manifest)), 0)
    keep, slots = engine.prepare.slots(weights.raw_addresses, weights.packed_addresses)
    result = _measure(engine, engine.manifest.prepare_steps, np.array(slots, np.int64), {}, repeat)
    del keep, weights
    return result


def step_clock(engine: Engine, weights: Sequence[int], bound: BoundInputs) -> StepClock:
    """A clock that times each step of a program's run on the inputs `bound`; `weights` are the addresses of packed
    parameters."""
    keep, slots = run_slots(engine, weights, bound)
    symbols = dict(zip((s.name for s in engine.manifest.symbols), bound.dims, strict=True))
    return StepClock(engine, engine.manifest.run_steps, slots, symbols, keep)


class StepClock:
    """A program's steps compiled with the clock read after each, to time them on certain inputs.

    Args:
        slots: the addresses that the steps work on.
        keep: objects that own the memory at these addresses.
        threads: of the runs; if None, the most that calls may use.
    """

    def __init__(
        self,
        engine: Engine,
        steps: Sequence[StepSpec],
        slots: Any,
        symbols: dict[str, int],
        keep: object = None,
        threads: int | None = None,
    ) -> None:
        self.engine = engine
        self.threads = engine.most_threads if threads is None else threads
        self.steps = steps
        self._keep = keep
        self._times = np.zeros(2 * len(steps) + 1, np.int64)
        address = self._times.ctypes.data
        text = profile_text(steps, engine.linked.addresses, address, symbols, engine.max_iterations)
        objects = {"profile": compile_text(text, speed=0, cache=False)}
        self._library = Library(objects, ["tw_profile"], {"tw_barrier": pool().barrier})
        self._dims = np.array([*symbols.values(), 0], np.int64)
        self._slots = slots
        self._run = function(pool().parallel, None, *[ctypes.c_void_p] * 3, ctypes.c_int64)

    @property
    def counts(self) -> Any:
        """How many times each step was called in the last run."""
        return self._times[len(self.steps) : -1]

    def samples(self, repeat: int, warm: int = 0) -> Any:
        """Nanoseconds of each step: one row for each of `repeat` runs, after `warm` runs that are not recorded."""
        times = self._times
        samples = np.zeros((repeat, len(self.steps)), np.int64)
        for k in range(-warm, repeat):
            times[:] = 0
            self._run(self._library["tw_profile"], self._slots.ctypes.data, self._dims.ctypes.data, self.threads)
            if times[-1] == 2:  # `stepwise.py` says what the word means
                raise CallError("numbers among the inputs make no sense for the model: a call says which")
            if times[-1]:
                raise CallError(f"loops of the model would have more than {self.engine.max_iterations} iterations")
            if k >= 0:
                samples[k] = times[: len(self.steps)]
        return samples


def _measure(
    engine: Engine,
    steps: Sequence[StepSpec],
    slots: Any,
    symbols: dict[str, int],
    repeat: int,
    threads: int | None = None,
) -> Profile:
    if repeat < 1:
        raise CallError("nothing would be measured", expected="repeat >= 1", got=repeat)
    clock = StepClock(engine, steps, slots, symbols, threads=threads)
    samples = clock.samples(repeat, warm=2)
    calls = [k for k, step in enumerate(steps) if step.region is None]
    return _summary([steps[k] for k in calls], samples[:, calls], clock.counts[calls], symbols, clock.threads)


def _summary(steps: Sequence[StepSpec], each: Any, counts: Any, symbols: dict[str, int], threads: int) -> Profile:
    medians = np.median(each, axis=0) * 1e-9
    total = float(medians.sum()) or 1e-12
    kernels = []
    for step, seconds, count in zip(steps, medians.tolist(), counts.tolist(), strict=True):
        rates = [
            count * evaluate(work, symbols) / max(seconds, 1e-9) * 1e-9
            if work is not None and known(work, symbols)
            else None
            for work in (step.flops, step.traffic)
        ]
        kernels.append(KernelTime(step.kernel, step.label, seconds, seconds / total, rates[0], rates[1]))
    return Profile(tuple(kernels), float(np.median(each.sum(axis=1))) * 1e-9, symbols, threads)


def run_slots(engine: Engine, weights: Sequence[int], bound: BoundInputs) -> tuple[list[Any], Any]:
    """(objects to keep alive, slot table) for a call of `tw_run`: addresses of inputs, new outputs, packed weights and
    a new arena."""
    m = engine.manifest
    shapes = engine.output_shapes(bound.dims)
    outputs = uninitialised(m.outputs, shapes, bound.arrays)
    placed = engine.memory(bound.dims)
    arena = aligned_bytes(placed.arena)
    arguments = [a.ctypes.data for a in (*bound.arrays, *outputs)]
    temps = [arena.ctypes.data + offset for offset in placed.offsets]
    keep = [bound.arrays, outputs, arena]
    return keep, np.array([*arguments, *weights, *temps, 0], np.int64)
