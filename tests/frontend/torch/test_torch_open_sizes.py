"""Operators along open dimensions, and programs that PyTorch traces for some sizes alone: those of the example are
among them; run by `make torch`."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tests.frontend.torch.torch_checks import Functional, assert_close, check, nn, torch
from tilewright.support.errors import CallError

F = nn.functional


def tied(rows: int) -> Any:
    """Small whole numbers, so that several are equal."""
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(-3, 4, (rows, 6), generator=generator).float()


def test_medians_of_open_dimensions() -> None:
    """Values alone: which of equal elements it is, PyTorch does not say."""
    nan = float("nan")
    check(
        Functional(
            lambda x: x.median(0).values,
            lambda x: x.median(),
            lambda x: torch.where(x == 1, nan, x).nanmedian(0, keepdim=True).values,
            lambda x: torch.where(x == 1, nan, x).median(0).values,
        ),
        lambda rows: (tied(rows),),
    )


CHOSEN: dict[str, Any] = {
    "amax": lambda x: x.amax(1),
    "amin of all": lambda x: x.amin(),
    "aminmax": lambda x: x.aminmax(dim=1).max,
    "argmax": lambda x: x.argmax(1),
    "argmin of all": lambda x: x.argmin(),
    "kthvalue": lambda x: x.kthvalue(1, 1).values,
    "max": lambda x: x.max(),
    "median": lambda x: x.median(1).values,
    "min": lambda x: x.min(1).indices,
    "mode": lambda x: x.mode(1).values,
    "topk": lambda x: x.topk(1, 1).indices,
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", CHOSEN)
def test_no_element_is_chosen_along_an_empty_dimension(name: str) -> None:
    function = CHOSEN[name]
    example = (torch.ones(3, 5),)
    compiled = tw.compile(Functional(function), example, dynamic={"args_0": {1: "n"}}, dims={"n": tw.dim(0, 9)})
    x = torch.arange(21.0).reshape(3, 7) % 5
    assert_close([compiled(x)], [function(x)])
    with pytest.raises((IndexError, RuntimeError)):
        function(x[:, :0])
    with pytest.raises(
        CallError, match=r"along an empty dimension: expected at least 1, got 0|expected n in [12]\.\.9"
    ):
        compiled(x[:, :0])


def test_the_median_of_no_element_is_nan() -> None:
    compiled = tw.compile(
        Functional(lambda x: x.median()), (torch.ones(3, 5),), dynamic={"args_0": {1: "n"}}, dims={"n": tw.dim(0, 9)}
    )
    assert compiled(torch.zeros(3, 0)).isnan() and torch.zeros(3, 0).median().isnan()
    assert compiled(torch.arange(6.0).reshape(3, 2)) == 2


@pytest.mark.parametrize("padding", [None, 0])
def test_bags_of_open_batches(padding: int | None) -> None:
    """Sums, means, maxima, weighted ones and bags by offsets, some of them empty."""

    def inputs(rows: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(rows)
        index = torch.randint(0, 3, (rows, 4), generator=generator)
        return index, torch.randn(7, 5, generator=generator), torch.randn(rows, 4, generator=generator)

    def by_offsets(index: Any, table: Any, _: Any) -> Any:
        starts = torch.tensor([0, 2, 2, 4])
        return F.embedding_bag(index.flatten(), table, starts, mode="sum", padding_idx=padding)

    check(
        Functional(
            *(
                lambda i, t, w, mode=mode: F.embedding_bag(i, t, mode=mode, padding_idx=padding)
                for mode in ("sum", "mean", "max")
            ),
            lambda i, t, w: F.embedding_bag(i, t, mode="sum", per_sample_weights=w, padding_idx=padding),
            by_offsets,
        ),
        inputs,
    )


def test_factors_that_are_sizes() -> None:
    check(
        Functional(lambda x, w: torch.addbmm(x, x[None], w[None], beta=x.shape[0], alpha=x.shape[0])),
        lambda rows: (tied(rows), torch.eye(6)),
    )


def test_first_of_equal_maxima_of_a_bag_has_the_gradient() -> None:
    table = nn.EmbeddingBag(4, 2, mode="max", padding_idx=3)
    with torch.no_grad():
        table.weight.copy_(torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 0.0], [9.0, 9.0]]))
    index = torch.tensor([[2, 1, 0], [3, 3, 3]])
    expected = torch.autograd.grad((table(index) * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum(), table.weight)[0]
    bags = tw.differentiable(table, (index,))(index)
    result = torch.autograd.grad((bags * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum(), table.weight)[0]
    torch.testing.assert_close(result, expected)


def test_pooling_along_open_dimensions() -> None:
    """Windows of one dimension, also beyond its end, and adaptive ones of all extents."""
    check(
        Functional(
            lambda x: F.max_pool1d(x.T[None], 1),
            lambda x: F.max_pool1d(x.T, 3, 2, padding=1),
            lambda x: F.max_pool1d(x.T[None], 2, 3, padding=1, ceil_mode=True),
            lambda x: F.adaptive_avg_pool1d(x.T[None], 2),
            lambda x: F.adaptive_max_pool1d(x.T[None], 3),
            lambda x: F.adaptive_avg_pool2d(x[None], (2, 4)),
            lambda x: F.adaptive_avg_pool2d(x[None], (None, 2)),
            lambda x: F.adaptive_max_pool2d(x[None], (3, 2)),
        ),
        lambda rows: (tied(rows),),
    )


def test_the_example_is_served() -> None:
    """`reshape(2, -1)` is traced for odd sizes or for even ones: for those of the example."""
    module = Functional(lambda x: x.reshape(2, -1)).eval()
    model = tw.compile(module, torch.zeros(4, 3))
    for rows in (4, 6, 8):
        assert_close([model(tied(rows)[:, :3].contiguous())], module(tied(rows)[:, :3])[0])
    with pytest.raises(CallError, match=r"a multiple of 2, got 3"):
        model(torch.zeros(3, 3))


def test_integers() -> None:
    """Powers, also negative ones and those that wrap around; sums of products that wrap around; bits of floats."""

    def inputs(rows: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(rows)
        base = torch.randint(-4, 5, (rows, 6), generator=generator)
        small = torch.randint(-128, 128, (rows, 6), generator=generator, dtype=torch.int8)
        exponent = torch.randint(-3, 12, (rows, 6), generator=generator, dtype=torch.int8)
        return base, small, exponent, torch.randn(rows, 6, generator=generator)

    check(
        Functional(
            lambda a, s, e, x: (a**5, a**13, s**7, s.to(torch.uint8) ** 3),
            lambda a, s, e, x: (s**e, 2 ** e.clamp(min=0)),
            lambda a, s, e, x: s @ s.T,
            lambda a, s, e, x: (x.view(torch.int32), x.view(torch.int32).view(torch.float32)),
            lambda a, s, e, x: (torch.clamp(x, float("nan"), 1.0), torch.clamp(x, max=float("nan"))),
        ),
        inputs,
        batches=(1, 5),
    )


class Windows(nn.Module):  # type: ignore[misc,name-defined]
    """Windows of an image that is padded to whole ones, as Swin's; PyTorch traces it for several along an axis."""

    def forward(self, x: Any) -> Any:
        batch, height, width, channels = x.shape
        x = F.pad(x, (0, 0, 0, (4 - width % 4) % 4, 0, (4 - height % 4) % 4))
        _, high, wide, _ = x.shape
        v = x.view(batch, high // 4, 4, wide // 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        v = torch.softmax(v.reshape(-1, 16, channels), 1)
        v = v.view(-1, high // 4, wide // 4, 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        return v.reshape(-1, high, wide, channels)[:, :height, :width].contiguous()


def test_windows_of_padded_images() -> None:
    model = tw.compile(Windows(), torch.zeros(2, 9, 10, 3), dynamic={"x": {0: "b", 1: "h", 2: "w"}})
    for shape in ((2, 5, 7, 3), (1, 8, 14, 3), (3, 9, 12, 3)):
        x = torch.randn(shape)
        assert_close([model(x)], Windows()(x))


def test_rows_whose_number_the_exporter_takes_for_granted() -> None:
    """PyTorch's exporter supposes sizes of 2 and more and says two rows for `x[:2]`: so do programs."""

    class Rows(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:2] + torch.ones(2, 6), x.index_copy(0, torch.tensor([1, 0]), x[:2])

    module, x = Rows(), torch.randn(4, 6)
    exported = torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    for compiled in (tw.compile(module, x), tw.compile(exported)):
        for size in (2, 3, 9):
            rows = torch.randn(size, 6)
            for got, want in zip(compiled(rows), module(rows), strict=True):
                torch.testing.assert_close(torch.as_tensor(got), want, rtol=0, atol=0)
        with pytest.raises(CallError, match=r"a dimension is out of range: expected \w+ in 2\.\."):
            compiled(torch.randn(1, 6))


def test_whether_any_of_no_elements_is_true() -> None:
    model = Functional(
        lambda x: (x > 0).any(),
        lambda x: (x > 0).all(),
        lambda x: x.any(0),
        lambda x: x.all(0, keepdim=True),
        lambda x: x.to(torch.int32).any(1),
    )
    compiled = tw.compile(model, torch.zeros(3, 4), dims={"batch": tw.dim(0, 9)})
    for rows in (0, 1, 3, 9):
        x = torch.randn(rows, 4) * (rows != 1)
        for got, want in zip(compiled(x), model(x), strict=True):
            assert got.dtype == want.dtype and torch.equal(got, want)


def test_no_rows_of_an_open_size() -> None:
    """Tensors without elements, one of whose sizes is open."""
    check(
        Functional(
            lambda x: x.new_zeros(0, x.shape[0]) * 2,
            lambda x: x.new_full((0, x.shape[0] + 1), 3.0).sigmoid(),
            lambda x: x.new_ones(x.shape[0], 0).sum(1),
        ),
        lambda rows: (torch.randn(rows, 4),),
    )
