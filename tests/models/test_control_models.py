"""Loops, recurrences and boxes that data decides, compiled, against ONNX Runtime: `make bench-control` times them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import tilewright as tw
from benchmarks import control_models
from tilewright.runtime.model import Model

SIZES = {"decoder": {"layers": 1, "width": 32, "heads": 2, "words": 40, "most": 9}, "detector": {"channels": 8}}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ["recurrence", "decoder", "detector"])
def test_equal_to_onnx_runtime(name: str) -> None:
    """Chosen words and boxes are equal, other numbers close; the whole model is one program."""
    model = getattr(control_models, name)(**SIZES.get(name, {}))
    compiled = tw.compile(model, fallback="never")
    assert isinstance(compiled, Model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for length in (1, 5):
        inputs = {
            "recurrence": {
                "h0": rng.standard_normal((1, 128)).astype(np.float32),
                "xs": rng.standard_normal((length, 1, 64)).astype(np.float32),
            },
            "decoder": {"first": np.array([[length]])},
            "detector": {"image": rng.standard_normal((1, 3, 64, 64)).astype(np.float32)},
        }[name]
        result = compiled.run(inputs)
        for spec, want in zip(session.get_outputs(), session.run(None, inputs), strict=True):
            assert result[spec.name].shape == want.shape and result[spec.name].dtype == want.dtype
            if want.dtype.kind == "i":
                np.testing.assert_array_equal(result[spec.name], want, spec.name)
            else:
                np.testing.assert_allclose(result[spec.name], want, rtol=1e-4, atol=1e-5, err_msg=spec.name)
