"""Graph networks' scatters and gathers by PyTorch's names: rows, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")

EDGES = 40
CASES: dict[str, Callable[..., Any]] = {
    "index_add": lambda x, i, u: torch.index_add(x, 0, i, u),
    "scatter_add": lambda x, i, u: torch.scatter_add(x, 0, i[:, None].expand(-1, x.shape[1]), u),
    "scatter_reduce": lambda x, i, u: x.scatter_reduce(0, i[:, None].expand_as(u), u, "amax"),
    "gather": lambda x, i, u: torch.gather(x, 0, i[:, None].expand(-1, x.shape[1])) * u,
    "along the second axis": lambda x, i, u: torch.index_add(x.T[None], 2, i, u.T[None]),
    "batched": lambda x, i, u: torch.scatter_add(
        x[None].repeat(2, 1, 1),
        1,
        torch.stack([i, i.flip(0)])[..., None].expand(-1, -1, x.shape[1]),
        u[None].repeat(2, 1, 1),
    ),
}


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


@pytest.mark.parametrize("case", CASES)
def test_rows_by_every_name(case: str) -> None:
    torch.manual_seed(0)
    x, i, u = torch.rand(9, 6), torch.randint(0, 9, (EDGES,)), torch.rand(EDGES, 6)
    module = Of(CASES[case])
    compiled = tw.compile(module, (x, i, u), dynamic=None)
    torch.testing.assert_close(compiled(x, i, u), module(x, i, u))
    if case != "along the second axis":
        assert "_elements(" not in str(compiled.show("graph"))


class Convolution(torch.nn.Module):
    """A layer of a graph network: sums of neighbours, by `scatter_add`, of a linear layer's rows, by `gather`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 8)

    def forward(self, x: Any, source: Any, target: Any) -> Any:
        y = self.linear(x)
        sent = torch.gather(y, 0, source[:, None].expand(-1, 8))
        return torch.zeros_like(y).scatter_add(0, target[:, None].expand(-1, 8), sent)


def test_a_step_of_a_graph_network() -> None:
    torch.manual_seed(1)
    module = Convolution()
    x, source, target = torch.rand(9, 6), torch.randint(0, 9, (EDGES,)), torch.randint(0, 9, (EDGES,))
    wanted = module(x, source, target).square().mean()
    wanted.backward()
    gradients = {name: p.grad.numpy().copy() for name, p in module.named_parameters()}
    weights = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    step = tw.compile_step(
        module, lambda m, *inputs: m(*inputs).square().mean(), tw.train.SGD(1.0), (x, source, target)
    )
    assert "_elements(" not in str(step.show("graph"))
    result = step(x, source, target)
    np.testing.assert_allclose(result["loss"], float(wanted.detach()), rtol=1e-5)
    for name, value in step.state_dict().items():
        if name in gradients:
            np.testing.assert_allclose(np.asarray(value), weights[name] - gradients[name], rtol=1e-4, atol=1e-5)
