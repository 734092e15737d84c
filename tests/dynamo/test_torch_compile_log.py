"""The log of `torch.compile(backend="tilewright")` about what it leaves in PyTorch, and recurrent layers, which
TorchDynamo leaves out by itself."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from tests.dynamo.torch_backend import assert_same, check, compiled, gradients, register

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
nn = torch.nn
LOGGER = "tilewright.dynamo"


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        y = torch.linalg.matrix_exp(torch.relu(self.body(x)))
        return torch.tanh(self.head(torch.linalg.matrix_exp(y)))


class Recurrent(nn.Module):
    def __init__(self, kind: str, **arguments: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(5, 6, num_layers=2, **arguments)

    def forward(self, x: Any) -> Any:
        y, state = self.layer(x)
        return torch.tanh(y), state


def said(caplog: Any, level: int = logging.WARNING) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == LOGGER and r.levelno >= level]


def test_what_is_left_is_logged_once(caplog: Any) -> None:
    f = compiled(Spectrum())
    with torch.no_grad():
        for n in (6, 6):
            f(torch.randn(3, n, 6))
    (text,) = said(caplog)
    reason = "2 aten.linalg_matrix_exp (the operator aten.linalg_matrix_exp is not supported)"
    assert text.endswith(f"2 of 12 operators run in PyTorch: {reason}"), text


def test_other_sizes_leave_as_much_and_are_not_told_once_more(caplog: Any) -> None:
    f = compiled(Spectrum(), dynamic=False)
    with torch.no_grad():
        for n in (2, 3, 4):
            f(torch.randn(n, 6, 6))
    assert len(said(caplog)) == 1


def test_each_function_is_told_of(caplog: Any) -> None:
    register()
    torch._dynamo.reset()

    def first(x: Any) -> Any:
        return torch.linalg.matrix_exp(x @ x) @ x

    def second(x: Any) -> Any:
        return torch.linalg.matrix_exp(x @ x) @ x

    for function in (first, second):
        torch.compile(function, backend="tilewright")(torch.eye(3))
    assert len(said(caplog)) == 2


def test_a_whole_graph_is_not_mentioned(caplog: Any) -> None:
    with caplog.at_level(logging.INFO, LOGGER), torch.no_grad():
        compiled(nn.Linear(3, 4))(torch.randn(2, 3))
    assert not said(caplog, logging.INFO)


def test_what_is_too_cheap_is_no_warning(caplog: Any) -> None:
    with caplog.at_level(logging.INFO, LOGGER), torch.no_grad():
        compiled(lambda x: torch.relu(x))(torch.randn(2, 3))
    (text,) = said(caplog, logging.INFO)
    assert "1 aten.relu (a part of its own would cost more than it saves)" in text
    assert not said(caplog)


def test_reports_take_the_place_of_the_log(caplog: Any) -> None:
    reports: list[Any] = []
    with torch.no_grad():
        compiled(Spectrum(), reports)(torch.randn(3, 6, 6))
    assert len(reports[0].uncompiled) == 2
    assert not said(caplog)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_that_dynamo_leaves_out_are_named_once(
    kind: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.dynamo import recurrent

    monkeypatch.setattr(recurrent, "_said", set())
    torch._dynamo.utils.counters.clear()
    layer = getattr(nn, kind)(5, 6)
    f = compiled(layer)
    recurrent.listen()  # which `reset` has undone, in a process that has compiled before
    x = torch.randn(4, 3, 5)
    with torch.no_grad():
        assert_same(f(x), layer(x))
        f(torch.randn(4, 2, 5))
    (text,) = said(caplog)
    assert text.startswith(f"nn.{kind}(5, 6) runs in PyTorch")
    assert "torch._dynamo.config.allow_rnn" in text


OPTIONS: dict[str, Any] = {
    "as it is": {},
    "both ways": {"bidirectional": True},
    "batch first": {"batch_first": True},
    "no biases": {"bias": False},
}


@pytest.mark.parametrize("text", OPTIONS)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_compiled_where_dynamo_allows_it(kind: str, text: str) -> None:
    torch.manual_seed(0)
    model = Recurrent(kind, **OPTIONS[text]).eval()
    with torch._dynamo.config.patch(allow_rnn=True):
        reports = check(model, (torch.randn(4, 3, 5),))
    assert reports[0].coverage().share == 1, reports[0].coverage()


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_trained_where_dynamo_allows_it(kind: str) -> None:
    torch.manual_seed(0)
    model, x = Recurrent(kind), torch.randn(4, 3, 5)
    reports: list[Any] = []

    def loss(out: Any) -> Any:
        return out[0].square().sum()

    expected = gradients(copy.deepcopy(model), (x,), loss)
    with torch._dynamo.config.patch(allow_rnn=True):
        loss(compiled(model, reports)(x)).backward()
    result = [p.grad.clone() for p in model.parameters()]
    torch.testing.assert_close(result, expected, rtol=2e-5, atol=2e-5)
    assert len(reports) == 2
    assert not any(r.uncompiled for r in reports)
    left = {name for r in reports for name, native in r.operators if not native}
    assert left <= {
        "aten.t",
        "aten.view",
        "aten.unbind.int",
        "aten.split.Tensor",
        "aten.detach",
    }  # of weights, which the backward pass reads
