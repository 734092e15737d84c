"""The subject of the processes that race a record without its model: the record's kernel alone, compiled with one
setting.

The kernel is compiled while the process is set up, before anything is timed.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.builder import BuiltFunction
from tilewright.ir.loops import PrimFunc
from tilewright.measure.contender import Prepared, load_arrays
from tilewright.plans import plan
from tilewright.plans.framework.decisions import forcing
from tilewright.records.record import parse_workload
from tilewright.schedule.state import written_buffers
from tilewright.targets.target import Target

KERNEL = "tilewright.tuning.kernel_subject:kernel"


def kernel(code: str, weights: str, inputs: str, threads: int) -> Prepared:
    """Prepare a kernel for timing: it is called with its arrays, or with several copies of them in turn.

    Args:
        code: a file with the text that `subject` made.
        weights: not used; a kernel's weights are among its arrays.
        inputs: a file with the arrays of all parameters by name.
    """
    said = json.loads(Path(code).read_text())
    func = parse_workload(said["workload"])
    assert isinstance(func, PrimFunc)
    machine = replace(Target.on_host(said["target"], "target"), threads=threads)
    with forcing({said["decision"]: said["setting"]}):
        built = BuiltFunction(plan(func, machine).schedule.func, machine, threads)
    arguments = load_arrays(inputs)
    arrays = [arguments[p.name].astype(p.dtype.numpy) for p in func.params]
    ring = itertools.cycle([[_placed(a) for a in arrays] for _ in range(said["copies"])])
    written = set(written_buffers(func.body))

    def outputs() -> dict[str, Any]:
        mine = [_placed(a) for a in arrays]
        built(*mine)
        return {p.name: a for p, a in zip(func.params, mine, strict=True) if p in written}

    def parts(runs: int) -> Sequence[float]:
        start = time.perf_counter()
        for _ in range(runs):
            built(*next(ring))
        return [(time.perf_counter() - start) / runs]

    return Prepared(lambda: built(*next(ring)), outputs, {}, parts)


def subject(workload: str, decision: str, setting: str, target: str, copies: int) -> str:
    """The text that tells a timing process which kernel to compile: the program `workload` of `decision`, with
    `setting` for `target`, and how many copies of its arrays to use."""
    said = {"workload": workload, "decision": decision, "setting": setting, "target": target, "copies": copies}
    return json.dumps(said)


def _placed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy of an array that begins at a cache line, as the arrays of a model do."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    placed: np.ndarray[Any, Any] = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed


__all__ = ["KERNEL", "kernel", "subject"]
