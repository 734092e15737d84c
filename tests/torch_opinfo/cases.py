"""PyTorch's own samples of its operators (`op_db`) and modules (`module_db`) as modules with example inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "i64": torch.int64,
    "bool": torch.bool,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
}

SEED = 17


@dataclass(frozen=True, slots=True)
class Case:
    """A module and the tensors that it is called with; in training, or in evaluation."""

    label: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    training: bool = False


class Applied(torch.nn.Module):
    """A function of nested arguments as a module of their tensors; everything else among them is a constant."""

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        super().__init__()
        leaves, self.spec = pytree.tree_flatten(arguments)
        self.function = function
        self.constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.constants)
        for place, tensor in zip(self.places, tensors, strict=False):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


def operators() -> list[Any]:
    """All entries of `op_db`."""
    return list(op_db)


def modules() -> list[Any]:
    """All entries of `module_db`."""
    return list(module_db)


def entry_name(entry: Any) -> str:
    variant = getattr(entry, "variant_test_name", "")
    return f"{entry.name}.{variant}" if variant else str(entry.name)


def supports(entry: Any, dtype: str) -> bool:
    if hasattr(entry, "module_cls"):
        return DTYPES[dtype] in entry.dtypes
    return DTYPES[dtype] in entry.supported_dtypes("cpu")


def cases(entry: Any, dtype: str, count: int, training: bool = False) -> Iterator[Case]:
    """At most `count` cases of an entry, the same ones every time; modules in evaluation, or in training."""
    torch.manual_seed(SEED)
    if hasattr(entry, "module_cls"):
        yield from _module_cases(entry, dtype, count, training)
        return
    samples = list(entry.sample_inputs("cpu", DTYPES[dtype], requires_grad=False))
    for k, strided in chosen([_least(s) for s in samples], count):
        sample = samples[k] if strided else samples[k].noncontiguous()
        arguments = ((sample.input, *sample.args), sample.kwargs)
        label = f"sample {k}" + ("" if strided else ", not contiguous")
        yield case(label, entry.op, arguments)


def case(label: str, function: Callable[..., Any], arguments: Any) -> Case:
    tensors = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    # A program has at least one input: operators that take none get one that they do not read.
    return Case(label, Applied(function, arguments), tuple(tensors) or (torch.zeros(1),))


def chosen(least: Sequence[int], count: int) -> list[tuple[int, bool]]:
    """The samples that are taken, given each one's smallest number of elements, and whether as they lie in memory.

    The first, an empty one, the last one with its memory spread, one with single elements, and others evenly between.
    """
    if not least:
        return []
    last = len(least) - 1
    wanted = [(0, True), (last, False)]
    wanted += [(least.index(size), True) for size in (0, 1) if size in least]
    wanted += [(round(last * k / count), True) for k in range(1, count)]
    return list(dict.fromkeys(wanted))[:count]


def _least(sample: Any) -> int:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return min((leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor)), default=-1)


def _module_cases(entry: Any, dtype: str, count: int, training: bool) -> Iterator[Case]:
    inputs = entry.module_inputs_func(entry, device="cpu", dtype=DTYPES[dtype], requires_grad=False, training=training)
    results = [g for g in inputs if g.forward_input is not None]
    for k in sorted({round((len(results) - 1) * i / max(count - 1, 1)) for i in range(count)} if results else ()):
        own, called = results[k].constructor_input, results[k].forward_input
        module = entry.module_cls(*own.args, **own.kwargs).to(DTYPES[dtype])
        if isinstance(module, LazyModuleMixin):
            module(*called.args, **called.kwargs)  # then it knows how large its parameters are
        label = f"input {k}" + (" in training" if training else "")
        created = case(label, Called(module.train(training)), (called.args, called.kwargs))
        yield replace(created, training=training)


class Called(torch.nn.Module):
    """A module as a function, so that its weights are found inside `Applied`."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)
