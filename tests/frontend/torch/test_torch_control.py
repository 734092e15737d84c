"""PyTorch's control flow (`cond`, `while_loop`, `scan`) against eager PyTorch, and the state after a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

from torch import nn  # noqa: E402  after what may skip
from torch._higher_order_ops.map import map as torch_map  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

import tilewright as tw  # noqa: E402

X = torch.linspace(-1, 1.2, 12).reshape(4, 3)


class Of(nn.Module):
    """A function of an input and a layer."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self.layer, x)


def nested(layer: Any, x: Any) -> Any:
    def inner(x: Any) -> Any:
        return torch.cond(x.amax() > 0.5, lambda x: x * 3, lambda x: x - 3, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x + 1, (x,)).tanh()


def several(layer: Any, x: Any) -> Any:
    a, b = torch.cond(x.sum() > 0, lambda x: (x * 2, x.sum()), lambda x: (x - 1, x.amin()), (x,))
    return a + b


def halved(layer: Any, x: Any) -> Any:
    result = while_loop(lambda k, v: (v.abs().sum() > 1) & (k < 20), lambda k, v: (k + 1, v / 2), (torch.tensor(0), x))
    return result[1] + result[0]


def layered(layer: Any, x: Any) -> Any:
    result = while_loop(lambda k, v: k < 3, lambda k, v: (k + 1, torch.tanh(layer(v))), (torch.tensor(0), x))
    return result[1]


def running(layer: Any, x: Any) -> Any:
    def step(state: Any, row: Any) -> Any:
        state = torch.tanh(layer(row) + state)
        return state, state * 2

    last, rows = scan(step, torch.zeros(3), x, dim=0)
    return rows + last


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "tensor": lambda layer, x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)),
    "layers": lambda layer, x: torch.cond(x.sum() > 0, lambda x: layer(x), lambda x: layer(x) * 2, (x,)),
    "nested": nested,
    "several": several,
    "while_loop": halved,
    "while_loop of a layer": layered,
    "scan": running,
    "map": lambda layer, x: torch_map(lambda row, y: layer(row) * y, x, x.amax(0)),
}
INPUTS = (X, X + 1, X - 1, X * 9 + 1)


@pytest.mark.parametrize("dynamic", [None, "auto"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_control_flow(name: str, dynamic: Any) -> None:
    module = Of(FUNCTIONS[name])
    compiled = tw.compile(module, (X,), dynamic=dynamic)
    for x in INPUTS:
        np.testing.assert_allclose(compiled(x), module(x).detach(), rtol=1e-5, atol=1e-6)
        if dynamic:
            np.testing.assert_allclose(compiled(x[:3]), module(x[:3]).detach(), rtol=1e-5, atol=1e-6)


SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "one": lambda layer, x: torch.cond(x.shape[0] > 5, lambda x: x * 2, lambda x: x - 1, (x,)),
    "equal": lambda layer, x: torch.cond(x.shape[0] == 6, lambda x: layer(x), lambda x: x - 1, (x,)),
    "remainder": lambda layer, x: torch.cond(x.shape[0] % 2 == 0, lambda x: x * 2, lambda x: x - 1, (x,)),
    "sums": lambda layer, x: torch.cond(2 * x.shape[0] + 1 <= 9, lambda x: x * 2, lambda x: x - 1, (x,)),
}


@pytest.mark.parametrize("name", SIZES)
def test_conditions_on_sizes(name: str) -> None:
    """One program takes the branch that each size takes."""
    module = Of(SIZES[name])
    compiled = tw.compile(module, (torch.ones(3, 3),), dynamic={"x": {0: "rows"}})
    for rows in (3, 9, 5, 6, 4):
        x = torch.randn(rows, 3)
        np.testing.assert_allclose(compiled(x), module(x).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["tensor", "layers", "several", "nested", "scan"])
def test_gradients(name: str) -> None:
    """A learning step goes back through the branch that was taken, or is refused by name where PyTorch itself cannot
    run the control flow with gradients."""
    x = X + 1
    module, eager = Of(FUNCTIONS[name]), Of(FUNCTIONS[name])
    for m in (module, eager):
        m.scale = nn.Parameter(torch.tensor(1.5))
    loss = lambda m, x: (m(x * m.scale) ** 2).sum()  # noqa: E731
    try:
        step = tw.compile_step(module, loss, tw.train.SGD(0.01), example=(x,))
    except tw.errors.UnsupportedError as error:
        assert name in ("nested", "scan"), error
        assert "control flow" in str(error)
        return
    for batch in (x, X - 1):
        before = step.parameters["scale"].copy()
        result = step(batch)["loss"]
        with torch.no_grad():
            eager.load_state_dict({**eager.state_dict(), "scale": torch.as_tensor(before)})
        eager.zero_grad()
        expected = loss(eager, batch)
        expected.backward()
        np.testing.assert_allclose(result, expected.item(), rtol=1e-5)
        np.testing.assert_allclose(before - step.parameters["scale"], 0.01 * eager.scale.grad, rtol=1e-4)
        eager.load_state_dict(step.state_dict())


class Unequal(nn.Module):
    """Dropout in a loop draws the same numbers in each iteration, which no compiled one may."""

    def forward(self, x: Any) -> Any:
        drop = nn.functional.dropout
        return while_loop(lambda k, v: k < 3, lambda k, v: (k + 1, drop(v, 0.5)), (torch.tensor(0), x))[1]


class Broken(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: torch.special.airy_ai(x) * 2, lambda x: x - 1, (x,))


def test_a_refusal_leaves_pytorch_as_it_was() -> None:
    """Eager code and the exporter run control flow after a compile that was refused."""
    module = Of(FUNCTIONS["tensor"])
    with pytest.raises(tw.Error):
        tw.compile(Of(lambda layer, x: torch.cond(x.sum() > 0, lambda x: x[0], lambda x: x, (x,))), (X,), dynamic=None)
    with pytest.raises(tw.Error):
        tw.compile_step(Unequal(), lambda m, x: m(x).sum(), example=(X,))
    np.testing.assert_array_equal(module(X + 1), (X + 1) * 2)
    np.testing.assert_array_equal(torch.export.export(module, (X,)).module()(X - 1), X - 2)
    np.testing.assert_array_equal(tw.compile(module, (X,), dynamic=None)(X + 1), (X + 1) * 2)
