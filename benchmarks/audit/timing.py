"""The second phase of an audit: calls of compiled layers in turns with their peers, and the time of each kernel."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tilewright as tw
from benchmarks.audit.records import Compiled, Records, Timed
from benchmarks.random_layers import Layer

TURNS = 9
TURN_SECONDS = 0.002
PROFILES = 3
PROFILE_SECONDS = 0.006

Call = Callable[[], Any]


def keep_freed_memory() -> None:
    """Tell the C library to keep what is freed, so that a result is not charged for the page faults of fresh memory,
    which some allocators spare their frameworks; see `benchmarks.harness.contender`."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option, value in ((-4, 0), (-1, 1 << 30), (-2, 64 << 20)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            libc.mallopt(option, value)


def time_layer(row: Compiled, layer: Layer, records: Records, *, peer: bool, inductor: bool) -> None:
    """Time a layer by all algorithms, by exact ones where these differ, and, if `peer`, in eager PyTorch, and by
    Inductor if that is asked for too."""
    model = tw.load(records.program(row.number, "auto"), threads=1)
    inputs = layer.inputs()
    calls: dict[str, Call] = {"auto": lambda: model(*inputs)}
    if row.differs:
        exact = tw.load(records.program(row.number, "exact"), threads=1)
        calls["exact"] = lambda: exact(*inputs)
    difference = None
    if peer:
        calls |= _peer(layer, model, inputs)
        difference = _difference(calls["auto"](), calls["eager"]())
    if inductor:
        calls["inductor"] = _inductor(layer, inputs)
    seconds = dict(zip(calls, _in_turns(list(calls.values())), strict=True))
    kernels = _profiled(model, inputs, seconds["auto"]) if row.kernels else ()
    others = (seconds.get(name) for name in ("exact", "eager"))
    records.add(Timed(row.number, seconds["auto"], *others, kernels, difference, seconds.get("inductor")))


def _peer(layer: Layer, model: tw.Model, inputs: Sequence[np.ndarray]) -> dict[str, Call]:
    """Both sides on the same tensors."""
    import torch

    from benchmarks.audit.eager import eager

    run = eager(layer.graph, layer.weights())
    tensors = [torch.from_numpy(x) for x in inputs]
    return {"auto": lambda: model(*tensors), "eager": lambda: run(*tensors)}


def _inductor(layer: Layer, inputs: Sequence[np.ndarray]) -> Call:
    import torch

    from benchmarks.audit.inductor import inductor

    compiled, tensors = inductor(layer), [torch.from_numpy(x) for x in inputs]
    with torch.inference_mode():
        compiled(*tensors)
    torch.compiler.set_stance(skip_guard_eval_unsafe=True)  # the inputs stay the same: 30 µs less a call
    return lambda: compiled(*tensors)


def _difference(got: Any, want: Any) -> float:
    """The largest difference, relative to the largest element; infinite where one side has NaN."""
    got, want = (np.asarray(a, np.float64) for a in (got, want))
    if got.shape != want.shape or not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return float("inf")
    return float(np.abs(got - want).max(initial=0.0) / (np.abs(want).max(initial=0.0) or 1.0))


def _in_turns(calls: Sequence[Call]) -> list[float]:
    """Seconds of each call, the least of its turns: what else runs here only makes turns longer."""
    counts, best = [1] * len(calls), [float("inf")] * len(calls)
    for turn in range(TURNS + 2):
        for k, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(counts[k]):
                call()
            seconds = (time.perf_counter() - start) / counts[k]
            if turn < 2:  # the first call loads code and touches memory, the second says how many make a turn
                counts[k] = 1 if turn == 0 else max(1, min(1000, round(TURN_SECONDS / seconds)))
            else:
                best[k] = min(best[k], seconds)
    return best


def _profiled(model: tw.Model, inputs: Sequence[np.ndarray], seconds: float) -> tuple[float, ...]:
    """Seconds of each kernel: medians of runs, the least of a few profiles."""
    repeat = max(3, min(100, round(PROFILE_SECONDS / seconds)))
    clock = model.step_clock(*inputs)
    medians = [np.median(clock.samples(repeat, warm=1), axis=0) for _ in range(PROFILES)]
    return tuple((np.min(medians, axis=0) * 1e-9).tolist())
