"""The benchmarks' models: symbolic batch, sizes as the table of the suite states them, sound statistics."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from benchmarks import harness, light_models, models

ort = pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")

_SMALL = [name for name in models.POLICY if name not in ("az6", "az20", "imp84")]


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", _SMALL)
def test_rows_of_a_batch_are_independent(name: str) -> None:
    model = models.POLICY[name]()
    session = _session(model)
    batch = models.example_inputs(model, batch=4)
    axes = {i.name: [d.dim_param for d in i.type.tensor_type.shape.dim].index("batch") for i in model.graph.input}
    single = {k: np.ascontiguousarray(np.take(v, [2], axes[k])) for k, v in batch.items()}
    for output, several, one in zip(
        model.graph.output, session.run(None, batch), session.run(None, single), strict=True
    ):
        axis = [d.dim_param for d in output.type.tensor_type.shape.dim].index("batch")
        np.testing.assert_allclose(np.take(several, [2], axis), one, rtol=1e-4, atol=1e-4)
        assert np.isfinite(several).all()
        assert 0.01 < np.sqrt(np.mean(np.square(several))) < 50


@pytest.mark.parametrize(
    ("build", "megabytes"),
    [(models.POLICY["hok1"], 10.9), (models.POLICY["az6"], 8.6), (models.POLICY["nat"], 6.75)],
)
def test_weight_sizes(build: Callable[[], onnx.ModelProto], megabytes: float) -> None:
    assert build().ByteSize() / 1e6 == pytest.approx(megabytes, rel=0.02)


def test_models_are_reproducible() -> None:
    assert models.POLICY["m64"]().SerializeToString() == models.POLICY["m64"]().SerializeToString()


def test_light_models() -> None:
    assert len(light_models.names()) == 9
    light = light_models.load("squeezenet")
    assert [x.shape for x in light.inputs.values()] == [(1, 3, 224, 224)]
    assert [x.shape for x in light.expected] == [(1, 1000, 1, 1)]


def test_randomized_light_model_has_weights() -> None:
    model = light_models.randomized("squeezenet")
    assert not [n for n in model.graph.node if n.op_type == "ConstantOfShape"]
    assert sum(int(np.prod(i.dims)) for i in model.graph.initializer) > 1_200_000
    (output,) = _session(model).run(None, models.example_inputs(model))
    assert output.std() > 1e-3  # with equal weights the classes would be equal


def test_bootstrap_interval() -> None:
    noise = np.random.default_rng(0).normal(1.0, 0.02, 30)
    interval = harness.bootstrap(0.5 * noise)
    assert interval.low < 0.5 < interval.high
    assert interval.high - interval.low < 0.02


def test_relative_error() -> None:
    want = {"y": np.array([0.0, 10.0], np.float32)}
    assert harness.relative_error({"y": np.array([0.0, 10.0], np.float32)}, want) == 0
    assert harness.relative_error({"y": np.array([0.1, 10.0], np.float32)}, want) == pytest.approx(0.01)
    assert harness.relative_error({"y": np.array([np.nan, 10.0], np.float32)}, want) == float("inf")
    assert harness.relative_error({"y": np.array([0.0, 10.0])}, want) == float("inf")
    assert harness.relative_error({}, want) == float("inf")
