"""`tw.compress`: what it gives computes what its weights say, and keeps the metric that it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compression.recipe import Recipe
from tilewright.quantization.compare import Pairs
from tilewright.support.errors import CallError

Array = np.ndarray[Any, Any]


def model_of(weights: dict[str, Array]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m"]),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("Gemm", ["t", "w2", "b2"], ["y"], transB=1),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, ["batch", 20])],
        [info("y", TensorProto.FLOAT, ["batch", 6])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.fixture
def weights() -> dict[str, Array]:
    """Weights of which most of the work is done by a part, as those of trained models are."""
    rng = np.random.default_rng(4)
    w1 = (rng.standard_normal((20, 3)) @ rng.standard_normal((3, 24)) / 4).astype(np.float32)
    w2 = (rng.standard_normal((6, 24)) * (rng.random((6, 24)) < 0.4) + 0.02 * rng.standard_normal((6, 24))).astype(
        np.float32
    )
    return {"w1": w1, "w2": w2, "b2": rng.standard_normal(6).astype(np.float32)}


@pytest.fixture
def samples() -> list[Array]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal((32, 20)).astype(np.float32) for _ in range(3)]


def computed(weights: dict[str, Array], x: Array) -> Array:
    return np.tanh(x.astype(np.float64) @ weights["w1"]) @ weights["w2"].T + weights["b2"]


def test_the_model_computes_what_its_weights_say(weights: dict[str, Array], samples: list[Array]) -> None:
    small = tw.compress(model_of(weights), calibrate=samples, recipe=Recipe(prune=0.5, values=8), max_drop=1)
    now = {name: np.array(a) for name, a in small.weights.items()}
    assert np.mean(now["w1"] == 0) == 0.5 and np.mean(now["w2"] == 0) == 0.5
    assert len(np.unique(now["w1"])) <= 9
    np.testing.assert_array_equal(now["b2"], weights["b2"])
    np.testing.assert_allclose(small(samples[0]), computed(now, samples[0]), rtol=0, atol=1e-5)
    rows = {row.weight: row for row in small.report.weights}
    assert rows["w1"].nonzero == 0.5 and rows["w1"].values <= 9
    assert small.report.ratio > 3 and "8 values" in str(small.report)


def test_training_brings_the_outputs_back(weights: dict[str, Array], samples: list[Array]) -> None:
    recipe = {"prune": {"share": 0.6, "stages": 2}}
    before = tw.compress(model_of(weights), calibrate=samples, recipe=recipe, max_drop=1).report
    after = tw.compress(
        model_of(weights), calibrate=samples, recipe={**recipe, "train": {"epochs": 60, "rate": 0.01}}, max_drop=1
    )
    assert 1 - after.report.metric[1] < 0.7 * (1 - before.metric[1])
    assert np.mean(np.array(after.weights["w1"]) == 0) == 0.6


def test_movement_prunes_what_training_moves_to_zero(weights: dict[str, Array], samples: list[Array]) -> None:
    """Scores are the sum of -(gradient of the masked weight) * weight, in NumPy, for the one product of a model."""
    rng = np.random.default_rng(8)
    w = rng.standard_normal((20, 16)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    info = helper.make_tensor_value_info
    ends = [info("x", TensorProto.FLOAT, [32, 20])], [info("y", TensorProto.FLOAT, [32, 16])]
    graph = helper.make_graph([node], "g", *ends, [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    recipe = {"prune": {"share": 0.8, "by": "movement", "stages": 2}, "train": {"epochs": 3, "rate": 1e-9}}
    small = tw.compress(model, calibrate=samples, recipe=recipe, max_drop=9)
    now = np.array(small.weights["w"])
    assert np.mean(now == 0) == 0.8 and "by movement" in small.report.recipe
    score, whole = np.zeros(w.shape), w.astype(np.float64)
    for share, stage in ((0.7, 1), (0.8, 2)):
        for _ in range(3):
            for x in samples[:-1]:  # the last one is held out
                order = np.argsort((np.abs(whole) if stage == 1 else score), axis=None, kind="stable")
                mask = np.ones(w.size)
                mask[order[: round(share * w.size)]] = 0
                y = x.astype(np.float64) @ (whole * mask.reshape(w.shape))
                target = x.astype(np.float64) @ whole
                gradient = x.T.astype(np.float64) @ (2 * (y - target) / np.mean(target**2) / y.size)
                score -= gradient * whole
    best = np.sort(np.argsort(score, axis=None)[-int(0.2 * w.size) :])
    assert np.mean(np.isin(np.flatnonzero(now), best)) > 0.95  # f32 and f64 may order scores that are alike otherwise
    by_magnitude = np.flatnonzero(np.abs(w) >= np.sort(np.abs(w), axis=None)[-int(0.2 * w.size)])
    assert not np.array_equal(np.flatnonzero(now), by_magnitude)


@pytest.mark.daily(3)
@pytest.mark.parametrize("train", [{"temperature": 2.0}, {"labels": 1.0}, {"temperature": 1.0, "labels": 0.3}])
def test_probabilities_and_labels_are_followed(
    train: dict[str, float], weights: dict[str, Array], samples: list[Array]
) -> None:
    classes = [np.argmax(computed(weights, x), 1) for x in samples]

    def accuracy(model: Any) -> float:
        return float(np.mean([np.mean(np.argmax(model(x), 1) == y) for x, y in zip(samples, classes, strict=True)]))

    recipe = {"prune": {"share": 0.8, "stages": 2}}
    options: Any = {"calibrate": samples, "metric": accuracy, "max_drop": 1}
    before = tw.compress(model_of(weights), recipe=recipe, **options).report
    recipe["train"] = {"epochs": 60, "rate": 0.01, **train}  # type: ignore[dict-item]
    after = tw.compress(model_of(weights), recipe=recipe, labels=classes, **options).report
    assert before.metric[1] < 0.8 and after.metric[1] > before.metric[1] + 0.15


def test_labels_that_do_not_fit_are_refused(weights: dict[str, Array], samples: list[Array]) -> None:
    recipe = {"prune": {"share": 0.5}, "train": {"epochs": 1, "labels": 0.5}}
    good = [np.zeros(32, np.int64)] * 3
    for labels in (None, good[:2], [np.zeros(31, np.int64)] * 3, [np.full(32, 6)] * 3, [np.zeros(32)] * 3):
        with pytest.raises(CallError, match="labels"):
            tw.compress(model_of(weights), calibrate=samples, recipe=recipe, labels=labels)


def test_low_rank_makes_two_factors(weights: dict[str, Array], samples: list[Array], tmp_path: Path) -> None:
    small = tw.compress(model_of(weights), calibrate=samples, recipe=Recipe(energy=0.999))
    assert {"w1.u", "w1.v"} < set(small.weights) and "w1" not in small.weights
    assert np.shape(small.weights["w1.u"]) == (20, 3)
    np.testing.assert_allclose(small(samples[1]), computed(weights, samples[1]), rtol=0, atol=0.05)


def test_without_a_recipe_the_strongest_that_holds_is_selected(weights: dict[str, Array], samples: list[Array]) -> None:
    rng = np.random.default_rng(9)
    batches = [rng.standard_normal((32, 20)).astype(np.float32) for _ in range(12)]
    small = tw.compress(model_of(weights), calibrate=batches, max_drop=0.1)
    report = small.report
    assert report.metric[1] >= report.metric[0] - 0.1
    assert report.drop < report.drop_at_most <= 0.1 and report.tries[-1].metric == report.metric[1]
    assert all(t.metric < report.metric[1] for t in report.tries[:-1])
    falling = iter(range(0, -100, -1))
    never = tw.compress(model_of(weights), calibrate=samples, metric=lambda m: next(falling), max_drop=0.5)
    assert never.report.recipe == "nothing" and "each recipe" in never.report.reason
    np.testing.assert_array_equal(np.array(never.weights["w1"]), weights["w1"])


@pytest.mark.daily(2)
@pytest.mark.parametrize("count,held_out", [(1, ()), (3, (2,)), (4, (3,)), (8, (3, 7))])
def test_held_out_samples_measure_and_do_not_train(
    count: int, held_out: tuple[int, ...], weights: dict[str, Array]
) -> None:
    """The weights are those of the other samples, bit for bit, and the loss is that of the held-out ones."""
    rng = np.random.default_rng(9)
    data = [rng.standard_normal((32, 20)).astype(np.float32) for _ in range(count)]
    recipe = {"prune": {"share": 0.6}, "train": {"epochs": 20, "rate": 0.01}}
    whole = tw.compress(model_of(weights), calibrate=data, recipe=recipe, max_drop=1)
    assert whole.report.held_out == held_out
    measured = [data[k] for k in held_out] or data
    error = [whole(x) - computed(weights, x) for x in measured]
    drop = np.linalg.norm(error) / np.linalg.norm([computed(weights, x) for x in measured])
    assert whole.report.drop == pytest.approx(drop, rel=1e-3)
    assert whole.report.drop < whole.report.drop_at_most and (whole.report.drop_at_most == 1) == (count == 1)
    others = [x for k, x in enumerate(data) if k not in held_out]
    part = tw.compress(model_of(weights), calibrate=others, recipe=recipe, max_drop=1, metric=lambda _: 1.0)
    assert part.report.held_out == () and part.report.drop == 0
    for name in weights:
        np.testing.assert_array_equal(np.array(whole.weights[name]), np.array(part.weights[name]))


def test_a_recipe_that_falls_too_distant_is_said(weights: dict[str, Array], samples: list[Array]) -> None:
    report = tw.compress(model_of(weights), calibrate=samples, recipe=Recipe(prune=0.9), max_drop=0.01).report
    assert "falls by" in report.reason


def test_the_small_file_holds_the_same_bits(weights: dict[str, Array], samples: list[Array], tmp_path: Path) -> None:
    small = tw.compress(model_of(weights), calibrate=samples, recipe=Recipe(prune=0.8, values=4), max_drop=1)
    small.save(tmp_path / "small.tw", compressed=True)
    small.save(tmp_path / "large.tw")
    assert (tmp_path / "small.tw").stat().st_size < 0.5 * (tmp_path / "large.tw").stat().st_size
    loaded = tw.load(tmp_path / "small.tw")
    np.testing.assert_array_equal(loaded(samples[0]), small(samples[0]))
    loaded.update(weights)
    np.testing.assert_allclose(loaded(samples[0]), computed(weights, samples[0]), rtol=0, atol=1e-5)


def test_bad_input_is_one_clear_error(weights: dict[str, Array], samples: list[Array]) -> None:
    with pytest.raises(CallError, match="no calibration sample"):
        tw.compress(model_of(weights), calibrate=[], recipe=Recipe())
    with pytest.raises(CallError, match="no such table"):
        tw.compress(model_of(weights), calibrate=samples, recipe={"x": {}})
    with pytest.raises(CallError, match="max_drop"):
        tw.compress(model_of(weights), calibrate=samples, max_drop=-1)


@pytest.mark.daily(2)
@pytest.mark.parametrize("seconds,sparse", [(0.5, True), (1.0, False)])
def test_products_leave_zeros_out_where_that_is_faster(
    seconds: float, sparse: bool, samples: list[Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of times decide: here they are given."""
    pairs = Pairs((1.0,) * 8, (seconds,) * 8)
    monkeypatch.setattr("tilewright.compression.entry.in_turns", lambda *_: pairs)
    rng = np.random.default_rng(6)
    wide = {"w1": rng.standard_normal((20, 32)), "w2": rng.standard_normal((6, 32)), "b2": rng.standard_normal(6)}
    model = model_of({name: a.astype(np.float32) for name, a in wide.items()})
    small = tw.compress(model, calibrate=samples, recipe=Recipe(prune=0.9, block=(1, 8), sparse=True), max_drop=9)
    assert ("sparse" in " ".join(step.label for step in small.manifest.run_steps)) == sparse
    now = {name: np.array(a) for name, a in small.weights.items() if not name.endswith(".pattern")}
    np.testing.assert_allclose(small(samples[0]), computed(now, samples[0]), rtol=0, atol=1e-5)
