"""A million numbers rounded to codes by PyTorch's `quantized_decomposed` operators, bit-equal to its eager mode."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="make torch runs this")
pytest.importorskip("torch.ao.quantization.fx._decomposed", reason="which registers the operators")

import numpy as np  # noqa: E402

import tilewright as tw  # noqa: E402
from tests.quantization.million import numbers, scales, zeros  # noqa: E402

KINDS = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-32768, 32767)}


@pytest.mark.parametrize("kind", KINDS)
def test_codes_and_numbers_by_channel(kind: str) -> None:
    low, high = KINDS[kind]
    dtype, d = getattr(torch, kind), torch.ops.quantized_decomposed

    class Rounded(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("s", torch.from_numpy(scales()))
            self.register_buffer("z", torch.from_numpy(zeros(low, high)))

        def forward(self, x: Any) -> Any:
            codes = d.quantize_per_channel(x, self.s, self.z, 1, low, high, dtype)
            return codes, d.dequantize_per_channel(codes, self.s, self.z, 1, low, high, dtype)

    x = torch.from_numpy(numbers(low, high))
    assert x.numel() > 1_000_000
    module = Rounded()
    want = [a.numpy() for a in module(x)]
    ours = [np.asarray(a) for a in tw.compile(module, (x,), dynamic=None)(x)]
    for a, b in zip(ours, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_codes_of_one_scale() -> None:
    x = numbers(-128, 127)
    for channel in (2, 4, 9, 21):
        scale, zero = float(scales()[channel]), int(zeros(-128, 127)[channel])

        class Rounded(torch.nn.Module):  # type: ignore[misc]
            def forward(self, x: Any, s: float = scale, z: int = zero) -> Any:
                return torch.ops.quantized_decomposed.quantize_per_tensor(x, s, z, -128, 127, torch.int8)

        part = torch.from_numpy(np.ascontiguousarray(x[:, channel : channel + 8]))
        ours = np.asarray(tw.compile(Rounded(), (part,), dynamic=None)(part))
        np.testing.assert_array_equal(ours, Rounded()(part).numpy())
