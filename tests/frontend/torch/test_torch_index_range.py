"""Indices that are known when compiling, beyond an open dimension: calls raise where eager PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tests.frontend.torch.torch_checks import nn, torch
from tilewright.support.errors import CallError, ModelError

F = nn.functional
SIZES = range(6)


def at(*places: int) -> Any:
    return torch.tensor(places)


def rows(*places: int) -> Any:
    """Places for each of three columns."""
    return torch.tensor([[p] * 3 for p in places])


FORWARD: dict[str, Callable[[Any], Any]] = {
    "index": lambda x: x[at(3, 0)],
    "index of two axes": lambda x: x[at(3, 0), at(0, 2)],
    "index of a later axis": lambda x: x.T[:, at(3, 0)],
    "index that is computed": lambda x: x[(at(1, 0) * 3).unsqueeze(1).repeat(1, 2)],
    "index by a range": lambda x: x[torch.arange(4)],
    "index that is repeated": lambda x: x[torch.full((x.shape[0],), 3)],
    "index by a range of sizes": lambda x: torch.cat([x, x])[torch.arange(x.shape[0]) + 3],
    "index_select": lambda x: x.index_select(0, at(3, 0)),
    "gather": lambda x: x.gather(0, rows(3, 0)),
    "take": lambda x: x.take(at(10, 0)),
    "embedding": lambda x: F.embedding(at(3, 0), x),
    "embedding_bag": lambda x: F.embedding_bag(at(3, 0)[None], x, mode="sum"),
    "scatter": lambda x: x.scatter(0, rows(3, 0), torch.ones(2, 3)),
    "scatter of a number": lambda x: x.scatter(0, rows(3, 0), 2.0),
    "scatter_add": lambda x: x.scatter_add(0, rows(3, 0), torch.ones(2, 3)),
    "scatter_reduce": lambda x: x.scatter_reduce(0, rows(3, 0), torch.ones(2, 3), "amax", include_self=False),
    "index_add": lambda x: x.index_add(0, at(3, 0), torch.ones(2, 3)),
    "index_copy": lambda x: x.index_copy(0, at(3, 0), torch.ones(2, 3)),
    "index_fill": lambda x: x.index_fill(0, at(3, 0), 2.0),
    "index_put": lambda x: x.index_put((at(3, 0),), torch.ones(2, 3)),
    "index_put of two axes": lambda x: x.index_put((at(3, 0), at(0, 2)), torch.ones(2), accumulate=True),
    "put": lambda x: x.put(at(10, 0), torch.ones(2)),
}
FROM_THE_END: dict[str, Callable[[Any], Any]] = {
    "index": lambda x: x[at(-3, 0)],
    "take": lambda x: x.take(at(-8, 0)),
    "index_fill": lambda x: x.index_fill(0, at(-3, 0), 2.0),
    "index_put": lambda x: x.index_put((at(-3, 0),), torch.ones(2, 3)),
    "put": lambda x: x.put(at(-8, 0), torch.ones(2)),
}


class Of(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def compare(module: Any) -> None:
    """At each size what eager PyTorch gives, or an error where it raises one; both happen. No program serves size 0."""
    compiled = tw.compile(module.eval(), torch.zeros(6, 3), dynamic={"x": {0: "n"}})
    served = []
    for size in SIZES:
        x = torch.arange(3.0 * size).reshape(size, 3)
        try:
            expected = module(x)
        except (IndexError, RuntimeError):
            expected = None
        if expected is None or size == 0:
            with pytest.raises(CallError, match="expected"):
                compiled(x)
            continue
        served.append(size)
        torch.testing.assert_close(torch.as_tensor(compiled(x)), expected, rtol=0, atol=0)
    assert 0 < len(served) < len(SIZES) - 1


@pytest.mark.parametrize("case", FORWARD)
def test_places_from_the_beginning(case: str) -> None:
    compare(Of(FORWARD[case]))


@pytest.mark.parametrize("case", FROM_THE_END)
def test_places_from_the_end(case: str) -> None:
    compare(Of(FROM_THE_END[case]))


def test_places_of_a_buffer() -> None:
    class Chosen(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.tensor([3, 0]))

        def forward(self, x: Any) -> Any:
            return x[self.places[:, None].expand(2, x.shape[1])[:, 0]]

    compare(Chosen())


def test_the_message_says_the_size() -> None:
    compiled = tw.compile(Of(lambda x: x[at(3, 0)]), torch.zeros(6, 3), dynamic={"x": {0: "n"}})
    with pytest.raises(CallError, match=r"expected n in 4\.\.\d*, got 3"):
        compiled(torch.zeros(3, 3))


@pytest.mark.parametrize("case", ["index_select", "gather", "embedding", "index_add"])
def test_negative_places_that_eager_refuses(case: str) -> None:
    """Some operators take no places from the end, whatever the size."""
    functions: dict[str, Callable[[Any], Any]] = {
        "index_select": lambda x: x.index_select(0, at(-1)),
        "gather": lambda x: x.gather(0, rows(-1)),
        "embedding": lambda x: F.embedding(at(-1), x),
        "index_add": lambda x: x.index_add(0, at(-1), torch.ones(1, 3)),
    }
    with pytest.raises((IndexError, RuntimeError)):
        functions[case](torch.zeros(6, 3))
    with pytest.raises(ModelError, match=rf"holds for no sizes.*the indices of aten\.{case}"):
        tw.compile(Of(functions[case]), torch.zeros(6, 3), dynamic={"x": {0: "n"}})


def test_places_of_positions() -> None:
    """A table of 4 rows for a sequence that may be longer."""

    class Positions(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(6, 3)

        def forward(self, x: Any) -> Any:
            return x + self.table(torch.arange(x.shape[0]) + 2)

    module = Positions().eval()
    compiled = tw.compile(module, torch.zeros(3, 3), dynamic={"x": {0: "n"}})
    for size in (1, 4):
        torch.testing.assert_close(torch.as_tensor(compiled(torch.ones(size, 3))), module(torch.ones(size, 3)))
    with pytest.raises(IndexError):
        module(torch.ones(5, 3))
    with pytest.raises(CallError, match=r"expected n in 1\.\.4, got 5"):
        compiled(torch.ones(5, 3))


def test_branches_that_may_not_run() -> None:
    """A branch may read places that only those sizes have that come to it."""

    class Guarded(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.tensor([3, 0]))

        def forward(self, x: Any) -> Any:
            return torch.cond(x.shape[0] > 3, lambda x, i: x[i].sum(0), lambda x, i: x.sum(0), (x, self.places))

    module = Guarded().eval()
    compiled = tw.compile(module, torch.zeros(6, 3), dynamic={"x": {0: "n"}})
    for size in (1, 3, 4, 5):
        x = torch.arange(3.0 * size).reshape(size, 3)
        torch.testing.assert_close(torch.as_tensor(compiled(x)), module(x))
