"""The loss that `tw.quantize` measures, on samples that have not calibrated, and its bound for other calls."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.quantization.test_quantize import Array, dense, model_of, samples
from tilewright.frontend.read import import_model
from tilewright.quantization import compare
from tilewright.quantization.calibrate import Maker, scales_of
from tilewright.quantization.ranges import METHODS
from tilewright.quantization.sites import canonical, sites_of
from tilewright.support.errors import CallError


def loss(model: tw.Model, exact: tw.Model, data: list[Array]) -> float:
    """The relative error over all of these samples, in f64."""
    ours, theirs = (np.float64([np.asarray(m(x)) for x in data]) for m in (model, exact))
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.daily(2)
@pytest.mark.parametrize("count,folds,smooth", [(2, 2, False), (4, 4, True), (8, 5, False), (8, 5, True)])
def test_each_sample_measures_a_fit_of_the_others(count: int, folds: int, smooth: bool) -> None:
    """The reference: a model of its own for each fold, quantised by the samples outside of it."""
    rng = np.random.default_rng(52)
    model, data = dense(rng), samples(rng, 4, 24, count=count)
    if smooth:  # one channel of the input is large in all samples, so that each choice of them smooths it
        for x in data:
            x[:, 3] *= 100
        small = numpy_helper.to_array(model.graph.initializer[0]).copy()
        small[3] /= 100
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(small, "w1"))
    options: dict[str, Any] = {"precision": "int8", "max_drop": 1, "method": "minmax", "smooth": smooth}
    report = tw.quantize(model, calibrate=data, **options).report
    exact, square, whole = tw.compile(model), 0.0, 0.0
    for k in range(folds):
        others = [x for i, x in enumerate(data) if i % folds != k]
        q = tw.quantize(model, calibrate=others, **options)
        for x in data[k::folds]:
            y = np.float64(exact(x))
            square, whole = square + np.sum((q(x) - y) ** 2), whole + np.sum(y**2)
    assert report.drop == pytest.approx((square / whole) ** 0.5, rel=1e-3)
    assert (report.samples, report.folds) == (count, folds)
    assert report.drop < report.drop_at_most < 1 and f"in {folds} folds" in str(report)
    assert report.as_dict()["drop_at_most"] == report.drop_at_most and report.as_dict()["folds"] == folds


@pytest.mark.daily(2)
@pytest.mark.parametrize("method", METHODS)
def test_a_choice_of_samples_has_scales_of_its_own(method: Any) -> None:
    """Scales are those without the others, up to the width of a histogram's bins."""
    rng = np.random.default_rng(53)
    read = import_model(dense(rng))
    maker = Maker(replace(read, graph=canonical(read.graph)), 1, {})
    feeds = {k: {"x": x} for k, x in enumerate(samples(rng, 4, 24, count=6))}
    feeds[5]["x"] *= 50
    part = {k: feeds[k] for k in range(5)}
    values = [v for site in sites_of(maker.read.graph) for v in site.activations]
    both = scales_of(maker, [feeds, part], values, method)
    (alone,) = scales_of(maker, [part], values, method)
    for value in values:
        assert both[1][value].scale == pytest.approx(alone[value].scale, rel=0.0 if method == "minmax" else 0.1)
        assert both[0][value].scale > (3 if method in ("minmax", "percentile") else 1.1) * alone[value].scale


@pytest.mark.daily(2)
@pytest.mark.parametrize("seed,count", [(0, 8), (1, 8), (10, 8), (12, 8), (2, 3)])
def test_other_calls_lose_no_more_than_is_allowed(seed: int, count: int) -> None:
    """One row a sample of a wide layer: ranges and mean errors of few rows suit no others. Where anything is taken,
    as by a metric that is always content, they lose more than 0.012."""
    rng = np.random.default_rng(seed)
    model = dense(rng, inputs=32, hidden=128, outputs=8)
    data, fresh = samples(rng, 1, 32, count=count), samples(rng, 1, 32, count=64)
    exact = tw.compile(model)
    content = tw.quantize(model, calibrate=data, precision="int8", max_drop=0.012, metric=lambda _: 1.0)
    assert loss(content, exact, fresh) > 0.012
    q = tw.quantize(model, calibrate=data, precision="int8", max_drop=0.012)
    assert "fp32" in {r.type for r in q.report.layers} and loss(q, exact, fresh) <= 0.012
    assert q.report.drop_at_most <= 0.012 and (q.report.chosen == "int8" or "the metric falls" in q.report.reason)


def test_a_single_sample_bounds_no_other_call() -> None:
    rng = np.random.default_rng(52)
    model, (x,) = dense(rng), samples(rng, 4, 24, count=1)
    refused = tw.quantize(model, calibrate=x, precision="int8", max_drop=0.9).report
    assert refused.chosen == "fp32" and "give two or more" in refused.reason
    accepted = tw.quantize(model, calibrate=x, precision="int8", max_drop=1).report
    assert accepted.chosen == "int8" and accepted.drop_at_most == 1 and "of no other call" in str(accepted)
    weights = tw.quantize(model, calibrate=x, precision="int8w", max_drop=0.03).report  # which nothing is fitted to
    assert weights.chosen == "int8w" and weights.drop < weights.drop_at_most <= 0.03


@pytest.mark.parametrize("precision", ["int8", "int4w"])
def test_labels_say_nothing_of_a_loss(precision: Any) -> None:
    """Classes of a few samples may be the same for both models, while those of other calls are not."""
    rng = np.random.default_rng(52)
    weights = {"w": rng.standard_normal((24, 8)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["s"]), helper.make_node("ArgMax", ["s"], ["y"], axis=1)]
    model = model_of(nodes, weights, [4, 24], [4, 1])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    data, fresh = samples(rng, 4, 24, count=8), samples(rng, 4, 24, count=200)
    refused = tw.quantize(model, calibrate=data, precision=precision, max_drop=0.9).report
    assert refused.chosen == "fp32" and "give a metric" in refused.reason and refused.drop_at_most == 0
    accepted = tw.quantize(model, calibrate=data, precision=precision, max_drop=1)
    assert accepted.report.chosen == precision and accepted.report.drop_at_most == 1
    assert "the loss is not known" in str(accepted.report)
    exact = tw.compile(model)
    assert any((np.asarray(exact(x)) != np.asarray(accepted(x))).any() for x in fresh)


def test_a_metric_of_the_caller_calibrates_on_all_samples() -> None:
    rng = np.random.default_rng(52)
    report = tw.quantize(
        dense(rng), calibrate=samples(rng, 4, 24, count=8), precision="int8", max_drop=1, metric=lambda _: 1.0
    ).report
    assert report.folds == 0 and report.samples == 8 and report.drop_at_most == report.drop == 0


@pytest.mark.parametrize("count,chosen", [(8, "fp32"), (4000, "int8")])
def test_a_metric_of_one_number_a_sample_has_a_margin(count: int, chosen: str) -> None:
    """Half of the answers that int8 changes become worse: the mean falls by 0.005 of 0.01."""
    rng = np.random.default_rng(52)
    seen: list[Any] = []

    def metric(model: tw.Model) -> Any:
        seen.append(model)
        return 1 - np.resize([0.0, 0.01], count) * (len(seen) > 1)

    report = tw.quantize(
        dense(rng), calibrate=samples(rng, 4, 24), precision="int8", max_drop=0.0055, metric=metric
    ).report
    assert report.chosen == chosen and report.drop == pytest.approx(0.005 if chosen == "int8" else 0.0)
    assert chosen == "int8" or "samples like these would show" in report.reason


def test_errors_name_samples_by_the_numbers_of_the_caller() -> None:
    """A layer reads an infinite value, of which the output shows nothing: sample 4 is the fourth that calibrates."""
    rng = np.random.default_rng(1)
    weights = {n: rng.standard_normal((24, 24)).astype(np.float32) for n in ("w1", "w2")}
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["m"]), helper.make_node("Tanh", ["m"], ["t"])]
    nodes.append(helper.make_node("MatMul", ["t", "w2"], ["y"]))
    data = samples(rng, 4, 24, count=8)
    data[4][0, 0] = np.inf
    with pytest.raises(CallError, match=r"calibration sample 4: .* infinite"):
        tw.quantize(model_of(nodes, weights, [4, 24], [4, 24]), calibrate=data, precision="int8")


@pytest.mark.parametrize("threads,gpu,clock", [(1, False, "thread"), (2, False, "wall"), (1, True, "wall")])
def test_calls_of_one_thread_are_timed_by_its_processor_time(
    threads: int, gpu: bool, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks that stand still but for calls: a call takes 1 s of the thread and 3 s of the wall."""
    now = {"thread": 0.0, "wall": 0.0}

    def run(_: Any) -> None:
        now["thread"] += 1.0
        now["wall"] += 3.0

    monkeypatch.setattr(compare, "thread_time", lambda: now["thread"])
    monkeypatch.setattr(compare, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(compare, "is_gpu", lambda _: gpu)
    program = SimpleNamespace(manifest=SimpleNamespace(target=None))
    model: Any = SimpleNamespace(run=run, threads=threads, program=program)
    assert compare.in_turns(model, model, {}).seconds == ((1.0, 1.0) if clock == "thread" else (3.0, 3.0))
