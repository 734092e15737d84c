"""The loss that `tw.quantize` measures: on samples that have not calibrated, where there are enough of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.quantization.test_quantize import Array, dense, model_of, samples
from tilewright.quantization import compare
from tilewright.support.errors import CallError


def loss(model: tw.Model, exact: tw.Model, data: list[Array]) -> float:
    """The relative error over all of these samples, in f64."""
    ours, theirs = (np.float64([np.asarray(m(x)) for x in data]) for m in (model, exact))
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize("count,held_out", [(7, ()), (8, (3, 7)), (15, (3, 7, 11))])
def test_every_fourth_of_eight_samples_and_more_measures(count: int, held_out: tuple[int, ...]) -> None:
    rng = np.random.default_rng(52)
    model, data = dense(rng), samples(rng, 4, 24, count=count)
    q = tw.quantize(model, calibrate=data, precision="int8", max_drop=1)
    report = q.report
    measuring = [data[k] for k in held_out] or data
    assert report.drop == pytest.approx(loss(q, tw.compile(model), measuring), rel=1e-5)
    assert (report.samples, report.held_out) == (count, held_out)
    assert f"{count - len(held_out)} of {count} samples" in report.measured and report.measured in str(report)
    assert ("held out" in report.measured) and ("none held out" in report.measured) == (not held_out)
    assert report.as_dict()["held_out"] == list(held_out)


def test_held_out_samples_say_nothing_of_ranges() -> None:
    """The model is that of the other samples, bit for bit, whatever the held-out ones hold."""
    rng = np.random.default_rng(53)
    model, data = dense(rng), samples(rng, 4, 24, count=8)
    others = [x for k, x in enumerate(data) if k % 4 != 3]
    whole, part = (tw.quantize(model, calibrate=d, precision="int8", max_drop=1) for d in (data, others))
    for x in data:
        np.testing.assert_array_equal(whole(x), part(x))
    assert whole.report.drop != part.report.drop
    assert [r.error for r in whole.report.layers] == [r.error for r in part.report.layers]


@pytest.mark.parametrize("seed", [0, 5])
def test_a_model_that_suits_its_samples_alone_stays_in_f32(seed: int) -> None:
    """One row a sample of a wide layer: the ranges and mean errors of six rows suit no others."""
    rng = np.random.default_rng(seed)
    model = dense(rng, inputs=32, hidden=128, outputs=8)
    data, fresh = samples(rng, 1, 32, count=8), samples(rng, 1, 32, count=64)
    exact = tw.compile(model)
    six = [data[k] for k in (0, 1, 2, 4, 5, 6)]
    suits = tw.quantize(model, calibrate=six, precision="int8", max_drop=0.012)
    assert suits.report.chosen == "int8" and suits.report.drop <= 0.012 < 0.1 < loss(suits, exact, fresh)
    q = tw.quantize(model, calibrate=data, precision="int8", max_drop=0.012)
    assert "fp32" in {r.type for r in q.report.layers} and loss(q, exact, fresh) <= 0.012


def test_a_metric_of_the_caller_calibrates_on_all_samples() -> None:
    rng = np.random.default_rng(52)
    report = tw.quantize(
        dense(rng), calibrate=samples(rng, 4, 24, count=8), precision="int8", max_drop=1, metric=lambda _: 1.0
    ).report
    assert report.held_out == () and "8 of 8 samples" in report.measured and "the caller's" in report.measured


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
