"""Integers among the arguments of a function under `torch.compile`, which no tensor has as a size, against eager
PyTorch."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.dynamo.torch_backend import check, compiled, gradients

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
NUMBERS = (3, 5, -7, 257, 100_003)


def scaled(x: Any, k: int) -> Any:
    return torch.relu(x * k) + k % 3, (k // 2 - x).sum()


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int32, torch.uint8])
def test_numbers_in_place_of_tensors(kind: Any) -> None:
    """The type of the result is the tensor's."""
    x = torch.randint(1, 9, (4, 3)).to(kind)
    reports = check(scaled, *((x, k) for k in NUMBERS), parts=None, dynamic=True)
    assert any(r.coverage().compiled_parts for r in reports), [r.coverage() for r in reports]
    assert not any(r.uncompiled for r in reports if r.parts), [r.uncompiled for r in reports]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_numbers_beside_16_bits_are_not_rounded(kind: Any) -> None:
    x = torch.randint(1, 9, (4, 3)).to(kind)
    check(lambda x, k: torch.relu(x * k) + k % 3, *((x, k) for k in (3, 5, -7, 257, 1003)), parts=None, dynamic=True)


def test_gradients_beside_numbers() -> None:
    def function(x: Any, k: int) -> Any:
        return torch.tanh(x * k) * k + x.shape[0]

    x, f = torch.randn(4, 3, requires_grad=True), compiled(function, dynamic=True)
    for k in (3, 5, -7):
        exact = x.detach().double().requires_grad_()
        (want,) = gradients(lambda v, k=k: function(v, k), (exact,), lambda y: y.sum())
        (result,) = gradients(lambda v, k=k: f(v, k), (x,), lambda y: y.sum())
        # In k^2 (1 - tanh^2) two last places of tanh, 2^-24 each next to 1, count twice.
        torch.testing.assert_close(result.double(), want, rtol=0, atol=4 * k * k * 2.0**-24)


def test_other_operators_that_read_numbers_are_named(caplog: Any) -> None:
    """The rest of the graph is compiled."""

    def function(x: Any, k: int) -> Any:
        return torch.softmax(torch.tanh(x) * 2, -1) + torch.arange(k).sum()

    f = compiled(function, dynamic=True)
    with caplog.at_level(logging.WARNING, logger="tilewright.dynamo"), torch.no_grad():
        for k in (5, 6, 9):
            torch.testing.assert_close(f(torch.ones(4, 3), k), function(torch.ones(4, 3), k))
    texts = [r.getMessage() for r in caplog.records if "aten.arange" in r.getMessage()]
    assert len(texts) == 1 and "1 aten.arange (aten.arange reads the argument" in texts[0], texts
    assert "an integer that is no size of a tensor)" in texts[0]
