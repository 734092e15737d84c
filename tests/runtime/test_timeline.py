"""Timelines: every kernel of every call on every thread, waits inside them, memory, and files that viewers read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.programs import affine, copy16
from tilewright.runtime.arena import Interval, plan
from tilewright.runtime.model import Model
from tilewright.runtime.timeline import MAX_NOTES
from tilewright.runtime.trace_events import Timeline, live_bytes
from tilewright.support.errors import CallError

X = np.linspace(0, 1, 50_000, dtype=np.float32)


def traced(threads: int, calls: int = 3) -> Timeline:
    return Model(affine(), threads=threads).timeline(X, calls=calls, threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_thread_does_each_kernel_of_each_call(threads: int) -> None:
    result = traced(threads)
    assert result.threads == threads
    assert result.lost == 0
    assert [s.step for s in result.of("call")] == [0, 1, 2]
    done = Counter((s.thread, s.step) for s in result.of("kernel"))
    assert done == {(thread, step): 3 for thread in range(threads) for step in range(3)}


def test_kernels_lie_in_calls_and_waits_in_kernels() -> None:
    result = traced(2)
    calls = result.of("call")
    for s in result.of("kernel"):
        assert any(c.begin <= s.begin <= s.end <= c.end for c in calls)
    waits = result.of("wait")
    assert waits
    for w in waits:
        own = [s for s in result.of("kernel") if (s.thread, s.step) == (w.thread, w.step)]
        assert any(s.begin <= w.begin <= w.end <= s.end for s in own)
    assert all(0 <= result.waiting(step) <= 1 for step in range(3))
    assert not traced(1).of("wait"), "one thread waits for nobody"


def test_results_are_those_of_ordinary_calls() -> None:
    """The traced program is another one with a barrier of its own: the model's stays as it is."""
    model = Model(affine(), threads=2)
    before = model(X)[0]
    model.timeline(X, threads=2)
    assert (model(X)[0] == before).all()
    assert model.timeline(X, threads=64).threads == 2, "no more threads than the user allows"


def test_the_file_is_what_viewers_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traced(2).save(path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "caller's thread", 1: "worker 1", 1000: "calls"}
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans)
    assert [e["ts"] for e in spans] == sorted(e["ts"] for e in spans)
    assert {e["name"] for e in spans if e["cat"] == "kernel"} == {"exp", "multiply + add", "last"}
    assert {e["name"] for e in spans if e["cat"] == "wait"} == {"wait"}
    assert [(e["name"], e["args"]) for e in spans if e["cat"] == "call"] == [
        (f"call {k}", {"n": X.size}) for k in range(3)
    ]
    (work,) = {json.dumps(e["args"]) for e in spans if e["name"] == "multiply + add"}
    assert json.loads(work) == {"step": 1, "kernel": "affine", "flops": 6 * X.size, "bytes": 16 * X.size + 24}
    memory = [e["args"]["temporaries"] for e in events if e["ph"] == "C"]
    assert memory == [X.nbytes, X.nbytes, 0] * 3
    with pytest.raises(CallError, match="cannot be written"):
        traced(1).save(tmp_path / "nowhere" / "trace.json")


def test_excess_notes_are_counted() -> None:
    """The limit stays as it is: it is a number of native code that all traces of the machine share."""
    calls = MAX_NOTES // 3 + 1
    result = Model(affine(), threads=1).timeline(X[:1], calls=calls, threads=1)
    kernels = result.of("kernel")
    assert len(kernels) == MAX_NOTES
    assert [s.step for s in kernels[-3:]] == [(MAX_NOTES - k) % 3 for k in (3, 2, 1)]
    assert result.lost == 3 * calls - MAX_NOTES


def test_nothing_to_trace() -> None:
    model = Model(copy16())
    with pytest.raises(CallError, match="calls >= 1"):
        model.timeline(np.zeros(16, np.float32), calls=0)
    with pytest.raises(CallError):
        model.timeline()


def test_live_bytes_reach_the_planners_bound() -> None:
    source = np.random.default_rng(0)
    for _ in range(30):
        blocks: list[Interval] = []
        for k in range(12):
            first = int(source.integers(0, 20))
            alias = int(source.integers(0, k)) if k and source.random() < 0.3 else None
            blocks.append(Interval(first, int(source.integers(first, 21)), int(source.integers(0, 500)), alias))
        assert max(live_bytes(blocks, 21)) <= sum(b.nbytes for b in blocks)
        assert max(live_bytes(blocks, 21)) == plan(blocks).live
