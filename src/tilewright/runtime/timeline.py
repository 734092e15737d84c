"""The timeline of threads during calls: kernels, waits and memory over time, for trace viewers.

    model.timeline(obs, calls=3).save("trace.json")        for https://ui.perfetto.dev or chrome://tracing

For tracing, the program's objects are linked a second time, with a barrier that records when a thread arrived and went
on, and an entry that records when each kernel began and ended (`stepwise.py`). The program itself has no code for this.
Each record reads the clock twice, which takes some 50 ns.

A thread passes its log to kernels in place of the barrier's address, which kernels only forward to the barrier.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.native.assembler import I1, I64, PTR, VOID, Function, Module, Value
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime import compilers
from tilewright.runtime.arguments import BoundInputs
from tilewright.runtime.layout import Memory, Struct, function
from tilewright.runtime.profile import run_slots
from tilewright.runtime.specs import StepSpec
from tilewright.runtime.stepwise import PARAMETERS, Stepper, clock
from tilewright.runtime.threads import pool
from tilewright.runtime.trace_events import Span, Timeline, live_bytes
from tilewright.support.errors import CallError

if TYPE_CHECKING:
    from tilewright.runtime.engine import Engine

MAX_NOTES = 1 << 15
"""The most records of one thread; later ones are dropped and counted."""
WARM_CALLS = 2

_LOG = Struct("barrier*", "step", "count", "lost", "notes", offset=0)
"""The log of one thread; `notes` is the beginning of its records: step (~step for a wait in it), begin, end."""
_NOTE_WORDS = 3
_LOG_SIZE = -(-(_LOG.notes + 8 * _NOTE_WORDS * MAX_NOTES) // 128) * 128


def _append(f: Function, log: Value, code: Value, begin: Value, end: Value) -> None:
    count = log[_LOG.count]
    with f.when(count >= MAX_NOTES):
        log[_LOG.lost] += 1
    with f.when(count < MAX_NOTES):
        note = log + (count * (8 * _NOTE_WORDS) + _LOG.notes)
        for k, value in enumerate((code, begin, end)):
            note[8 * k] = value
        log[_LOG.count] = count + 1


def _barrier_text() -> str:
    """LLVM text of a `tw_barrier` that appends each thread's waiting time to its log."""
    m = Module(host_triple())
    with m.function("tw_barrier", VOID, [("log", PTR), ("nthreads", I64)]) as (f, (log, nthreads)):
        with f.when(nthreads <= 1):
            f.ret()
        begin = clock(f)
        f.call(VOID, "tw_unnoted_barrier", log[_LOG.barrier], nthreads)
        _append(f, log, -1 - log[_LOG.step], begin, clock(f))
        f.ret()
    return m.text()


class _Tracer(Stepper):
    """Emits a program's steps so that each thread records the times of its calls in a log."""

    def begin(self, logs: int) -> None:
        """Emit code that passes this thread's log to kernels in place of the barrier's address."""
        f = self.f
        log = f.value(logs, PTR) + self.tid * _LOG_SIZE
        log[_LOG.barrier] = self.barrier
        self.barrier = log

    def call(self, k: int) -> None:
        f, branch = self.f, self.steps[k].branch
        self.barrier[_LOG.step] = k
        begin = self.now()
        self.invoke(k)
        with f.when(self.is_mine(branch[1]) if branch is not None else f.value(1, I1)):
            _append(f, self.barrier, f.value(k, I64), begin, self.now())
        if self.ends_fork(k):
            self.wait()

    def run(self) -> None:
        at = 0
        while at < len(self.steps):
            at = self.step(at)


def _trace_text(
    steps: Sequence[StepSpec], addresses: Mapping[str, int], logs: int, ended: int, values: Mapping[str, int], most: int
) -> str:
    """LLVM text of `tw_trace`, which runs the steps and records times in the threads' logs, of at most `most` records,
    at address `logs`. The word at address `ended` is set if a loop exceeds its limit. `addresses` are the functions' by
    name, `values` the sizes of the call."""
    m = Module(host_triple())
    with m.function("tw_trace", VOID, PARAMETERS) as (f, arguments):
        tracer = _Tracer(f, arguments, steps, addresses, ended - 16 * len(steps), values, most)
        tracer.begin(logs)
        tracer.run()
        f.ret()
    return m.text()


def record(
    engine: Engine,
    objects: Mapping[str, bytes],
    weights: Sequence[int],
    bound: BoundInputs,
    calls: int,
    threads: int,
) -> Timeline:
    """Trace `calls` calls on these inputs, after some warm-up calls.

    Args:
        objects: of the program.
        weights: addresses of the packed parameters.
    """
    if calls < 1:
        raise CallError("nothing would be traced", expected="calls >= 1", got=calls)
    keep, slots = run_slots(engine, weights, bound)
    steps = engine.manifest.run_steps
    symbols = dict(zip((s.name for s in engine.manifest.symbols), bound.dims, strict=True))
    logs, ended = Memory(_LOG_SIZE * threads), Memory(8)
    kernels = {step.kernel for step in steps if step.region is None}
    parts = {**objects, "barrier that notes": compile_text(_barrier_text, speed=0)}
    imports = compilers.imports(engine.manifest.compilers, f"program {engine.manifest.name!r}")
    linked = Library(parts, kernels | {"tw_barrier"}, {"tw_unnoted_barrier": pool().barrier, **imports})
    addresses = {name: linked[name] for name in kernels}
    text = _trace_text(steps, addresses, logs.address, ended.address, symbols, engine.max_iterations)
    entry = Library(
        {"trace": compile_text(text, speed=0, cache=False)}, ["tw_trace"], {"tw_barrier": linked["tw_barrier"]}
    )
    run = function(pool().parallel, None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
    dims = np.array([*symbols.values(), 0], np.int64)
    spans: list[Span] = []
    for k in range(-WARM_CALLS, calls):
        if k == 0:
            for thread in range(threads):
                logs[thread * _LOG_SIZE + _LOG.count] = logs[thread * _LOG_SIZE + _LOG.lost] = 0
        begin = time.perf_counter_ns()
        run(entry["tw_trace"], slots.ctypes.data, dims.ctypes.data, threads)
        if k >= 0:
            spans.append(Span("call", 0, k, begin, time.perf_counter_ns()))
        if ended[0] == 2:  # `stepwise.py` says what the word means
            raise CallError("numbers among the inputs make no sense for the model: a call says which")
        if ended[0]:
            raise CallError(f"loops of the model would have more than {engine.max_iterations} iterations")
    lost = sum(logs[thread * _LOG_SIZE + _LOG.lost] for thread in range(threads))
    for thread in range(threads):
        spans += _spans(logs, thread)
    del keep, linked, entry
    live = live_bytes(engine.intervals(bound.dims), len(steps))
    return Timeline(tuple(spans), steps, tuple(live), symbols, threads, lost)


def _spans(logs: Memory, thread: int) -> list[Span]:
    base = thread * _LOG_SIZE
    at = (base + _LOG.notes) >> 3
    count = logs[base + _LOG.count]
    notes: Any = logs.words[at : at + _NOTE_WORDS * count].reshape(count, _NOTE_WORDS)
    return [
        Span("kernel", thread, code, begin, end) if code >= 0 else Span("wait", thread, ~code, begin, end)
        for code, begin, end in notes.tolist()
    ]
