"""Parts that the conformance cases share: build a schedule, run it natively and by the interpreter, compare with
NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.verify import verify_func
from tilewright.schedule.stages import StageSchedule

Array = np.ndarray[Any, Any]
Schedules = Callable[[StageSchedule], Any]


def random(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> Array:
    """Numbers of a type: floats around 0, small integers, booleans."""
    source = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return source.standard_normal(shape).astype(kind)
    if kind.kind == "b":
        return source.integers(0, 2, shape).astype(bool)
    return source.integers(0 if kind.kind == "u" else -9, 10, shape).astype(kind)


def evaluate(
    outputs: te.Tensor | Sequence[te.Tensor],
    inputs: Sequence[tuple[te.Tensor, Any]],
    shapes: Sequence[tuple[int, ...]] | None = None,
    schedule: Schedules | None = None,
    threads: int = 1,
    unchecked: bool = False,
) -> list[Array]:
    """The outputs, computed natively; the interpreter must agree. `unchecked`: data may decide what is read."""
    results = [outputs] if isinstance(outputs, te.Tensor) else list(outputs)
    s = te.create_schedule(results)
    if schedule is not None:
        schedule(s)
    verify_func(s.func)
    arrays = [a for _, a in inputs]
    sizes = shapes or [tuple(int(str(d)) for d in t.shape) for t in results]
    outs = [np.zeros(n, t.dtype.numpy) for n, t in zip(sizes, results, strict=True)]
    args = [t for t, _ in inputs] + results
    func = te.lower(s, args)
    oracle = [np.array(a, t.dtype.numpy) for t, a in inputs] + [o.copy() for o in outs]
    interpret(func, oracle)
    tw.build(s, args, threads=threads, unchecked=unchecked)(*arrays, *outs)
    for native, expected in zip(outs, oracle[len(inputs) :], strict=True):
        close(native, expected)
    return outs


def close(got: Array, expected: Any, tolerance: float = 1e-5) -> None:
    """Equal within a few roundings; integers and booleans exactly."""
    wanted = np.asarray(expected)
    if got.dtype.kind == "f":
        scale = max(1.0, float(np.nanmax(np.abs(wanted), initial=0.0, where=np.isfinite(wanted))))
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * scale)
    else:
        np.testing.assert_array_equal(got, wanted)
