"""The runtime in a Python of another machine: calls, threads, weights, files, stores; `arm_python.py` starts it."""

from __future__ import annotations

import multiprocessing
import platform
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from benchmarks import policy_suite
from tilewright import te
from tilewright.runtime.target import check_target
from tilewright.support.errors import ArtifactError, CallError
from tilewright.targets.target import Target

POLICY = """
    <ir_version: 9, opset_import: ["" : 20]>
    policy (float[batch, 4] obs) => (float[batch, 2] action)
    <float[4, 2] weight = {1, 2, 3, 4, 5, 6, 7, 8}> { sum = MatMul(obs, weight)  action = Tanh(sum) }
"""
WEIGHT = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
RNG = np.random.default_rng(0)


def observed(batch: int) -> np.ndarray:
    return RNG.uniform(-0.1, 0.1, (batch, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> tw.Model:
    return tw.compile(onnx.parser.parse_model(POLICY))


def test_where_this_runs() -> None:
    assert platform.machine() == "aarch64"
    assert Target.host().triple.startswith("aarch64")


def test_calls_of_any_batch_into_new_memory_and_the_callers(model: tw.Model) -> None:
    for batch in (1, 3, 17):
        obs = observed(batch)
        np.testing.assert_allclose(model(obs), np.tanh(obs @ WEIGHT), rtol=1e-5, atol=1e-6)
    out = np.zeros((17, 2), np.float32)
    assert model(obs, out=out) is out and model.run({"obs": obs})["action"].tolist() == out.tolist()
    with pytest.raises(CallError):
        model(obs.astype(np.float64))


def test_new_weights_and_a_file(model: tw.Model, tmp_path: Path) -> None:
    obs = observed(5)
    model.update({"weight": -WEIGHT})
    np.testing.assert_allclose(model(obs), np.tanh(-obs @ WEIGHT), rtol=1e-5, atol=1e-6)
    model.save(tmp_path / "policy.tw")
    loaded = tw.load(tmp_path / "policy.tw")
    np.testing.assert_array_equal(loaded(obs), model(obs))
    model.update({"weight": WEIGHT})


def test_threads_share_a_call() -> None:
    proto, obs = policy_suite.m256(), RNG.standard_normal((64, 376)).astype(np.float32)
    alone = tw.compile(proto, dims={"batch": 64}, threads=1)
    shared = tw.compile(proto, dims={"batch": 64}, threads=2)
    for a, b in zip(alone(obs), shared(obs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_kernel_of_a_schedule() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    y = te.compute((n,), lambda i: x[i] * 2.0 + 1.0, name="y")
    s = te.create_schedule(y)
    s[y].vectorize(s[y].split(y.axis[0], factor=4)[1])
    array, out = RNG.standard_normal(10).astype(np.float32), np.zeros(10, np.float32)
    tw.build(s, [x, y])(array, out)
    np.testing.assert_allclose(out, array * 2 + 1, rtol=1e-6)


def test_a_program_for_another_machine_is_refused() -> None:
    program = tw.compile_program(onnx.parser.parse_model(POLICY), target="x86-64-v3")
    with pytest.raises(ArtifactError, match="another machine"):
        check_target(program.manifest.target, "here")


def _act(folder: str, obs: np.ndarray, pipe: Connection) -> None:
    pipe.send(tw.attach("policy", directory=folder).versioned(obs))


def test_a_store_serves_another_process(tmp_path: Path, model: tw.Model) -> None:
    obs, folder = observed(3), str(tmp_path)
    with tw.Publisher("policy", model, directory=folder) as publisher:
        publisher.publish({"weight": 2 * WEIGHT}, version=7)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_act, args=(folder, obs, theirs))
        process.start()
        assert ours.poll(300)
        action, version = ours.recv()
        process.join()
    assert version == 7
    np.testing.assert_allclose(action, np.tanh(obs @ (2 * WEIGHT)), rtol=1e-5, atol=1e-6)
