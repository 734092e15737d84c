"""Fourier transforms and what models do with complex numbers between them, against eager PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.torch.torch_checks import Functional, assert_close, check_functions, interpreted, torch
from tilewright.frontend.read import import_model
from tilewright.support.errors import UnsupportedError

fft = torch.fft


@pytest.mark.parametrize("length", [1, 2, 7, 12, 128, 131, 210, 256, 1000])
def test_lengths(length: int) -> None:
    """Direct, prime, in two and in three factors, forth and back, one half and all of it."""

    def there(x: Any) -> Any:
        return torch.view_as_real(fft.rfft(x)), torch.view_as_real(fft.fft(x, norm="ortho"))

    def back(x: Any) -> Any:
        return (
            fft.irfft(fft.rfft(x), n=length),
            fft.ifft(fft.fft(x)).real,
            torch.view_as_real(fft.ihfft(x).resolve_conj()),
        )

    check_functions(there, back, make=lambda n: (torch.randn(n, 3, length),), tolerance=2e-5)


def test_axes_norms_and_pads() -> None:
    check_functions(
        lambda x: torch.view_as_real(fft.fftn(x, dim=(1, 2))),
        lambda x: fft.rfft2(x, norm="ortho").abs(),
        lambda x: fft.irfft2(fft.rfft2(x, norm="forward").conj(), norm="forward"),
        lambda x: torch.view_as_real(fft.ifft(fft.fft(x, n=7), n=9, dim=1)),
        lambda x: fft.hfft(torch.complex(x, -x), n=10),
        lambda x: fft.fftshift(fft.fft(x, dim=1), dim=1).imag,
        lambda x: torch.stft(x.reshape(-1, 60), 16, 4, window=torch.hann_window(16), return_complex=True).abs(),
        make=lambda n: (torch.randn(n, 5, 12),),
        tolerance=2e-5,
    )


@pytest.mark.parametrize("length", [None, 1, 4, 10, 300])
def test_vectors(length: int | None) -> None:
    def function(x: Any) -> Any:
        return fft.hfft(torch.complex(x, -x), n=length)

    x = torch.randn(5)
    (y,) = interpreted(import_model(Functional(function), example=x, dynamic=None), x)
    np.testing.assert_allclose(y, function(x), rtol=1e-5, atol=1e-5)

    def others(x: Any) -> Any:
        y = fft.fft(x, n=length)
        return torch.view_as_real(y), torch.view_as_real(fft.rfft(x, n=length)), fft.ifft(y * y).imag

    imported = import_model(Functional(others), example=x, dynamic=None)
    assert_close(interpreted(imported, x), others(x), 2e-5)


def test_frequencies() -> None:
    def function(x: Any) -> Any:
        return x * fft.fftfreq(6), fft.rfftfreq(7, 0.1), fft.fftfreq(7, d=0.5, dtype=torch.float64), fft.fftfreq(1)

    x = torch.randn(6)
    assert_close(interpreted(import_model(Functional(function), example=x, dynamic=None), x), function(x))


def test_complex_arithmetic() -> None:
    def mixed(x: Any) -> Any:
        a, b = torch.complex(x, 2 * x), fft.rfft(x, n=6)
        y = a * b * 0.5 + b - a.conj() * x + 3 - 2j * b
        return torch.view_as_real(y), (a / 4).real, torch.exp(b * 0.1).imag, -b.real, (a * b).sum(-1).abs()

    def moved(x: Any) -> Any:
        y = torch.view_as_complex(torch.stack([x, x + 1], -1))
        z = torch.cat([y, y.flip(-1)], 1)[:, :, 1:3].transpose(1, 2).unsqueeze(0)
        return torch.view_as_real(z.expand(2, -1, -1, -1)), torch.polar(x.abs(), x).imag

    check_functions(mixed, moved, make=lambda n: (torch.randn(n, 5, 4),), tolerance=1e-5)


def test_complex_numbers_beside_integers_and_booleans() -> None:
    """Integers and booleans have an imaginary part of 0, and so has a number by which a complex tensor is padded."""

    def mixed(x: Any) -> Any:
        y, k, b = torch.complex(x, 2 * x), (x * 3).long(), x > 0
        z = torch.nn.functional.pad(y, (1, 2), value=3.0)
        results = (k + y, y - k, b + 1j * x, k + 1j, (2j - k), torch.cat([y, k]), torch.stack([b, y]), z)
        picked = y.index_select(-1, torch.tensor([2, 0]))
        return tuple(torch.view_as_real(r.to(torch.complex64)) for r in (*results, picked))

    check_functions(mixed, make=lambda n: (torch.randn(n, 5, 4),), tolerance=1e-5)


def test_magnitudes_and_angles_at_the_ends() -> None:
    """Where squares overflow or vanish, at zeros with signs, infinities (a magnitude of which is infinite even beside
    NaN) and NaN."""
    ends = [0.0, -0.0, 1.0, -5.0, 3e30, 4e30, 3e-30, 4e-30, float("inf"), -float("inf"), float("nan")]

    def function(x: Any) -> Any:
        y = torch.view_as_complex(x)
        return y.abs(), y.angle()

    x = torch.tensor([[a, b] for a in ends for b in ends])
    ours = interpreted(import_model(Functional(function), example=x, dynamic=None), x)
    for result, wanted in zip(ours, function(x), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6)


def test_what_is_refused() -> None:
    for function, text in (
        (lambda x: fft.fft(x), "a result is complex"),
        (lambda x: torch.tan(fft.fft(x)).real, "tan is not supported for complex numbers"),
        (lambda x: fft.rfft(x, n=1031).real, "of this length"),
    ):
        with pytest.raises(UnsupportedError, match=text):
            import_model(Functional(function), example=torch.zeros(2, 4), dynamic=None)
