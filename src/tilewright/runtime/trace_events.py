"""A timeline as data: what threads did when, and as the JSON that trace viewers read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from tilewright.runtime.arena import Interval, roots
from tilewright.runtime.specs import StepSpec, Work, divided, evaluate
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError

CALLS_TRACK = 1000
"""The number of the track with whole calls, after those of the threads."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, in nanoseconds of `time.perf_counter_ns`.

    Args:
        kind: "call" (number `step`), "kernel" (step `step` of the program, with its waits), "wait" (at a barrier in
            that step or after it).
        thread: 0 is the caller's.
    """

    kind: Literal["call", "kernel", "wait"]
    thread: int
    step: int
    begin: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) * 1e-9


@dataclass(frozen=True, slots=True)
class Timeline:
    """Calls, kernels and waits of all threads; `live` are the bytes of temporaries in use at each step, `lost` counts
    records that were dropped."""

    spans: tuple[Span, ...]
    steps: tuple[StepSpec, ...]
    live: tuple[int, ...]
    symbols: dict[str, int]
    threads: int
    lost: int

    def of(self, kind: str) -> list[Span]:
        """The spans of one kind."""
        return [s for s in self.spans if s.kind == kind]

    def waiting(self, step: int) -> float:
        """The share of all threads' time in a step that was spent waiting for each other."""
        total, waits = (sum(s.seconds for s in self.of(kind) if s.step == step) for kind in ("kernel", "wait"))
        return min(1.0, waits / total) if total else 0.0

    def events(self) -> Iterator[dict[str, Any]]:
        """Events of the Trace Event Format: complete ones for spans, counters for memory; times in microseconds."""
        origin = min((s.begin for s in self.spans), default=0)
        yield named_track("process_name", 0, "tilewright")
        for thread in range(self.threads):
            yield named_track("thread_name", thread, "caller's thread" if thread == 0 else f"worker {thread}")
        yield named_track("thread_name", CALLS_TRACK, "calls")
        for s in sorted(self.spans, key=lambda s: (s.begin, -s.end)):
            at, took = (s.begin - origin) / 1e3, (s.end - s.begin) / 1e3
            track = CALLS_TRACK if s.kind == "call" else s.thread
            event = {"ph": "X", "pid": 0, "tid": track, "ts": at, "dur": took, "cat": s.kind}
            yield event | {"name": self._name(s), "args": self._facts(s)}
            if s.kind == "kernel" and s.thread == 0:
                memory = {"temporaries": self.live[s.step]}
                yield {"ph": "C", "pid": 0, "tid": 0, "ts": at, "name": "memory (bytes)", "args": memory}

    def _name(self, span: Span) -> str:
        match span.kind:
            case "call":
                return f"call {span.step}"
            case "wait":
                return "wait"
        return self.steps[span.step].label or self.steps[span.step].kernel

    def _facts(self, span: Span) -> dict[str, Any]:
        if span.kind == "call":
            return dict(self.symbols)
        step = self.steps[span.step]
        facts: dict[str, Any] = {"step": span.step, "kernel": step.kernel}
        if span.kind == "kernel":
            for name, work in (("flops", step.flops), ("bytes", step.traffic)):
                if work is not None and known(work, self.symbols):
                    facts[name] = evaluate(work, self.symbols)
        return facts

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for https://ui.perfetto.dev or chrome://tracing."""
        write_events(path, self.events())


def write_events(path: str | os.PathLike[str], events: Iterable[dict[str, Any]]) -> None:
    """Write events of the Trace Event Format to a file."""
    text = json.dumps({"displayTimeUnit": "ns", "traceEvents": list(events)}, allow_nan=False)
    try:
        Path(path).write_text(text + "\n")
    except OSError as error:
        raise CallError(f"cannot be written: {error.strerror}", where=str(path)) from None


def named_track(what: str, track: int, name: str) -> dict[str, Any]:
    """The event that names the process (`what` is process_name) or a track of it (thread_name)."""
    return {"ph": "M", "pid": 0, "tid": track, "name": what, "args": {"name": name}}


def live_bytes(intervals: Sequence[Interval], steps: int) -> list[int]:
    """Bytes of temporaries in use at each step. Of blocks that share memory, only the largest counts."""
    largest = [dict[int, int]() for _ in range(steps)]
    for root, x in zip(roots(intervals), intervals, strict=True):
        for step in range(x.first, min(x.last + 1, steps)):
            largest[step][root] = max(largest[step].get(root, 0), x.nbytes)
    return [sum(sizes.values()) for sizes in largest]


def known(work: Work, symbols: dict[str, int]) -> bool:
    """Whether the number of operations `work` only depends on `symbols`, not on extents that data decides."""
    return all(divided(term)[0] in symbols for _, terms in work for term in terms)
