"""The example inputs of a compile: their names, their symbolic dimensions, and inputs for tracing.

`torch.export` treats sizes 0 and 1 as constants and equal sizes as one symbol; so it gets inputs of the same types
whose symbolic dimensions have sizes that occur nowhere else.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from tilewright.frontend.torch.tensors import to_tensor
from tilewright.frontend.torch.trees import leaves_with_paths
from tilewright.ir.dim import Dim
from tilewright.runtime.interop import framework
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, ModelError, Problems
from tilewright.support.options import check_option

Dims = dict[int, str]
"""The symbolic dimensions of one input: from axis to the symbol's name."""

MAX_TRIALS = 8
"""The most combinations of batch axes that are tried."""
_UNUSUAL = (11, 13, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113)
"""Values of symbolic dimensions in examples, so that no constant of a model is equal to one by chance."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor of the example inputs. Its name is the argument of `forward`, followed by keys or positions inside of
    containers."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Example:
    """Arguments of `forward`, and the tensors in them, in order."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: tuple[Leaf, ...]


def read_example(module: torch.nn.Module, example: Any, device: torch.device) -> Example:
    """The example as arguments of `module`: a dict holds keyword arguments, a tuple or list positional ones, anything
    else is the only one. NumPy arrays become tensors on `device`. Raises CallError."""

    def tensor(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach() if x.is_meta else x.detach().to(device)
        if framework(x) == "numpy":
            return to_tensor(x).to(device)
        return x

    lazy = [name for name, p in itertools.chain(module.named_parameters(), module.named_buffers()) if is_lazy(p)]
    if lazy:
        hint = "call the module once with an example of its inputs"
        raise CallError("parameters have no shape yet", got=", ".join(lazy), hint=hint)

    if isinstance(module, torch.jit.ScriptModule):
        hint = "compile the nn.Module that it was scripted or traced from"
        raise ModelError("PyTorch does not export TorchScript", got=type(module).__name__, hint=hint)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(example, Mapping) and _keywords(module, example):
        kwargs = {str(k): pytree.tree_map(tensor, v) for k, v in example.items()}
    elif isinstance(example, tuple | list):
        args = tuple(pytree.tree_map(tensor, v) for v in example)
    else:
        args = (pytree.tree_map(tensor, example),)
    if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
        wanted = "a tensor or a NumPy array, or a tuple, list or dict of arguments"
        held = {type(leaf) for leaf in pytree.tree_leaves((args, kwargs))}
        classes = [kind.__name__ for kind in sorted(held, key=str) if is_dataclass(kind)]
        register = f"torch.export.register_dataclass({classes[0]})" if classes else None
        got = ", ".join(classes) or type(example).__name__
        raise CallError("the example has no tensors", expected=wanted, got=got, hint=register)
    parameters = inspect.signature(module.forward).parameters
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        what = f"the example does not fit {type(module).__name__}.forward: {error}"
        raise CallError(
            what, expected=f"({', '.join(map(str, parameters.values()))})", got=_arguments(example)
        ) from None
    order = [name for name in parameters if name in kwargs]
    kwargs = {name: kwargs[name] for name in dict.fromkeys([*order, *kwargs])}  # inputs stand in this order
    names = _positional_names(parameters, len(args))
    leaves = []
    for path, leaf in leaves_with_paths((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            first = names[path[1].idx] if path[0].idx == 0 else path[1].key
            leaves.append(Leaf("_".join([first, *map(key_text, path[2:])]), leaf))
    unusual = [f"{leaf.name} ({kind})" for leaf in leaves if (kind := _unusual(leaf.tensor, device))]
    if unusual:
        hint = 'call .to_dense(); torch.zeros_like(x, device="cpu") has numbers'
        raise CallError("inputs must be dense tensors with numbers", got=", ".join(unusual), hint=hint)
    return Example(args, kwargs, tuple(leaves))


def _unusual(tensor: torch.Tensor, device: torch.device) -> str:
    """The reason why programs cannot read `tensor`, such as "nested" or, unless `device` is the meta device, "on the
    meta device"; "" if they can."""
    if tensor.is_nested:
        return "nested"
    if tensor.is_meta and device.type != "meta":
        return "on the meta device"
    return "" if tensor.layout is torch.strided else str(tensor.layout)


def _arguments(example: Any) -> str:
    """How many positional arguments, or which keywords, `example` has, in words for a message."""
    if isinstance(example, Mapping):
        return f"keywords {', '.join(map(str, example))}"
    count = len(example) if isinstance(example, tuple | list) else 1
    return f"{count} argument{'s' if count != 1 else ''}"


def _positional_names(parameters: Mapping[str, inspect.Parameter], count: int) -> list[str]:
    names: list[str] = []
    for p in parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}_{k}" for k in range(count - len(names))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
    return names


def _keywords(module: torch.nn.Module, example: Mapping[Any, Any]) -> bool:
    """Whether the mapping `example` has keyword arguments of `forward`, rather than being its only argument."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return True
    names = {p.name for p in parameters}
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    return bool(names & set(map(str, example))) or len(required) != 1


def key_text(key: Any) -> str:
    """A step of a path into nested containers as text."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


# --- symbolic dimensions --------------------------------------------------------------------------------------------


def assignments(
    module: torch.nn.Module, leaves: Sequence[Leaf], dynamic: str | Mapping[str, Mapping[int, str]] | None
) -> list[list[Dims]]:
    """The symbolic dimensions of each input. If the example is ambiguous there are several choices, the likeliest
    first.

    "auto": the batch is the first input's axis 0; in every other input it is axis 0, or else axis 1 (recurrent states
    are [layers, batch, width]), of the same size. None: no symbols. A mapping: as it says, by the input's name.
    """
    if dynamic is None:
        return [[{} for _ in leaves]]
    if isinstance(dynamic, Mapping):
        return [_explicit(leaves, dynamic)]
    if not isinstance(dynamic, str) or dynamic != "auto":
        raise ModelError(
            "argument dynamic makes no sense",
            expected='"auto", None, or {"input": {axis: "symbol"}}',
            got=repr(dynamic),
        )
    first = leaves[0].tensor
    if first.ndim == 0:
        return [[{} for _ in leaves]]
    batch = first.shape[0]
    choices = [[0]]
    for leaf in leaves[1:]:
        axes = [k for k in (0, 1) if k < leaf.tensor.ndim and leaf.tensor.shape[k] == batch]
        if len(axes) == 2 and leaf.tensor.ndim == 3 and _recurrent(module, leaf.tensor.shape[2]):
            axes.reverse()
        choices.append(axes)
    result = itertools.islice(itertools.product(*(c or [-1] for c in choices)), MAX_TRIALS)
    return [[{axis: "batch"} if axis >= 0 else {} for axis in axes] for axes in result]


def _recurrent(module: torch.nn.Module, width: int) -> bool:
    """Whether `module` contains a recurrent layer of `width`, so that an input [?, ?, width] may be its state."""
    return any(getattr(m, "hidden_size", None) == width for m in module.modules())


def _explicit(leaves: Sequence[Leaf], dynamic: Mapping[str, Mapping[int, str]]) -> list[Dims]:
    problems = Problems()
    by_name = {leaf.name: leaf for leaf in leaves}
    for name, axes in dynamic.items():
        leaf = by_name.get(name)
        if leaf is None:
            problems.add(ModelError("no input has this name", where=f"dynamic[{name!r}]", expected=", ".join(by_name)))
            continue
        check_option(f"dynamic[{name!r}]", axes, Mapping, "names of symbols by axis")
        for axis, symbol in axes.items():
            where = f"dynamic[{name!r}][{axis!r}]"
            if not isinstance(axis, int) or not -leaf.tensor.ndim <= axis < leaf.tensor.ndim:
                problems.add(ModelError("the input has no such axis", where=where, got=list(leaf.tensor.shape)))
            elif not isinstance(symbol, str) or not symbol.isidentifier() or not symbol.isascii():
                problems.add(ModelError("a symbol's name must be an identifier", where=where, got=repr(symbol)))
    problems.raise_if_any("the dynamic dimensions make no sense", kind=ModelError)
    return [{a % leaf.tensor.ndim: s for a, s in dynamic.get(leaf.name, {}).items()} for leaf in leaves]


# --- what export traces with ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trace:
    """Arguments for `torch.export`, in which each symbolic size is a number that occurs nowhere else, and its
    description of dynamic shapes."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: Any


def trace_inputs(
    module: torch.nn.Module,
    example: Example,
    dims: Sequence[Dims],
    known: Mapping[str, Dim],
    *,
    strict: bool = True,
    least: bool = False,
    own: bool = False,
) -> Trace:
    """The example's arguments, whose symbolic dimensions are resized to sizes that occur nowhere else.

    Args:
        dims: the symbolic axes of each leaf of the example, with their names.
        known: the ranges of symbolic dimensions, by name.
        strict: whether the trace must hold for every size in their ranges; else export finds out for which it holds.
        least: resize to the smallest sizes instead.
        own: keep the example's sizes.
    """
    names = dict.fromkeys(s for d in dims for s in d.values())
    arguments = {name: known.get(name, Dim()) for name in names}
    if own:
        pairs = list(zip(example.leaves, dims, strict=True))
        sizes = {name: leaf.tensor.shape[axis] for leaf, axes in pairs for axis, name in axes.items()}
    else:
        sizes = (
            {n: d.multiple for n, d in arguments.items()} if least else _unusual_sizes(module, example, dims, arguments)
        )
    symbols = {n: _symbol(n, arguments[n], sizes[n]) if strict else torch.export.Dim.DYNAMIC for n in names}
    shapes = torch.export.ShapesCollection()
    resized: dict[int, torch.Tensor] = {}
    for leaf, axes in zip(example.leaves, dims, strict=True):
        shape = [sizes[axes[k]] if k in axes else d for k, d in enumerate(leaf.tensor.shape)]
        tensor = leaf.tensor.new_zeros(1).expand(shape).clone() if axes else leaf.tensor
        if axes:
            shapes[tensor] = {axis: symbols[name] for axis, name in axes.items()}
        resized[id(leaf.tensor)] = tensor

    def swap(x: Any) -> Any:
        return resized.get(id(x), x) if isinstance(x, torch.Tensor) else x

    args, kwargs = pytree.tree_map(swap, (example.args, example.kwargs))
    return Trace(args, kwargs, shapes if symbols else None)


def _symbol(name: str, known: Dim, size: int) -> Any:
    """`torch.export`'s `Dim` for the symbolic dimension `name`; its range is stated if it contains `size`, with which
    the module is traced."""
    unit, lo, hi = known.multiple, 1, None
    if known.lo <= size <= (known.hi or size):
        lo, hi = max(1, -(-known.lo // unit)), known.hi and known.hi // unit
    root = torch.export.Dim(name if unit == 1 else f"{name}_by_{unit}", min=lo, max=hi)
    return root if unit == 1 else root * unit


def _unusual_sizes(
    module: torch.nn.Module, example: Example, dims: Sequence[Dims], known: Mapping[str, Dim]
) -> dict[str, int]:
    """For each symbol in `dims` a size that occurs nowhere else in `module` or `example`, within its range if that has
    one. Except for batches (axis 0) it is no less than the example's: halving a small image down to one pixel would
    make that size a constant."""
    least = dict.fromkeys(known, 0)
    for leaf, axes in zip(example.leaves, dims, strict=True):
        for axis, name in axes.items():
            least[name] = max(least[name], known[name].lo, leaf.tensor.shape[axis] if axis else 0)
    selected = {d for leaf in example.leaves for d in leaf.tensor.shape}
    selected.update(d for p in itertools.chain(module.parameters(), module.buffers()) for d in p.shape)
    result: dict[str, int] = {}
    for name, dim in known.items():
        large = itertools.count(max(127, least[name] // dim.multiple | 1), 2)
        free = (n for n in (n * dim.multiple for n in itertools.chain(_UNUSUAL, large)) if n not in selected)
        first = next(free)
        fits = first if first >= least[name] else next(n for n in free if n >= least[name])
        result[name] = fits if dim.hi is None or fits <= dim.hi else first
        selected.add(result[name])
    return result
