"""ATen operators by family against eager PyTorch, for odd sizes, size 1 and dynamic batches; run by `make torch`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.frontend.torch.torch_checks import Functional, check, check_functions, interpreted, nn, torch
from tilewright.compiler import compile_program
from tilewright.frontend.torch import import_torch

F = torch.nn.functional


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def reals(*shape: int) -> Any:
    """Makes batches [n, *shape] of normal numbers."""
    return lambda n: (torch.randn(n, *shape),)


def two(n: int) -> Any:
    return torch.randn(n, 5, 3), torch.randn(n, 1, 3)


EXTREMES = (-math.inf, -1e4, -100.0, -50.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 10.0, 80.0, 95.0, 120.0, 1e4, math.inf)
"""Numbers at which exponentials vanish, overflow and lose digits."""


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "function", [torch.exp, torch.exp2, torch.expm1, torch.log2, torch.sinh], ids=lambda f: f.__name__
)
def test_exponentials_of_numbers_wide_out(function: Any, kind: Any) -> None:
    numbers = torch.tensor(EXTREMES, dtype=kind)
    x = numbers.abs() if function is torch.log2 else numbers
    result = interpreted(import_torch(Functional(function), x, dynamic=None), x)[0].astype(np.float64)
    expected = function(x.double()).to(kind).double().numpy()
    np.testing.assert_allclose(result, expected, rtol=2 * torch.finfo(kind).eps)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_epsilon_that_a_norm_has_by_default(kind: Any) -> None:
    """Narrow types have that of f32, in which PyTorch computes them; numbers are so small that it shows."""
    x = (1e-3 * torch.randn(5, 8)).to(kind)
    module = nn.RMSNorm(8, dtype=kind)
    result = interpreted(import_torch(module, x, dynamic=None), x)[0].astype(np.float64)
    epsilon = torch.finfo(torch.float64 if kind is torch.float64 else torch.float32).eps
    exact = torch.nn.functional.rms_norm(x.double(), (8,), eps=epsilon)
    limit = 4 * torch.finfo(kind).eps * float(exact.abs().max())
    np.testing.assert_allclose(result, exact, rtol=0, atol=limit)
    np.testing.assert_allclose(module(x).detach().double(), exact, rtol=0, atol=limit)


@pytest.mark.parametrize("alpha", [False, True])
def test_sums_of_truths_are_scaled(alpha: Any) -> None:
    x, y = torch.tensor([False, False, True, True]), torch.tensor([[True], [False]])
    function = Functional(lambda a, b: torch.add(a, b, alpha=alpha))
    result = interpreted(import_torch(function, (x, y), dynamic=None), x, y)[0]
    np.testing.assert_array_equal(result, torch.add(x, y, alpha=alpha))


@pytest.mark.costly(3)
@pytest.mark.parametrize("scale", [1e-3, 300.0])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.norm(dim=-1),
        lambda x: F.normalize(x, dim=-1),
        lambda x: x.std(-1),
        lambda x: torch.std_mean(x, -1)[0],
        lambda x: F.instance_norm(x[None], eps=1e-12)[0],
    ],
    ids=["norm", "normalize", "std", "std_mean", "instance_norm"],
)
def test_squares_of_narrow_numbers_are_wide(function: Any, kind: Any, scale: float) -> None:
    """The square of 256 is infinite in f16, and that of a thousandth has few digits."""
    x = (scale * torch.randn(5, 16)).to(kind)
    result = interpreted(import_torch(Functional(function), x, dynamic=None), x)[0].astype(np.float64)
    exact = function(x.double())
    np.testing.assert_allclose(result, exact, rtol=0, atol=3 * torch.finfo(kind).eps * float(exact.abs().max()))


def test_functions_of_real_numbers() -> None:
    check_functions(
        torch.cos,
        torch.sin,
        torch.tan,
        torch.sinh,
        torch.cosh,
        torch.tanh,
        torch.atan,
        torch.asinh,
        torch.exp,
        torch.exp2,
        torch.expm1,
        torch.erf,
        torch.sigmoid,
        lambda x: torch.log(x.abs() + 0.1),
        lambda x: torch.log1p(x.abs()),
        lambda x: torch.log2(x.abs() + 0.1),
        lambda x: torch.log10(x.abs() + 0.1),
        lambda x: torch.sqrt(x.abs()),
        lambda x: torch.rsqrt(x.abs() + 0.1),
        lambda x: torch.acos(torch.tanh(x)),
        lambda x: torch.asin(torch.tanh(x)),
        lambda x: torch.atanh(torch.tanh(x)),
        lambda x: torch.acosh(1 + x.abs()),
        torch.reciprocal,
        torch.square,
        torch.abs,
        torch.neg,
        torch.sign,
        torch.floor,
        torch.ceil,
        torch.round,
        torch.trunc,
        torch.frac,
        torch.positive,
        make=reals(5, 3),
        tolerance=2e-5,
    )


def test_activations() -> None:
    check_functions(
        F.relu,
        F.relu6,
        F.gelu,
        lambda x: F.gelu(x, approximate="tanh"),
        F.silu,
        F.mish,
        F.elu,
        lambda x: F.elu(x, alpha=0.5),
        F.selu,
        F.celu,
        F.leaky_relu,
        lambda x: F.leaky_relu(x, 0.2),
        lambda x: F.rrelu(x, 0.1, 0.4),
        F.softplus,
        lambda x: F.softplus(x, beta=2.0),
        F.softsign,
        F.tanhshrink,
        F.hardtanh,
        F.hardswish,
        F.hardsigmoid,
        F.hardshrink,
        F.softshrink,
        F.logsigmoid,
        lambda x: F.threshold(x, 0.1, 7.0),
        lambda x: F.glu(x, dim=1),
        lambda x: F.softmax(x, dim=-1),
        lambda x: F.softmax(x, dim=1),
        lambda x: F.log_softmax(x, dim=1),
        lambda x: F.softmin(x, dim=1),
        lambda x: F.dropout(x, 0.5, training=False),
        make=reals(4, 3),
        tolerance=1e-5,
    )


def test_arithmetic_promotes_as_pytorch_does() -> None:
    def make(n: int) -> Any:
        return (
            torch.randn(n, 3),
            torch.randint(-9, 9, (n, 3)),
            torch.randint(1, 9, (n, 3), dtype=torch.int32),
            torch.rand(n, 3) < 0.5,
            torch.randint(0, 255, (n, 3), dtype=torch.uint8),
        )

    check_functions(
        lambda f, i, j, b, u: f + i,
        lambda f, i, j, b, u: i + j,
        lambda f, i, j, b, u: i - 2,
        lambda f, i, j, b, u: 2 - f,
        lambda f, i, j, b, u: i * 1.5,
        lambda f, i, j, b, u: i / j,
        lambda f, i, j, b, u: u / 255,
        lambda f, i, j, b, u: u.float() / 255.0,
        lambda f, i, j, b, u: u + u,
        lambda f, i, j, b, u: i // j,
        lambda f, i, j, b, u: i % j,
        lambda f, i, j, b, u: f % 0.7,
        lambda f, i, j, b, u: torch.fmod(f, 0.7),
        lambda f, i, j, b, u: torch.fmod(i, j),
        lambda f, i, j, b, u: torch.div(i, j, rounding_mode="trunc"),
        lambda f, i, j, b, u: torch.div(f, 0.3, rounding_mode="floor"),
        lambda f, i, j, b, u: f * b,
        lambda f, i, j, b, u: b + b,
        lambda f, i, j, b, u: b * b,
        lambda f, i, j, b, u: b + 1,
        lambda f, i, j, b, u: torch.add(f, i, alpha=2),
        lambda f, i, j, b, u: torch.sub(f, f, alpha=0.5),
        lambda f, i, j, b, u: torch.rsub(f, 1),
        lambda f, i, j, b, u: f**2 + f**3 + f**1,
        lambda f, i, j, b, u: f.abs() ** 1.7,
        lambda f, i, j, b, u: f.abs() ** 0.5,
        lambda f, i, j, b, u: 2.0**f,
        lambda f, i, j, b, u: i**2,
        lambda f, i, j, b, u: f.exp() - i.exp().clamp(max=10),
        lambda f, i, j, b, u: torch.maximum(f, -f),
        lambda f, i, j, b, u: torch.minimum(i, j),
        lambda f, i, j, b, u: torch.lerp(f, 2 * f, 0.3),
        lambda f, i, j, b, u: torch.addcmul(f, f, f, value=0.5),
        lambda f, i, j, b, u: torch.addcdiv(f, f, f.abs() + 1, value=0.5),
        lambda f, i, j, b, u: torch.atan2(f, f + 1),
        make=make,
        tolerance=1e-5,
    )


def test_comparison_and_logic() -> None:
    def make(n: int) -> Any:
        return torch.randn(n, 3), torch.randint(-3, 3, (n, 3)), torch.rand(n, 3) < 0.5

    check_functions(
        lambda f, i, b: f > 0,
        lambda f, i, b: f >= i,
        lambda f, i, b: i == 1,
        lambda f, i, b: i != f.round(),
        lambda f, i, b: i < 1.5,
        lambda f, i, b: i <= i.flip(1),
        lambda f, i, b: b == True,  # noqa: E712
        lambda f, i, b: b != b.flip(1),
        lambda f, i, b: b & (f > 0),
        lambda f, i, b: b | (f > 0),
        lambda f, i, b: b ^ (f > 0),
        lambda f, i, b: ~b,
        lambda f, i, b: torch.logical_and(f, i),
        lambda f, i, b: torch.logical_not(i),
        lambda f, i, b: i & 3,
        lambda f, i, b: i | 4,
        lambda f, i, b: ~i,
        lambda f, i, b: torch.where(b, f, 0.0),
        lambda f, i, b: torch.where(b, f, i),
        lambda f, i, b: f.masked_fill(b, -1e9),
        lambda f, i, b: f.masked_fill(~b, float("-inf")),
        lambda f, i, b: f.clamp(-0.5, 0.5),
        lambda f, i, b: f.clamp(min=0),
        lambda f, i, b: i.clamp(max=1),
        lambda f, i, b: torch.clamp(f, min=-f.abs(), max=f.abs() / 2),
        lambda f, i, b: torch.isnan(f / (i - i)),
        lambda f, i, b: torch.isfinite(f / i),
        lambda f, i, b: torch.nan_to_num(f / i, posinf=5.0, neginf=-5.0),
        lambda f, i, b: torch.sign(f / (i - i)),
        lambda f, i, b: torch.sgn(torch.where(b, f, float("nan"))),
        lambda f, i, b: f.to(torch.int64),
        lambda f, i, b: f.to(torch.float64),
        lambda f, i, b: i.float(),
        lambda f, i, b: b.to(f),
        lambda f, i, b: f.type_as(i),
        lambda f, i, b: i.bool(),
        make=make,
    )


def test_shapes() -> None:
    check_functions(
        lambda x: x.view(x.shape[0], -1),
        lambda x: x.reshape(-1, 3),
        lambda x: x.flatten(1),
        lambda x: x.flatten(0, 1),
        lambda x: x.flatten(),
        lambda x: x.unflatten(1, (2, 3)),
        lambda x: x.unsqueeze(0),
        lambda x: x.unsqueeze(-1).squeeze(-1),
        lambda x: x[:, :1].squeeze(1),
        lambda x: x.permute(2, 0, 1),
        lambda x: x.transpose(1, 2),
        lambda x: x.mT,
        lambda x: x.movedim(0, 2),
        lambda x: x[:, None].expand(-1, 4, -1, -1),
        lambda x: x.repeat(1, 2, 3),
        lambda x: x.repeat(2, 1, 1),
        lambda x: torch.tile(x, (2,)),
        lambda x: x.repeat_interleave(2, dim=1),
        lambda x: torch.cat([x, 2 * x], dim=1),
        lambda x: torch.cat([x, x], dim=0),
        lambda x: torch.stack([x, -x], dim=1),
        lambda x: torch.stack([x, -x], dim=-1),
        lambda x: x.split(2, dim=1),
        lambda x: x.split([1, 2, 3], dim=1),
        lambda x: x.chunk(4, dim=1),
        lambda x: x.unbind(1),
        lambda x: torch.tensor_split(x, 2, dim=1),
        lambda x: x[:, 1:5:2],
        lambda x: x[..., -1],
        lambda x: x[:, -2:],
        lambda x: x[1:],
        lambda x: x[:-1],
        lambda x: x[-1],
        lambda x: x.select(1, 2),
        lambda x: x.narrow(1, 2, 3),
        lambda x: x.flip(1),
        lambda x: x.flip(0, 2),
        lambda x: x.roll(2, 1),
        lambda x: x.roll((1, -1), (1, 2)),
        lambda x: F.pad(x, (1, 2)),
        lambda x: F.pad(x, (1, 0, 2, 1), value=3.0),
        lambda x: F.pad(x, (-1, 1)),
        lambda x: F.pad(x, (1, 1), mode="reflect"),
        lambda x: F.pad(x, (2, 1), mode="replicate"),
        lambda x: F.pad(x, (-x.shape[-1], x.shape[-1] + 1), mode="replicate"),
        lambda x: F.pad(x, (-1, x.shape[-1] - 1), mode="reflect"),
        lambda x: x.tril(),
        lambda x: x.triu(1),
        lambda x: torch.hstack([x, x]),
        lambda x: x.contiguous().view(-1).clone().detach(),
        lambda x: x.swapaxes(0, 1),
        lambda x: F.pixel_shuffle(x[:, None].expand(-1, 4, -1, -1), 2),
        lambda x: F.pixel_unshuffle(x[:, None, :, :2], 2),
        make=reals(6, 3),
    )


def test_padding_with_a_fraction() -> None:
    """Numbers that are not 0 are true; integers lose the fraction."""
    check_functions(
        lambda x: F.pad(x > 0, (1, 2), value=0.5),
        lambda x: F.pad(x > 0, (1, 2), value=-0.25),
        lambda x: F.pad(x > 0, (1, 2), value=0.0),
        lambda x: F.pad(x > 9, (1, 2), value=x.shape[1] / 8),
        lambda x: F.pad(x.to(torch.int32), (1, 2), value=-1.75),
        make=reals(3),
    )


def test_created_from_sizes() -> None:
    check_functions(
        lambda x: x + torch.zeros(x.shape[0], 3),
        lambda x: torch.ones(x.shape[0], 2, dtype=torch.int32),
        lambda x: torch.zeros_like(x),
        lambda x: torch.full_like(x, 2.5),
        lambda x: torch.full((x.shape[0], 2), 7),
        lambda x: x.new_zeros(x.shape[0], 1) + x.new_full((2, 1, 1), 3.0),
        lambda x: torch.arange(x.shape[0]),
        lambda x: torch.arange(1, 7, 2) * x.sum(),
        lambda x: torch.arange(3, dtype=x.dtype) / x.shape[0],
        lambda x: torch.eye(3) @ x.T,
        lambda x: torch.linspace(-1, 1, 5) + x[:, :1],
        lambda x: x * x.shape[0],
        lambda x: x.sum(0) / x.size(0),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        lambda x: x * torch.tensor(2.0),
        lambda x: torch.scalar_tensor(1.5) + x,
        lambda x: torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"),
        make=reals(3),
    )


def test_reductions() -> None:
    check_functions(
        lambda x: x.sum(),
        lambda x: x.sum(1),
        lambda x: x.sum((1, 2), keepdim=True),
        lambda x: x.sum(0),
        lambda x: x.mean(-1),
        lambda x: x.mean(),
        lambda x: x.mean(dim=(0, 1)),
        lambda x: x.prod(1),
        lambda x: x.amax(1),
        lambda x: x.amin((1, 2)),
        lambda x: x.max(),
        lambda x: x.max(dim=2),
        lambda x: x.min(1, keepdim=True),
        lambda x: x.argmax(1),
        lambda x: x.argmax(),
        lambda x: x.argmin(2, keepdim=True),
        lambda x: (x > 0).any(1),
        lambda x: (x > 0).all(),
        lambda x: (x > 0).sum(1),
        lambda x: (x > 0).float().mean(),
        lambda x: torch.count_nonzero(x > 0, dim=1),
        lambda x: x.var(1),
        lambda x: x.std(1, keepdim=True),
        lambda x: x.var((1, 2), unbiased=False),
        lambda x: x.std(1, correction=0),
        lambda x: torch.var_mean(x, 1),
        lambda x: x.logsumexp(1),
        lambda x: x.norm(dim=1),
        lambda x: torch.linalg.vector_norm(x, 1, dim=2),
        lambda x: F.normalize(x, dim=1),
        lambda x: x.cumsum(1),
        lambda x: x.cumprod(2),
        lambda x: x.topk(2, dim=1),
        lambda x: x.sort(1),
        lambda x: x.argsort(2, descending=True),
        lambda x: (x * 3).to(torch.int32).sum(1),
        make=reals(5, 3),
        tolerance=1e-5,
    )


def test_gathers_and_scatters() -> None:
    def make(n: int) -> Any:
        return torch.randn(n, 5), torch.randint(0, 5, (n, 2)), torch.randint(0, 5, (n,))

    table = torch.randn(7, 4)
    check_functions(
        lambda x, i, j: x.gather(1, i),
        lambda x, i, j: x.gather(1, j[:, None]).squeeze(1),
        lambda x, i, j: F.embedding(i, table),
        lambda x, i, j: table[j],
        lambda x, i, j: table[i, :2],
        lambda x, i, j: x[torch.arange(x.shape[0]), j],
        lambda x, i, j: x[:, [0, 2, 4]],
        lambda x, i, j: x[:, torch.tensor([1, 1])],
        lambda x, i, j: torch.index_select(x, 1, torch.tensor([3, 0])),
        lambda x, i, j: F.one_hot(j, 5),
        lambda x, i, j: F.one_hot(i, 5).float(),
        lambda x, i, j: torch.zeros_like(x).scatter(1, j[:, None], 1.0),
        lambda x, i, j: x.scatter_add(1, j[:, None], torch.ones(x.shape[0], 1)),
        lambda x, i, j: torch.where(F.one_hot(j, 5).bool(), 0.0, x),
        make=make,
    )


def test_products() -> None:
    def make(n: int) -> Any:
        return torch.randn(n, 3, 5), torch.randn(n, 5, 4), torch.randn(5), torch.randn(4, 5)

    check_functions(
        lambda a, b, v, w: a @ b,
        lambda a, b, v, w: torch.bmm(a, b),
        lambda a, b, v, w: a @ v,
        lambda a, b, v, w: v @ b,
        lambda a, b, v, w: torch.dot(v, v),
        lambda a, b, v, w: torch.outer(v, v),
        lambda a, b, v, w: torch.mv(w, v),
        lambda a, b, v, w: F.linear(a, w),
        lambda a, b, v, w: F.linear(v, w, w[:, 0]),
        lambda a, b, v, w: torch.addmm(w[:, :4], w, w.T, beta=0.5, alpha=2),
        lambda a, b, v, w: torch.baddbmm(a[:, :, :4], a, b),
        lambda a, b, v, w: torch.einsum("nij,njk->nik", a, b),
        lambda a, b, v, w: torch.einsum("nij,j->ni", a, v),
        lambda a, b, v, w: torch.matmul(a[:, None], b[:, None]),
        make=make,
        tolerance=1e-5,
        dynamic={"args_0": {0: "batch"}, "args_1": {0: "batch"}},
    )


class Layers(nn.Module):
    """Several layers of the same input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        for part in self.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 2)
                if part.weight is not None:
                    nn.init.normal_(part.weight)
                    nn.init.normal_(part.bias)

    def forward(self, x: Any) -> Any:
        return [layer(x) for layer in self.layers]


def test_images() -> None:
    check(
        Layers(
            nn.Conv2d(4, 6, 3),
            nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
            nn.Conv2d(4, 6, (3, 1), padding=(1, 0), dilation=(2, 1)),
            nn.Conv2d(4, 8, 3, padding="same", groups=2),
            nn.Conv2d(4, 4, 3, padding="valid", groups=4),
            nn.Conv2d(4, 5, 3, padding=1, padding_mode="reflect"),
            nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1),
            nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2),
            nn.MaxPool2d(3, 2, 1),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.AvgPool2d(2),
            nn.AvgPool2d(3, 2, 1, count_include_pad=False),
            nn.AdaptiveAvgPool2d(1),
            nn.AdaptiveMaxPool2d((1, 1)),
            nn.BatchNorm2d(4),
            nn.BatchNorm2d(4, affine=False),
            nn.GroupNorm(2, 4),
            nn.InstanceNorm2d(4, affine=True),
            nn.LayerNorm([7, 9]),
            nn.LocalResponseNorm(3),
            nn.PReLU(4),
            nn.ZeroPad2d(1),
            nn.ReflectionPad2d(2),
            nn.Upsample(scale_factor=2),
            nn.Dropout2d(),
        ),
        reals(4, 7, 9),
        tolerance=1e-5,
    )
    check(
        Layers(nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d((4, 2)), nn.PixelShuffle(2), nn.PixelUnshuffle(2)),
        reals(4, 8, 6),
    )


def resizing(*args: Any, **options: Any) -> Any:
    return lambda x: F.interpolate(x, *args, **options)


def test_resized_images() -> None:
    functions = [resizing(size, mode=mode) for size in ((1, 13), (7, 4)) for mode in ("nearest", "nearest-exact")]
    for mode in ("bilinear", "bicubic"):
        functions += [resizing((4, 13), mode=mode, align_corners=corners) for corners in (False, True)]
        functions += [resizing((1, 9), mode=mode, align_corners=True), resizing((3, 11), mode=mode, antialias=True)]
        functions += [resizing(scale_factor=f, mode=mode) for f in (0.4, 1.7)]
        functions += [resizing(scale_factor=1.7, mode=mode, recompute_scale_factor=True)]
    functions += [resizing(scale_factor=f) for f in (0.3, 1.7, 2.0, (3, 1))]
    check_functions(*functions, make=reals(2, 5, 9), tolerance=1e-5)
    check_functions(resizing(4, mode="linear"), resizing(scale_factor=3), make=reals(2, 7))
    check_functions(resizing((5, 2, 4), mode="trilinear"), resizing(2), make=reals(2, 3, 4, 5), batches=(2,))


def test_what_a_rule_refuses_is_decomposed() -> None:
    check_functions(
        lambda x: F.softplus(x, threshold=1.0),
        lambda x: torch.ops.aten.elu(x, 0.5, 1.5, 2.0),
        lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
        lambda x: torch.linalg.vector_norm(x, ord=3.0, dim=1),
        make=reals(2, 5, 6),
        tolerance=1e-5,
    )


def test_lines_and_volumes() -> None:
    check(
        Layers(
            nn.Conv1d(4, 6, 3),
            nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2),
            nn.ConvTranspose1d(4, 3, 4, stride=2, padding=1),
            nn.MaxPool1d(2),
            nn.AvgPool1d(3, 1, 1),
            nn.AdaptiveAvgPool1d(1),
            nn.BatchNorm1d(4),
            nn.LayerNorm(7),
            nn.LayerNorm(7, elementwise_affine=False),
            nn.RMSNorm(7),
        ),
        reals(4, 7),
        tolerance=1e-5,
    )
    check(Layers(nn.Conv3d(2, 3, 2), nn.MaxPool3d(2), nn.BatchNorm3d(2), nn.AvgPool3d(2)), reals(2, 3, 5, 4))


@pytest.mark.costly(2)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}],
    ids=["plain", "two layers, both directions", "batch first, no bias"],
)
def test_recurrent_layers(kind: str, options: dict[str, Any]) -> None:
    recurrent_layers(kind, options, 4)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_long_sequences_loop(kind: str) -> None:
    recurrent_layers(kind, {}, 17)


def recurrent_layers(kind: str, options: dict[str, Any], steps: int) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(nn, kind)(3, 2, **options)

        def forward(self, x: Any, h: Any, c: Any) -> Any:
            return self.rnn(x, (h, c) if kind == "LSTM" else h), self.rnn(x)

    rows = 4 if options.get("bidirectional") else 1
    first = options.get("batch_first", False)

    def make(n: int) -> Any:
        x = torch.randn(n, steps, 3) if first else torch.randn(steps, n, 3)
        return x, torch.randn(rows, n, 2), torch.randn(rows, n, 2)

    dynamic = {"x": {0 if first else 1: "batch"}, "h": {1: "batch"}, "c": {1: "batch"}}
    check(Recurrent(), make, dynamic=dynamic, batches=(1, 3))


def test_recurrent_cells() -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTMCell(5, 6), nn.GRUCell(5, 6, bias=False)
            self.rnn = nn.RNNCell(5, 6, nonlinearity="relu")

        def forward(self, x: Any, h: Any, c: Any) -> Any:
            return self.lstm(x, (h, c)), self.gru(x, h), self.rnn(x, h), self.lstm(x)

    check(Cells(), lambda n: (torch.randn(n, 5), torch.randn(n, 6), torch.randn(n, 6)))


def test_attention() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.MultiheadAttention(8, 2, batch_first=True)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)

        def forward(self, x: Any, mask: Any) -> Any:
            q = x.view(-1, 5, 2, 4).transpose(1, 2)
            return [
                self.own(x, x, x, need_weights=False)[0],
                self.own(x, x, x, key_padding_mask=mask),
                self.layer(x),
                F.scaled_dot_product_attention(q, q, q),
                F.scaled_dot_product_attention(q, q, q, is_causal=True),
                F.scaled_dot_product_attention(q, q, q, attn_mask=~mask[:, None, None], scale=0.3),
                F.scaled_dot_product_attention(q, q, q, attn_mask=torch.full((5, 5), 0.5)),
            ]

    def make(n: int) -> Any:
        mask = torch.rand(n, 5) < 0.4
        mask[:, 0] = False
        return torch.randn(n, 5, 8), mask

    with torch.no_grad():
        check(Attention(), make, tolerance=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_types(dtype: Any) -> None:
    """A 16-bit graph rounds where eager PyTorch does or less often: equal within its precision."""
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3), nn.Softmax(-1)).to(dtype)
    tolerance = {torch.float16: 3e-3, torch.bfloat16: 3e-2, torch.float64: 1e-12}[dtype]
    imported = check(module, lambda n: (torch.randn(n, 5, dtype=dtype),), tolerance=tolerance)
    assert {p.dtype.name for p in imported.graph.params} == {str(imported.graph.inputs[0].dtype)}


def test_changes_in_place_and_views() -> None:
    def writes(x: Any) -> Any:
        y = x.clone()
        y[:, 0] = 1.0
        y[:, 1:3] *= 2.0
        y.add_(x).relu_()
        z = y.view(-1)
        z.mul_(0.5)
        return y, z

    def masked(x: Any) -> Any:
        y = x * 1
        y[y < 0] = 0.0
        y[:, -1].fill_(3)
        return y

    check_functions(writes, masked, lambda x: F.relu(x + 1, inplace=True), make=reals(4))


def test_grad_modes_inside_are_nothing() -> None:
    def stopped(x: Any) -> Any:
        with torch.no_grad():
            y = x * 2
        return y + x.detach()

    def enabled(x: Any) -> Any:
        with torch.enable_grad():
            return torch.tanh(x) * x

    check_functions(stopped, enabled, make=reals(4))


@pytest.mark.parametrize("places", [(5, 7), (300,), (), (3, 4, 5)])
def test_a_norm_over_groups_is_one_kernel_with_the_scales_of_channels(places: tuple[int, ...]) -> None:
    module = nn.GroupNorm(3, 12)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.rand(12))
    imported = check(module, reals(12, *places), tolerance=1e-5)
    assert len(compile_program((imported.graph, imported.weights)).manifest.run_steps) == 1
