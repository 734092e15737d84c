"""Loops, recurrences and sizes from data against ONNX Runtime, in turns, one thread each.

    python -m benchmarks.bench_control [--rounds 30] [--write]

Results are compared first: chosen words and boxes must be equal, other numbers close. `--write` puts the table into
results/control.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import tilewright as tw
from benchmarks.control_models import decoder, detector, recurrence
from benchmarks.harness import RESULTS


@dataclass(frozen=True, slots=True)
class Row:
    """Least microseconds of a call on each side, and the median of ONNX Runtime's time by ours."""

    name: str
    ours: float
    onnxruntime: float
    ratio: float


def cases() -> dict[str, tuple[onnx.ModelProto, dict[str, Any]]]:
    """Models with their inputs."""
    rng = np.random.default_rng(0)
    sequence = {"h0": np.zeros((1, 128), np.float32), "xs": rng.standard_normal((100, 1, 64)).astype(np.float32)}
    return {
        "recurrence of 100 steps as Scan": (recurrence(), sequence),
        "greedy decoding of 64 words as Loop": (decoder(), {"first": np.array([[3]])}),
        "detector with NonMaxSuppression": (
            detector(),
            {"image": rng.standard_normal((1, 3, 64, 64)).astype(np.float32)},
        ),
    }


def race(name: str, model: onnx.ModelProto, inputs: dict[str, Any], rounds: int) -> Row:
    """Compare results and time both in turns."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    compiled = tw.compile(model)
    for spec, want in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        got = compiled.run(inputs)[spec.name]
        if want.dtype.kind == "i":
            np.testing.assert_array_equal(got, want, spec.name)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=spec.name)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_seconds(lambda: compiled.run(inputs)))
        theirs.append(_seconds(lambda: session.run(None, inputs)))
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    return Row(name, min(ours) * 1e6, min(theirs) * 1e6, ratio)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_control", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = [race(name, *case, options.rounds) for name, case in cases().items()]
    for row in rows:
        print(f"{row.name:40}  ours {row.ours:9.1f} us  onnxruntime {row.onnxruntime:9.1f} us  ratio {row.ratio:5.2f}")
    if options.write:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        (RESULTS / "control.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
