"""Why a module cannot be exported: the error names what its code calls, where PyTorch's message does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import tilewright as tw
from tilewright.support.errors import CallError, Error, ModelError, UnsupportedError

torch: Any = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")


class Calls(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.function = function

    def forward(self, x: Any, *more: Any) -> Any:
        return self.function(self.layer(x), *more)


class Takes(torch.nn.Module):  # type: ignore[misc]
    def forward(self, pair: Any) -> Any:
        return pair.a + pair.b


@dataclass
class Pair:
    a: Any
    b: Any


@dataclass
class Registered:
    a: Any
    b: Any


def squares(x: Any) -> Any:
    return (x.sin() ** 2).sum()


def attention(x: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    q = x[None, None]
    return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + (i - j))


GRADIENTS = r"torch\.func's grad, grad_and_value"
FORMS: list[tuple[Callable[..., Any], type[Error], str]] = [
    (lambda x: torch.func.grad_and_value(squares)(x)[0], UnsupportedError, GRADIENTS),
    (lambda x: torch.func.jacfwd(torch.sin)(x[0]), UnsupportedError, r"torch\.func\.jacfwd"),
    (attention, UnsupportedError, "the operator flex_attention is not supported"),
    (lambda x: Pair(x, x.sin()), ModelError, r"the result of Calls is of a class unknown to PyTorch.*Pair"),
]


@pytest.mark.parametrize("case", FORMS, ids=["grad_and_value", "jacfwd", "flex_attention", "dataclass"])
def test_the_error_names_the_function(case: tuple[Callable[..., Any], type[Error], str]) -> None:
    function, kind, message = case
    x = torch.randn(4, 3)
    with pytest.raises(kind, match=message):
        tw.compile(Calls(function).eval(), (x,))
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert torch.func.jvp(torch.sin, (x,), (x,))[1].shape == x.shape  # the refusal left PyTorch's state alone


@pytest.mark.parametrize("case", FORMS[:2], ids=["grad_and_value", "jacfwd"])
def test_the_error_of_a_step_names_it_too(case: tuple[Callable[..., Any], type[Error], str]) -> None:
    function, kind, message = case
    x = torch.randn(4, 3)
    with pytest.raises(kind, match=message):
        tw.compile_step(Calls(function), lambda y, t: (y**2).mean() + t.sum(), tw.train.SGD(0.1), example=(x, x))


def test_arguments_of_a_class_that_is_not_registered() -> None:
    x = torch.randn(4, 3)
    with pytest.raises(ModelError, match=r"an argument of Calls is of a class unknown.*Pair(.|\n)*or pass a tuple"):
        tw.compile(Calls(lambda y, pair: y + pair.a).eval(), (x, Pair(x, x)))
    with pytest.raises(CallError, match=r"no tensors.*got Pair(.|\n)*register_dataclass\(Pair\)"):
        tw.compile(Takes(), (Pair(x, x),))


def test_a_registered_class_is_a_result() -> None:
    torch.export.register_dataclass(Registered, serialized_type_name="tests.frontend.torch.Registered")
    module, x = Calls(lambda y: Registered(y, y.sin())).eval(), torch.randn(4, 3)
    got, want = tw.compile(module, (x,))(x), module(x)
    torch.testing.assert_close(torch.as_tensor(got[0]), want.a.detach())
    torch.testing.assert_close(torch.as_tensor(got[1]), want.b.detach())


def test_a_mask_beside_indices_is_named() -> None:
    x, i = torch.randn(4, 3), torch.tensor([0, 2])
    with pytest.raises(UnsupportedError, match="a size that depends on values and meets another"):
        tw.compile(Calls(lambda y, mask, i: y[mask, i]).eval(), (x, torch.tensor([True, False, True, False]), i))
