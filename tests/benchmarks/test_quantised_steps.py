"""QDQ files cut at their codes: what each layer makes of equal codes, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilewright as tw
from benchmarks.bench_auto import Builder
from benchmarks.quantised_steps import steps


def transformer(blocks: int, tokens: int, width: int) -> onnx.ModelProto:
    """Attention and two products with Gelu, each added to what it reads, then normed."""
    b = Builder(5)

    def normed(y: str, x: str) -> str:
        return b.op("LayerNormalization", b.op("Add", y, x), b.bias(width), b.bias(width))

    h = "x"
    for _ in range(blocks):
        q, k, v = (b.dense(h, width, width) for _ in range(3))
        scores = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
        h = normed(b.dense(b.op("MatMul", scores, v), width, width), h)
        h = normed(b.dense(b.op("Gelu", b.dense(h, width, 2 * width)), 2 * width, width), h)
    return b.model(h, [2, tokens, width])


@pytest.mark.daily(2)
@pytest.mark.parametrize("method", ["mse", "minmax"])
def test_every_layer_is_within_a_step_of_onnx_runtime(method: str) -> None:
    model = transformer(3, 16, 32)
    rng = np.random.default_rng(52)
    data = [rng.standard_normal((2, 16, 32)).astype(np.float32) for _ in range(4)]
    q = tw.quantize(model, calibrate=data, precision="int8", method=method, max_drop=1, attention=True)
    written = onnx.load_from_string(q.report.onnx())
    seen = steps(written, {"x": data[0]})
    assert seen.layers == 24 and seen.largest <= 1 and seen.share < 0.01
    assert seen.ends[0] < 0.02
