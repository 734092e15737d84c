"""Tensors of one element as numbers and as places, and what PyTorch asks in Python of a mask, against eager PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.torch.torch_checks import Functional, assert_close, interpreted, nn, torch
from tilewright.frontend.read import import_model
from tilewright.support.errors import CallError, ModelError, UnsupportedError


def check(function: Any, *calls: tuple[Any, ...], **options: Any) -> None:
    """Compare a function with eager PyTorch for each of its calls, of which the first is the example."""
    imported = import_model(Functional(function), example=calls[0], **{"dynamic": None, **options})
    for inputs in calls:
        with torch.no_grad():
            expected = function(*(x.clone() for x in inputs))
        assert_close(interpreted(imported, *inputs), expected, what=str(inputs[1:]))


def places(*numbers: Any) -> list[Any]:
    return [torch.tensor(n) for n in numbers]


def test_an_element_is_a_number() -> None:
    def computed(x: Any, k: Any) -> Any:
        number = k.item()
        bounded = x * min(number, 3) + max(number, -1) / 2
        return x * number, bounded, x.long() + (number // 2) % 3, torch.full_like(x, number), torch.arange(4) * number

    def real(x: Any, s: Any) -> Any:
        number = s.item()
        return x / number + 2 * number, torch.full((2,), number), x.clamp(max=number), x + number**2

    x = torch.randn(4, 3)
    check(computed, *((x, k) for k in places(2, -7, 0)))
    check(real, *((x, s) for s in places(2.0, -7.5)))
    check(lambda x, b: torch.where(b, x, -x) * b.item(), *((x, b) for b in places(True, False)))
    check(lambda x, _: x / x.sum().item(), (x, x))


WHOLE: dict[str, Any] = {
    "absolute": lambda x, k: x * abs(k.item()),
    "powers": lambda x, k: x.double() * (k.item() ** 3 + k.item() ** 0),
    "bits": lambda x, k: x * (k.item() & 3),
    "compared": lambda x, k: x * (k.item() > 2.5) + (k.item() <= 2),
}
REAL: dict[str, Any] = {
    "absolute": lambda x, s: x * abs(s.item()),
    "rounded": lambda x, s: x * round(s.item()) + math.trunc(s.item()) - math.floor(s.item()) * math.ceil(s.item()),
    "divided": lambda x, s: x * (s.item() // 0.75),
    "remainder": lambda x, s: x * (s.item() % 0.75 + 1),
    "compared": lambda x, s: x * (s.item() > 0.5) + (s.item() % 2 >= 1.25),
}


@pytest.mark.parametrize("way", WHOLE)
def test_functions_of_an_integer_element(way: str) -> None:
    x = torch.randn(4, 3)
    check(WHOLE[way], *((x, k) for k in places(2, -7, 0, 6)))


@pytest.mark.parametrize("way", REAL)
def test_functions_of_a_real_element(way: str) -> None:
    """Halves are rounded to even numbers, and remainders have the divisor's sign."""
    x = torch.randn(4, 3)
    check(REAL[way], *((x, s) for s in places(2.5, -7.25, -0.5, 1.5, 0.0)))


def test_functions_of_an_element_that_are_refused_by_name() -> None:
    x = torch.randn(4, 3)
    for function in (lambda x: x * int(x[0, 0].item()), lambda x: x * math.exp(x[0, 0].item())):
        with pytest.raises(ModelError, match=r"a Python number, for int\(\), float\(\) or a function of math"):
            check(function, (x,))
    with pytest.raises(UnsupportedError, match="RoundDecimal"):
        check(lambda x: x * round(x[0, 0].item(), 2), (x,))


def test_an_element_is_a_place() -> None:
    x = torch.randn(4, 3)
    check(lambda x, k: (x[k], x[:, k], x[k, None, 1:]), *((x, k) for k in places(0, 2, -1)))
    check(lambda x, k: x[k.argmax()] + x[k.max() - 1], (x, torch.tensor([1, 3, 2])), (x, torch.tensor([0, 1, 1])))


@pytest.mark.parametrize(
    "function",
    [lambda x, k: x[k.item()], lambda x, k: torch.select_scatter(x, x[0], 0, k.item()), lambda x, k: x.select(0, k)],
)
def test_a_place_outside_is_refused_by_the_call(function: Any) -> None:
    x = torch.randn(4, 3)
    model = tw.compile(Functional(function), example=(x, torch.tensor(1)), dynamic=None)
    for inside in (3, -4):
        assert torch.equal(model(x, torch.tensor(inside)), function(x, torch.tensor(inside)))
    for outside in (4, -5, 1 << 40, -(1 << 40)):
        with pytest.raises(CallError, match="the place is outside of the dimension"):
            model(x, torch.tensor(outside))


def test_an_element_is_a_place_to_write_to() -> None:
    def cached(cache: Any, k: Any, x: Any) -> Any:
        cache = cache.clone()
        cache[:, k] = x
        return cache

    def others(cache: Any, k: Any, m: Any, x: Any) -> Any:
        a, b, c, d = (cache.clone() for _ in range(4))
        a[..., k, None, 1:, m] = x
        b[m, :, ..., 1] = 1.5
        b[0, k, m] += x[0, 0, :4]
        b[1, k, m] = x[:1, :, :4]  # more dimensions, of one element, than the place has
        c[m] = 7
        d[:, m, k, 2] *= 2
        return a, b, c, d

    example = torch.randn(2, 5, 3), torch.tensor(2), torch.randn(2, 3)
    larger = [(torch.randn(3, 6, 3), k, torch.randn(3, 3)) for k in places(0, 5, -1, -6)]
    check(cached, example, *larger, dynamic={"args_0": {0: "batch", 1: "steps"}, "args_2": {0: "batch"}})
    cache, x = torch.randn(2, 3, 5, 6, 4), torch.randn(3, 1, 5)
    check(others, *((cache, k, m, x) for k in places(1, -1) for m in places(0, -2)))


def test_masks_of_transformers_are_not_looked_at() -> None:
    class Pair(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

        def forward(self, a: Any, b: Any) -> Any:
            return self.body(a, b, tgt_mask=nn.Transformer.generate_square_subsequent_mask(b.shape[1]))

    module = Pair().eval()
    dynamic = {"a": {0: "batch", 1: "s"}, "b": {0: "batch", 1: "t"}}
    imported = import_model(module, example=(torch.randn(2, 7, 8), torch.randn(2, 5, 8)), dynamic=dynamic)
    for batch, s, t in ((2, 7, 5), (3, 2, 6)):
        inputs = torch.randn(batch, s, 8), torch.randn(batch, t, 8)
        with torch.no_grad():
            assert_close(interpreted(imported, *inputs), module(*inputs), 1e-5)


WRITES: dict[str, Any] = {
    "a part": lambda windows: windows[..., 0].fill_(5),
    "one of several views": lambda windows: windows.unbind(0)[1].mul_(2),
    "a split": lambda windows: windows.split(2)[0].zero_(),
    "a result": lambda windows: torch.mul(windows, 2, out=windows),
}


@pytest.mark.parametrize("way", WRITES)
def test_writes_to_windows_through_views(way: str) -> None:
    def function(x: Any, _: Any) -> Any:
        x = x.clone()
        WRITES[way](x.unfold(0, 2, 3))
        return x

    x = torch.randn(9)
    with pytest.raises(UnsupportedError, match="windows"):
        check(function, (x, x))
    check(lambda x, _: [v * 2 for v in x.unfold(0, 2, 3).unbind(0)], (x, x))  # read


@pytest.mark.parametrize(("length", "size", "step", "serves"), [(6, 2, 2, True), (7, 2, 2, False), (6, 1, 2, False)])
def test_writes_to_windows(length: int, size: int, step: int, serves: bool) -> None:
    """PyTorch writes zeros between windows where it makes a graph functional."""

    def function(x: Any, _: Any) -> Any:
        x = x.clone()
        x.unfold(0, size, step)[..., 0] = 5
        return x

    x = torch.randn(length)
    if serves:
        check(function, (x, x))
    else:
        with pytest.raises(UnsupportedError, match="windows"):
            check(function, (x, x))


def test_the_index_of_a_window_with_nan_is_that_of_the_last_one() -> None:
    x = torch.randn(1, 2, 6, 8)
    x[..., ::2, ::2] = math.nan
    x[:, 1, 3] = 9.0  # equal numbers: the first one

    def pooled(x: Any) -> Any:
        single = torch.nn.functional.max_pool1d(x[0, 0], 4, return_indices=True)[1]
        overlapping = torch.nn.functional.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)[1]
        return single, overlapping, torch.nn.functional.max_pool2d(x, 2, return_indices=True)[1]

    module = Functional(pooled)
    for got, expected in zip(tw.compile(module, (x,), dynamic=None)(x), pooled(x), strict=True):
        assert torch.equal(torch.as_tensor(np.asarray(got)), expected)


WINDOWS: dict[str, Any] = {
    "of one dimension": lambda x: torch.nn.functional.max_pool1d(x[0], 4),
    "overlapping": lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "adaptive, equal": lambda x: torch.nn.functional.adaptive_max_pool2d(x, (3, 4)),
    "adaptive, unequal": lambda x: torch.nn.functional.adaptive_max_pool2d(x, (4, 3)),
    "adaptive, one": lambda x: torch.nn.functional.adaptive_max_pool2d(x, 1),
}


def with_nan() -> Any:
    x = torch.randn(1, 2, 6, 8)
    x[..., ::2, ::2] = math.nan
    x[:, 1, :, 4:] = 9.0  # equal numbers: the first one
    x[:, 1, 0, 5:7] = math.nan
    return x


@pytest.mark.parametrize("size", [(3, 4), (4, 3), (6, 5), (1, 1)])
@pytest.mark.parametrize("dynamic", [None, "auto"])
def test_the_index_of_an_adaptive_window_with_nan_is_that_of_the_last_one(size: Any, dynamic: Any) -> None:
    def pooled(x: Any) -> Any:
        return torch.nn.functional.adaptive_max_pool2d(x, size, return_indices=True)

    x = with_nan()
    for got, expected in zip(tw.compile(Functional(pooled), (x,), dynamic=dynamic)(x), pooled(x), strict=True):
        assert torch.equal(torch.nan_to_num(torch.as_tensor(np.asarray(got))), torch.nan_to_num(expected))


@pytest.mark.parametrize("windows", WINDOWS)
def test_the_gradient_of_a_window_with_nan_flows_to_the_last_one(windows: str) -> None:
    function, x = WINDOWS[windows], with_nan()
    expected = x.clone().requires_grad_()
    y = function(expected)
    weights = torch.arange(1.0, y.numel() + 1).reshape(y.shape)
    y.backward(weights)
    mine = x.clone().requires_grad_()
    (result,) = tw.differentiable(Functional(function), example=(x,))(mine)
    result.backward(weights)
    assert torch.equal(mine.grad, expected.grad)


MASKED: dict[str, Any] = {
    "an axis within": lambda x, row, plane, i: x[:, row],
    "the last axis": lambda x, row, plane, i: x[..., plane[0]],
    "two axes within": lambda x, row, plane, i: x[None][:, :, plane],
    "after an index": lambda x, row, plane, i: x[i, row],
    "before an index": lambda x, row, plane, i: x[:, row, i],
    "apart from an index": lambda x, row, plane, i: x[i, :, plane[0]],
    "an index of one element in two dimensions": lambda x, row, plane, i: x[i[None], row],
    "two axes after an index": lambda x, row, plane, i: x[i, plane],
    "written": lambda x, row, plane, i: torch.index_put(x, (i, row), torch.tensor(7.0)),
    "written to two axes": lambda x, row, plane, i: torch.index_put(x, (i, plane), torch.tensor(7.0)),
    "added": lambda x, row, plane, i: torch.index_put(x, (i, row), torch.ones(5), accumulate=True),
}


@pytest.mark.parametrize("form", MASKED)
def test_a_mask_among_other_indices(form: str) -> None:
    x, i = torch.randn(4, 3, 5), torch.tensor([-1])
    function = MASKED[form]
    compiled = tw.compile(Functional(function), (x, torch.ones(3) > 0, torch.ones(3, 5) > 0, i), dynamic=None)
    for _ in range(4):
        row, plane = torch.rand(3) > 0.5, torch.rand(3, 5) > 0.5
        expected = function(x, row, plane, i)
        got = compiled(x, row, plane, i)
        assert torch.equal(torch.as_tensor(np.asarray(got)), expected)


SHARED: dict[str, Any] = {
    "a sum": lambda x, y, mask: x[mask] + y[mask],
    "a loss": lambda x, y, mask: torch.nn.functional.mse_loss(x[mask], y[mask], reduction="sum"),
    "a product": lambda x, y, mask: x[mask].T @ y[mask],
    "places and elements": lambda x, y, mask: torch.nonzero(mask) * torch.masked_select(x[:, 0], mask)[:, None],
    "an axis within": lambda x, y, mask: x.T[:, mask] + y.T[:, mask],
    "copied": lambda x, y, mask: torch.ops.aten.index_put(x.T, [None, mask], y.T[:, mask]),
}


@pytest.mark.parametrize("form", SHARED)
def test_what_one_mask_reads_has_one_size(form: str) -> None:
    function = SHARED[form]
    x, y = torch.randn(6, 3), torch.randn(6, 3)
    compiled = tw.compile(Functional(function), (x, y, torch.ones(6) > 0), dynamic=None)
    for mask in (torch.arange(6) % 3 > 0, torch.ones(6) > 0, torch.zeros(6) > 0):
        got, expected = torch.as_tensor(np.asarray(compiled(x, y, mask))), function(x, y, mask)
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
