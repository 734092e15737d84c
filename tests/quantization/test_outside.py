"""Values outside of their calibrated range are counted, for callers of a model and for actors of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.quantization.test_quantize import dense, network, samples
from tilewright.quantization.ranges import scale_of
from tilewright.support.errors import ModelError

RNG = np.random.default_rng(9)
OPTIONS: dict[str, Any] = {"max_drop": 1, "method": "minmax", "correct_bias": False, "smooth": False}


def test_a_call_counts_what_has_no_code() -> None:
    data = samples(RNG, 16, 24)
    q = tw.quantize(dense(RNG), calibrate=data, precision="int8", count_outside=True, **OPTIONS)
    assert q.outputs[-1].name == "outside_range" and len(q.report.counted) == 2
    low, high = min(a.min() for a in data), max(a.max() for a in data)
    scale = scale_of(float(low), float(high))
    x = (3 * RNG.standard_normal((16, 24))).astype(np.float32)
    x[0, :3] = np.nan, np.inf, -np.inf
    codes = np.rint(x / np.float32(scale.scale)) + scale.zero
    y, outside = q(x)
    assert outside.dtype == np.int32 and outside[0] == np.sum(~((codes >= 0) & (codes <= 255))) > 10
    _, none = q(data[0])
    assert none.tolist() == [0, 0]
    uncounted = tw.quantize(dense(RNG), calibrate=data, precision="int8", **OPTIONS)
    assert len(uncounted.outputs) == 1 and uncounted.report.counted == ()
    assert y.shape == (16, 10)


def test_an_actor_reads_the_counts_of_weights_that_a_learner_has_changed(tmp_path: Path) -> None:
    data = samples(RNG, 16, 24)
    q = tw.quantize(dense(RNG), calibrate=data, precision="int8", count_outside=True, **OPTIONS)
    with tw.Publisher("counted", q, directory=tmp_path) as publisher:
        publisher.publish(q.weights, version=1)
        with tw.attach("counted", directory=tmp_path) as actor:
            before = actor.run({"x": data[0]})["outside_range"]
            publisher.publish({n: np.array(a) * (9 if n == "w1" else 1) for n, a in q.weights.items()}, version=2)
            after = actor.run({"x": data[0]})["outside_range"]
    assert before[1] < 20 and after[1] > 100 and before[0] == after[0]  # the input has not changed


def test_convolutions_count_and_models_without_ranges_do_not() -> None:
    data = samples(RNG, 2, 3, 8, 8)
    q = tw.quantize(network(RNG), calibrate=data, precision="int8", count_outside=True, **OPTIONS)
    assert q(100 * data[0])[1].sum() > 200 and q.outputs[-1].shape == (3,)
    weights = tw.quantize(dense(RNG), calibrate=samples(RNG, 16, 24), precision="int8w", count_outside=True)
    assert weights.report.counted == () and len(weights.outputs) == 1
    with pytest.raises(ModelError, match="count_outside"):
        tw.quantize(network(RNG), calibrate=data, count_outside="yes")
