"""Parts that the tests of `torch.compile`'s backend share: its name, and a comparison with eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")


def register() -> None:
    """Make "tilewright" known where the package runs from its sources: what is installed has an entry point."""
    from tilewright.dynamo.backend import tilewright

    if "tilewright" not in torch._dynamo.list_backends():
        torch._dynamo.register_backend(tilewright, name="tilewright")


def compiled(model: Any, reports: list[Any] | None = None, *, dynamic: bool | None = None, **options: Any) -> Any:
    """A model on this backend; `reports` collects what became of its graphs."""
    register()
    torch._dynamo.reset()
    if reports is not None:
        options["report"] = reports.append
    return torch.compile(model, backend="tilewright", dynamic=dynamic, options=options)


def assert_same(result: Any, expected: Any, **tolerance: Any) -> None:
    """Equal containers of tensors: numbers, types, sizes and strides."""
    torch.testing.assert_close(result, expected, check_stride=True, **tolerance)


def check(
    model: Any, *calls: tuple[Any, ...], parts: int | None = 1, tolerance: float = 2e-5, **options: Any
) -> list[Any]:
    """Call a compiled model and eager PyTorch without gradients; gives what became of the graphs. `parts`: how many
    there are in the first one."""
    reports: list[Any] = []
    f = compiled(model, reports, **options)
    with torch.no_grad():
        for args in calls:
            expected = model(*copy.deepcopy(args))
            assert_same(f(*args), expected, rtol=tolerance, atol=tolerance)
    if parts is not None:
        assert reports[0].coverage().compiled_parts == parts, reports[0].coverage()
    return reports


def gradients(model: Any, args: Sequence[Any], loss: Callable[[Any], Any]) -> list[Any]:
    """The gradients of a loss with respect to arguments that want some, and to parameters."""
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    wanted += [p for p in model.parameters() if p.requires_grad] if isinstance(model, torch.nn.Module) else []
    for t in wanted:
        t.grad = None
    loss(model(*args)).backward()
    return [t.grad.clone() if t.grad is not None else None for t in wanted]
