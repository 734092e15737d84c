"""PyTorch's quantised operators against what PyTorch computes, and a graph as pt2e writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.torch.torch_checks import torch

pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers the operators

Q = torch.ops.quantized_decomposed


def compiled(f: Any, *inputs: torch.Tensor) -> Any:
    class Module(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return f(*args)

    return tw.compile(Module(), inputs, dynamic=None)


@pytest.mark.parametrize("dtype,low,high", [(torch.uint8, 0, 255), (torch.int8, -128, 127), (torch.uint8, 0, 127)])
@pytest.mark.parametrize("zero", [0, 1, 77])
def test_levels_round_as_pytorch_does(dtype: torch.dtype, low: int, high: int, zero: int) -> None:
    """Ties with odd and even zero points, saturation, and scales whose reciprocal is rounded."""
    generator = torch.Generator().manual_seed(0)
    for scale in (0.5, 0.1, 0.0123):
        ties = (torch.arange(-600, 600) * 0.5) * scale
        x = torch.cat((ties, torch.randn(4000, generator=generator) * 60 * scale, torch.tensor([1e9, -1e9])))

        def levels(x: torch.Tensor, scale: float = scale) -> torch.Tensor:
            return Q.quantize_per_tensor(x, scale, zero, low, high, dtype)

        wanted = levels(x)
        assert torch.equal(torch.as_tensor(compiled(levels, x)(x)), wanted)

        def numbers(q: torch.Tensor, scale: float = scale) -> torch.Tensor:
            return Q.dequantize_per_tensor(q, scale, zero, low, high, dtype)

        assert torch.equal(torch.as_tensor(compiled(numbers, wanted)(wanted)), numbers(wanted))


@pytest.mark.parametrize("axis", [0, 1])
def test_channels_have_scales_of_their_own(axis: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 5, 3, generator=generator) * 9
    count = x.shape[axis]
    scales, zeros = torch.rand(count, generator=generator) / 4 + 0.01, torch.arange(count) - 2

    def both(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = Q.quantize_per_channel(x, s, z, axis, -128, 127, torch.int8)
        return q, Q.dequantize_per_channel(q, s, z, axis, -128, 127, torch.int8)

    for got, wanted in zip(compiled(both, x, scales, zeros)(x, scales, zeros), both(x, scales, zeros), strict=True):
        assert torch.equal(torch.as_tensor(got), wanted)


def test_a_scale_that_is_chosen_by_the_data() -> None:
    def dynamic(x: torch.Tensor) -> torch.Tensor:
        scale, zero = Q.choose_qparams(x, 0, 255, 1e-7, torch.uint8)
        q = Q.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
        return Q.dequantize_per_tensor(q, scale, zero, 0, 255, torch.uint8)

    model = compiled(dynamic, torch.zeros(4, 7))
    for seed, factor in ((0, 1.0), (1, 30.0)):
        x = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)) * factor
        torch.testing.assert_close(torch.as_tensor(model(x)), dynamic(x), rtol=1e-6, atol=1e-6)


def test_integer_products_are_exact() -> None:
    rng = np.random.default_rng(2)
    a, b = (torch.from_numpy(rng.integers(-128, 128, s).astype(np.int8)) for s in ((32, 64), (64, 48)))
    got = torch.as_tensor(compiled(torch._int_mm, a, b)(a, b))
    assert torch.equal(got, a.int() @ b.int())


class Quantised(torch.nn.Module):
    """A convolution and a layer as pt2e's X86InductorQuantizer writes them: weights are codes of i8 with a scale a
    channel, activations codes of u8."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, shape in (("conv", (8, 3, 3, 3)), ("linear", (10, 8 * 16))):
            codes = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
            self.register_buffer(name, codes)
            self.register_buffer(f"{name}_scale", torch.rand(shape[0], generator=generator) / 900 + 1e-3)
            self.register_buffer(f"{name}_zero", torch.zeros(shape[0], dtype=torch.int64))

    def weight(self, name: str) -> torch.Tensor:
        scale, zero = getattr(self, f"{name}_scale"), getattr(self, f"{name}_zero")
        return Q.dequantize_per_channel(getattr(self, name), scale, zero, 0, -128, 127, torch.int8)

    def coded(self, x: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
        q = Q.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
        return Q.dequantize_per_tensor(q, scale, zero, 0, 255, torch.uint8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(torch.nn.functional.conv2d(self.coded(x, 0.03, 128), self.weight("conv"), padding=1))
        y = torch.nn.functional.max_pool2d(self.coded(y, 0.02, 0), 2)
        return torch.nn.functional.linear(self.coded(torch.flatten(y, 1), 0.02, 0), self.weight("linear"))


def test_a_model_of_pt2e_is_within_a_step() -> None:
    module, x = Quantised().eval(), torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(4))
    wanted = module(x)
    step = 0.02 * float(module.weight("linear").abs().max())
    for model in (tw.compile(module, (x,)), tw.compile(torch.export.export(module, (x,)))):
        assert (torch.as_tensor(model(x)) - wanted).abs().max() < step
    through = torch.compile(module, backend="tilewright")(x)
    assert (through - wanted).abs().max() < step
