"""Arithmetic of integers that a module is given wraps as PyTorch's does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402


class Forms(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x, y):  # type: ignore[no-untyped-def]
        return (
            x + 1 > x,
            x - y < 5,
            (x + 10) % 10,
            (x + y) // 4,
            x * 4 // 4,
            x * 6 == y * 6,
            torch.maximum(x + 1, x),
            torch.clamp(x + 1, min=3),
            torch.abs(x - y) >= 0,
            torch.where(x + y > y, x * 3 % 7, y - 1),
            torch.remainder(x * y, 10),
            torch.fmod(x + 3, 10),
        )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integers_wrap(dtype: torch.dtype) -> None:
    lo, hi = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    numbers = torch.tensor([lo, lo + 1, lo + 9, hi, hi - 1, hi - 9, hi // 2 + 1, 0, 1, 3, 10], dtype=dtype)
    x, y = (g.reshape(-1).contiguous() for g in torch.meshgrid(numbers, numbers, indexing="ij"))
    for k, (got, want) in enumerate(zip(tw.compile(Forms(), (x, y))(x, y), Forms()(x, y), strict=True)):
        assert torch.equal(torch.as_tensor(got), want), k


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.uint32])
def test_floats_that_integers_cannot_hold_wrap(dtype: torch.dtype) -> None:
    class Cast(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x):  # type: ignore[no-untyped-def]
            return x.to(dtype)

    x = torch.tensor([0.0, -0.5, -1.0, 127.9, 128.0, -129.5, 255.7, 256.0, 300.0, 65535.6, -65537.0, 1e5, -2e9, 2e9])
    want = x.to(torch.int64).numpy().astype(str(dtype).removeprefix("torch."))
    assert (torch.as_tensor(tw.compile(Cast(), (x,), dynamic=None)(x)).numpy() == want).all()
