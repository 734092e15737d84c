"""Calibration data that do not fit, tell nothing or are broken: one clear error or warning each, by every door."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tests.quantization.test_quantize import Array, dense, model_of
from tilewright.cli.inputs import read_arrays
from tilewright.frontend.read import import_model
from tilewright.quantization.ranges import METHODS, Histogram
from tilewright.quantization.samples import rows_of
from tilewright.support.errors import CallError

GOOD = np.random.default_rng(3).standard_normal((4, 24)).astype(np.float32)


def filled(value: Any, kind: str = "f4", shape: tuple[int, ...] = (4, 24)) -> Array:
    return np.full(shape, value, kind)


def with_one(value: float) -> Array:
    x = GOOD.copy()
    x[1, 3] = value
    return x


def ends() -> Iterator[Array]:
    """A generator whose file ends too early."""
    yield GOOD
    raise OSError("truncated file")


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (lambda: None, "calibrate: samples are arrays.* got NoneType"),
    "a number": (lambda: 3, "arrays, tuples or dictionaries"),
    "a path": (lambda: "samples.npz", "got str\nhint: np.load"),
    "empty list": (list, "no calibration sample"),
    "no rows": (lambda: [filled(0, shape=(0, 24))], "calibration sample 0: .* got 0"),
    "NaN": (
        lambda: [GOOD, GOOD, with_one(np.nan)],
        "calibration sample 2: input 'x' holds a value that is not a number",
    ),
    "infinity": (lambda: [filled(np.inf)], "sample 0: output 'y' of the model in f32 holds a value that is not a num"),
    "beyond f32": (lambda: [GOOD, filled(3e38)], "calibration sample 1: output 'y'"),
    "columns": (lambda: [GOOD, filled(0, shape=(4, 23))], "sample 1: input 'x': wrong dimension 1: expected .*24.*23"),
    "rank": (lambda: [GOOD[0]], "sample 0: input 'x': wrong rank"),
    "f64": (lambda: [GOOD.astype("f8")], "sample 0: input 'x': wrong element type: expected f32.* got f64"),
    "integers": (lambda: [filled(1, "i8")], "wrong element type: .* got i64.*\nhint: convert it"),
    "texts": (lambda: [filled("a", "U1")], "wrong element type"),
    "objects": (lambda: [filled(None, "O")], "wrong element type"),
    "complex": (lambda: [filled(1j, "c8")], "wrong element type"),
    "names": (lambda: [{"z": GOOD}] * 50, "^calibration sample 0: does not fit the model's inputs: expected x, got z$"),
    "two arrays": (lambda: [(GOOD, 1)], "does not fit the model's inputs: expected x, got 2 arrays"),
    "a list of rows": (lambda: [GOOD.tolist()], "got 4 arrays\nhint: a list is an array for each input"),
    "ragged": (lambda: [{"x": [[1.0], [2.0, 3.0]]}], "calibration sample 0: is no array"),
    "raises": (ends, "calibration sample 1: the samples ended with OSError: truncated file"),
}


@pytest.mark.parametrize("case", BAD)
def test_one_error_names_the_sample(case: str) -> None:
    model = dense(np.random.default_rng(52))
    make, message = BAD[case]
    for door in (tw.quantize, tw.compress):
        with pytest.raises(CallError, match=message) as error:
            door(model, calibrate=make())
        assert not error.value.problems  # one, however many samples are wrong in this way


@pytest.mark.parametrize("precision", ["int8", "int8w", "fp16", "bf16"])
def test_numbers_that_are_none_are_refused_in_every_type(precision: Any) -> None:
    """Also by callers with a metric of their own, to whom the model's outputs are no concern of ours."""
    for metric in (None, lambda _: 1.0):
        with pytest.raises(CallError, match="not a number"):
            tw.quantize(
                dense(np.random.default_rng(1)), calibrate=[with_one(np.nan)], precision=precision, metric=metric
            )


@pytest.mark.daily(3)
@pytest.mark.parametrize("value", [0.0, 5.0, 1e-45])
def test_constants_give_a_model_and_a_warning(value: float) -> None:
    data = [filled(value)] * 2
    options: dict[str, Any] = {"correct_bias": False, "smooth": False}
    q = tw.quantize(dense(np.random.default_rng(2)), calibrate=data, precision="int8", max_drop=1, **options)
    assert np.isfinite(q(data[0])).all()
    (warning,) = q.report.warnings
    assert warning.startswith("input 'x' is ") and "in all calibration samples" in warning


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 1e-45, -3e-39, 3e38])
def test_ranges_of_constants_have_scales(value: float, method: Any) -> None:
    histogram = Histogram(value, value)
    histogram.add(np.full(100, value, np.float32))
    scale = histogram.scale(method)
    assert 0 < scale.scale < np.inf and 0 <= scale.zero <= 255
    assert scale.scale == 1.0 if abs(value) < 1e-35 else abs(scale.range[value > 0] - value) <= 1e-6 * abs(value)


def test_a_single_sample_is_warned_of() -> None:
    report = tw.quantize(dense(np.random.default_rng(2)), calibrate=GOOD, precision="int8", max_drop=1).report
    assert len(report.warnings) == 1 and "single calibration sample" in report.warnings[0]
    assert "warning: there is a single calibration sample" in str(report)


def test_channels_without_a_range() -> None:
    """Channels of the input and filters that are 0 everywhere: their codes are 0, smoothing divides by nothing."""
    rng = np.random.default_rng(4)
    w1, w2 = rng.standard_normal((24, 32)).astype("f4"), rng.standard_normal((32, 10)).astype("f4")
    w1[:, 7] = w2[:, 3] = 0
    x = GOOD.copy()
    x[:, 5] = 0
    x[:, 6] *= 100  # an outlier, so that smoothing has something to move
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("MatMul", ["h", "w2"], ["y"])]
    model = model_of(nodes, {"w1": w1, "w2": w2}, ["n", 24], ["n", 10])
    for precision in ("int8", "int4w"):
        y = tw.quantize(model, calibrate=[x, x], precision=precision, max_drop=1)(x)  # type: ignore[arg-type]
        assert np.isfinite(y).all() and np.abs(y[:, 3]).max() < 1e-30  # the least scale there is


def test_infinite_outputs_of_a_mask_are_compared() -> None:
    """Scores that a mask makes minus infinity are no reason to stay in f32."""
    rng = np.random.default_rng(5)
    w, mask = rng.standard_normal((24, 10)).astype("f4"), np.where(np.arange(10) < 3, -np.inf, 0).astype("f4")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "mask"], ["y"])]
    model = model_of(nodes, {"w": w, "mask": mask}, ["n", 24], ["n", 10])
    assert numpy_helper.to_array(model.graph.initializer[1])[0] == -np.inf
    report = tw.quantize(model, calibrate=[GOOD, GOOD], precision="int8", max_drop=0.1).report
    assert report.chosen == "int8" and 0 < report.drop < 0.05


def test_a_metric_that_gives_no_number() -> None:
    with pytest.raises(
        CallError, match="metric: gives no number: expected a number, or one for each sample, got NoneType"
    ):
        tw.quantize(dense(np.random.default_rng(1)), calibrate=[GOOD], metric=lambda _: None)  # type: ignore[arg-type,return-value]


def test_values_below_the_least_scale_are_not_counted() -> None:
    histogram = Histogram(0.0, 1e-44)
    histogram.add(np.float32([1e-44]))
    assert not histogram.counts.any() and histogram.scale("mse").scale == 1.0


@pytest.mark.parametrize("array", [np.float32(3), np.zeros((0, 24), np.float32)], ids=["a number", "no rows"])
def test_files_without_samples(array: Any) -> None:
    read = import_model(dense(np.random.default_rng(1)))
    with pytest.raises(CallError, match="'x' holds no samples: expected an array whose first dimension counts samples"):
        list(rows_of({"x": array}, read.graph, ["x"]))


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_files_that_are_none_of_numpy(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"samples{suffix}"
    path.write_bytes(b"hello")
    with pytest.raises(CallError, match=rf"cannot be read: is no {suffix} file of NumPy"):
        read_arrays(path)


def test_a_file_without_arrays_is_told_which_there_should_be() -> None:
    with pytest.raises(CallError, match="there are no samples: expected an array for each of x, got no arrays"):
        list(rows_of({}, import_model(dense(np.random.default_rng(1))).graph, ["x"]))
