"""The policy suite end to end: right outputs at every batch, live weights, files, threads, one compile for all."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tilewright as tw
from benchmarks import harness, models

ort = pytest.importorskip("onnxruntime")

Arrays = dict[str, np.ndarray[Any, Any]]

SUITE = ("m64", "m256", "nat", "nl", "imp", "hok1", "dz", "az6")
TOLERANCE = 1e-4


class Case:
    """One model with its compiled form."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.proto = models.POLICY[name]()
        self.model = tw.compile(self.proto, threads=1)
        self._session = ort.InferenceSession(self.proto.SerializeToString(), providers=["CPUExecutionProvider"])

    def inputs(self, batch: int, seed: int = 0) -> Arrays:
        return models.example_inputs(self.proto, batch, seed)

    def expected(self, inputs: Arrays) -> Arrays:
        names = [o.name for o in self.proto.graph.output]
        return dict(zip(names, self._session.run(None, inputs), strict=True))

    def other_weights(self, seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        weights = {i.name: numpy_helper.to_array(i) for i in self.proto.graph.initializer}
        return {k: (v * rng.uniform(0.5, 1.5, v.shape)).astype(v.dtype) for k, v in weights.items()}

    def with_weights(self, weights: Arrays) -> onnx.ModelProto:
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
        return proto


@pytest.fixture(scope="module", params=SUITE)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    return Case(request.param)


def _bytes(outputs: Arrays) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in outputs.items()}


@pytest.mark.parametrize("batch", [1, 2, 5, 8, 33])
def test_one_compile_is_right_at_every_batch(case: Case, batch: int) -> None:
    inputs = case.inputs(batch, seed=batch)
    assert harness.relative_error(case.model.run(inputs), case.expected(inputs)) < TOLERANCE


def test_outputs_into_the_callers_buffers(case: Case) -> None:
    inputs = case.inputs(3)
    expected = case.model.run(inputs)
    buffers = {name: np.full_like(value, np.nan) for name, value in expected.items()}
    case.model.run(inputs, out=buffers)
    assert _bytes(buffers) == _bytes(expected)


def test_number_of_threads_changes_rounding_at_most(case: Case) -> None:
    parallel = tw.compile(case.proto, threads=2)
    for batch in (1, 7):
        inputs = case.inputs(batch)
        assert harness.relative_error(parallel.run(inputs), case.model.run(inputs)) < 1e-5


def test_update_equals_a_fresh_compile(case: Case) -> None:
    weights = case.other_weights(seed=1)
    inputs = case.inputs(2)
    model = tw.compile(case.proto, threads=1)
    before = _bytes(model.run(inputs))
    model.update(weights)
    after = _bytes(model.run(inputs))
    assert after == _bytes(tw.compile(case.with_weights(weights), threads=1).run(inputs))
    assert after != before


_LOAD = """
import hashlib, sys, numpy as np, tilewright as tw
outputs = tw.load(sys.argv[1]).run(dict(np.load(sys.argv[2])))
print(hashlib.sha256(b"".join(np.asarray(outputs[k]).tobytes() for k in sorted(outputs))).hexdigest())
"""


def test_saved_model_gives_the_same_bytes_in_a_fresh_process(case: Case, tmp_path: Path) -> None:
    inputs = case.inputs(2)
    case.model.save(tmp_path / "model.tw")
    np.savez(tmp_path / "inputs.npz", **inputs)
    outputs = case.model.run(inputs)
    digest = hashlib.sha256(b"".join(np.asarray(outputs[k]).tobytes() for k in sorted(outputs))).hexdigest()
    arguments = [sys.executable, "-c", _LOAD, str(tmp_path / "model.tw"), str(tmp_path / "inputs.npz")]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == digest


def test_eight_python_threads_at_once(case: Case) -> None:
    feeds = [case.inputs(batch=1 + i % 3, seed=i) for i in range(8)]
    expected = [_bytes(case.model.run(f)) for f in feeds]

    def work(i: int) -> bool:
        return all(_bytes(case.model.run(feeds[i])) == expected[i] for _ in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
