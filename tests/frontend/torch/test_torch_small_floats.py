"""Floats of 8 bits in PyTorch's modules: all codes, all roundings, and weights that are stored so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.support.errors import Error  # noqa: E402

SMALL = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
WIDE = ["float32", "bfloat16", "float16"]


class To(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Any) -> Any:
        return x.to(self.dtype)


def codes(dtype: Any) -> Any:
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    nan = want.float().isnan()
    assert torch.equal(got.float().isnan(), nan)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[want.element_size()]
    assert torch.equal(got.view(kind)[~nan], want.view(kind)[~nan])


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("small", SMALL)
def test_all_codes(small: str, wide: str) -> None:
    x, module = codes(getattr(torch, small)), To(getattr(torch, wide))
    same(tw.compile(module, (x,))(x), module(x))


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("small", SMALL)
def test_roundings(small: str, wide: str) -> None:
    dtype = getattr(torch, small)
    numbers = codes(dtype).double()
    finite = numbers[numbers.isfinite()].unique()
    middles = ((finite[1:] + finite[:-1]) / 2).float()
    up, down = (torch.nextafter(middles, torch.full_like(middles, end)) for end in (np.inf, -np.inf))
    ends = torch.tensor([448, 464, 465, 61439, 61440, 61441, 1e30, -1e9, np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-9])
    x = torch.cat([numbers.float(), middles, up, down, ends.float()]).to(getattr(torch, wide))
    module = To(dtype)
    same(tw.compile(module, (x,))(x), module(x))


class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
    def __init__(self, dtype: Any) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("w", torch.randn(48, 64, generator=generator).to(dtype))
        self.register_buffer("s", torch.rand(48, 1, generator=generator) + 0.5)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.w.to(x.dtype) * self.s.to(x.dtype))


@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("small", SMALL[:2])
def test_weights(small: str, rows: int) -> None:
    module, x = Scaled(getattr(torch, small)), torch.randn(rows, 64, generator=torch.Generator().manual_seed(1))
    model = tw.compile(module, (x,))
    torch.testing.assert_close(model(x), module(x), rtol=1e-5, atol=1e-4)
    other = Scaled(getattr(torch, small))
    other.w = codes(other.w.dtype)[32 : 32 + 48].reshape(48, 1).expand(48, 64).contiguous()
    model.update(dict(other.state_dict()))
    torch.testing.assert_close(model(x), other(x), rtol=1e-5, atol=1e-4)


def test_what_computes_in_them_is_refused() -> None:
    class Larger(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def forward(self, x: Any) -> Any:
            return torch.maximum(x, x)

    x = codes(torch.float8_e5m2)
    with pytest.raises(Error, match="Float8_e5m2"):
        tw.compile(Larger(), (x,))
