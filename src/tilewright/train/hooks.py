"""Detects hooks on gradients, which only act in the backward pass and which PyTorch's exporter drops.

Code is observed while it runs on an example (`watched`), and modules are searched for registered hooks (`of_modules`,
`of_parameters`); `refuse` raises an error that names them. Hooks of the forward pass are traced like other code.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules

from tilewright.frontend.torch.alone import tracing_alone
from tilewright.frontend.torch.inner import InnerGradients
from tilewright.support.errors import UnsupportedError

HINT = (
    "say it in operators: factor * x + ((1 - factor) * x).detach() has the value of x and factor times its gradient; "
    "or leave the backward pass to PyTorch: torch.compile(module, backend='tilewright')"
)
_PLACES: tuple[tuple[Any, str, str], ...] = (
    (torch.Tensor, "register_hook", "Tensor.register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook", "Tensor.register_post_accumulate_grad_hook"),
    (torch.autograd.graph, "register_multi_grad_hook", "torch.autograd.graph.register_multi_grad_hook"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__", "torch.autograd.graph.saved_tensors_hooks"),
    (torch.inference_mode, "__enter__", "torch.inference_mode"),
)
"""PyTorch's functions that register such hooks, with their names in messages."""
_OF_NODES = ("register_hook", "register_prehook")
"""Methods of the nodes of autograd's graph, which are functions of C."""


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Within the context, hooks that this thread's code registers are recorded, each once, in the list that it yields.
    PyTorch's own subclasses of context managers, such as those of `torch.utils.checkpoint`, do not change gradients and
    are ignored. Calls of `backward` raise UnsupportedError."""
    seen: dict[str, None] = {}
    results: list[str] = []
    thread = threading.get_ident()

    def noting(owner: Any, function: Any, what: str) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            exact = not isinstance(owner, type) or issubclass(owner, torch.Tensor) or type(args[0]) is owner
            if (
                exact and threading.get_ident() == thread and not caller.startswith("torch._")
            ):  # PyTorch's own tracers use them too
                seen[what] = None
            return function(*args, **kwargs)

        return run

    def profile(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "") in _OF_NODES:
            seen[f"grad_fn.{function.__name__}"] = None

    profiler = sys.getprofile()
    with tracing_alone():  # two threads that patch functions by turns would restore each other's patches
        before = [(owner, name, owner.__dict__[name]) for owner, name, _ in _PLACES]
        for (owner, name, function), (_, _, what) in zip(before, _PLACES, strict=True):
            setattr(owner, name, noting(owner, function, what))
        if profiler is None:
            sys.setprofile(profile)
        try:
            with InnerGradients():
                yield results
        finally:
            if profiler is None:
                sys.setprofile(None)
            for owner, name, function in before:
                setattr(owner, name, function)
            results.extend(seen)


def of_modules(several: Iterable[torch.nn.Module]) -> list[str]:
    """The backward hooks of modules and submodules, by name, and global ones."""
    results = []
    for whole in several:
        for name, part in whole.named_modules():
            where = f" of {name or type(part).__name__}"
            if part._backward_hooks:
                results.append(f"register_full_backward_hook{where}")
            if part._backward_pre_hooks:
                results.append(f"register_full_backward_pre_hook{where}")
    if modules._global_backward_hooks or modules._global_backward_pre_hooks:
        results.append("register_module_full_backward_hook of all modules")
    return results


def of_parameters(several: Iterable[torch.nn.Module]) -> list[str]:
    """The hooks on gradients of parameters, by name."""
    results = []
    for whole in several:
        for name, p in whole.named_parameters():
            if getattr(p, "_backward_hooks", None):
                results.append(f"register_hook of the parameter {name}")
            if getattr(p, "_post_accumulate_grad_hooks", None):
                results.append(f"register_post_accumulate_grad_hook of the parameter {name}")
    return results


def refuse(result: Iterable[str]) -> None:
    """Raise UnsupportedError naming these hooks, if there are any."""
    names = list(dict.fromkeys(result))
    if names:
        raise UnsupportedError("what acts on gradients alone is not traced", got=", ".join(names), hint=HINT)


__all__ = ["of_modules", "of_parameters", "refuse", "watched"]
