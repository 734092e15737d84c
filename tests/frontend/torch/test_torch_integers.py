"""Divisors, counts and rows repeated as often as data says, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def numbers(low: int, high: int, *shape: int, dtype: Any = torch.int64) -> Any:
    return torch.randint(low, high, shape).to(dtype)


FORMS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "gcd": (torch.gcd, lambda n: (numbers(-99, 99, n, 5), numbers(-9, 9, 5))),
    "gcd of large ones": (torch.gcd, lambda n: (numbers(-(2**62), 2**62, n), numbers(-(2**62), 2**62, n))),
    "lcm": (torch.lcm, lambda n: (numbers(-99, 99, n, 5, dtype=torch.int8), numbers(-9, 9, n, 5, dtype=torch.int8))),
    "bincount": (lambda x: torch.bincount(x, minlength=5), lambda n: (numbers(0, 9, n),)),
    "bincount of weights": (torch.bincount, lambda n: (numbers(0, 9, n), torch.randn(n))),
    "repeats": (lambda x, r: x.repeat_interleave(r, 0) + 1, lambda n: (torch.randn(n, 3), numbers(0, 4, n))),
    "repeats, so many": (
        lambda x, r: x.repeat_interleave(r, 1, output_size=6),
        lambda n: (torch.randn(n, 3), torch.tensor([1, 2, 3])),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_integers(name: str) -> None:
    torch.manual_seed(0)
    function, sized = FORMS[name]
    compiled = tw.compile(Of(function), sized(4), dynamic="auto")
    for n in (4, 1, 2, 7):
        args = sized(n)
        want, got = function(*args), torch.as_tensor(np.asarray(compiled(*args)))
        torch.testing.assert_close(got, want)


def test_numbers_that_make_no_sense() -> None:
    counted = tw.compile(Of(torch.bincount), (torch.tensor([1, 2]),), dynamic=None)
    with pytest.raises(tw.errors.CallError, match="negative"):
        counted(torch.tensor([1, -2]))
    function = FORMS["repeats, so many"][0]
    repeated = tw.compile(Of(function), (torch.ones(2, 3), torch.tensor([1, 2, 3])), dynamic=None)
    with pytest.raises(tw.errors.CallError, match="output_size"):
        repeated(torch.ones(2, 3), torch.tensor([1, 2, 4]))
