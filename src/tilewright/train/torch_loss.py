"""A PyTorch module and its loss as one graph, from the batch to the loss.

If its tape shows that the module was traced before, PyTorch's exporter is not even loaded.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves

from tilewright.frontend.torch.restored import parameters_restored
from tilewright.frontend.torch.tensors import to_array, to_tensor
from tilewright.frontend.torch.unskip import unskip
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.rooms import pruned
from tilewright.ops.shape import ConstantAttrs
from tilewright.runtime.interop import framework
from tilewright.support.errors import CallError, Error, ModelError, UnsupportedError
from tilewright.train import hooks, trace_cache
from tilewright.train.batch import named, names_of, with_values
from tilewright.train.plan import Objective
from tilewright.train.tape import tape_of
from tilewright.train.trace_cache import Traced


class _Loss(torch.nn.Module):
    """A module that computes the loss of `model` for a batch, to be exported as a graph."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any] | None) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *batch: torch.Tensor) -> Any:
        result = self.computed(*batch)
        if not isinstance(result, dict):
            return (result,)
        return (result["loss"], *(value for name, value in result.items() if name != "loss"))

    def computed(self, *batch: torch.Tensor) -> Any:
        return self.model(*batch) if self.loss is None else self.loss(self.model, *batch)


def of_outputs(loss: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A loss as a function of the model and a batch of `count` arrays. A loss of an output and a target, such as
    PyTorch's own, gets the model's output for all arrays but the last, and the last one.

    Raises ModelError for a loss with parameters of its own, which nothing would train.
    """
    if isinstance(loss, type):
        raise ModelError(
            "a loss is a function or a module", expected=f"{loss.__name__}()", got=f"class {loss.__name__}"
        )
    held: Any = loss
    trained = [n for n, p in held.named_parameters() if p.requires_grad] if isinstance(loss, torch.nn.Module) else []
    if not isinstance(loss, torch.nn.Module) and not _is_of_outputs(loss, count):
        return loss
    if trained:
        names = ", ".join(trained)
        hint = "let the model have it: def loss(model, x, y): return model.loss(model(x), y)"
        raise ModelError("a loss has parameters of its own", where=type(loss).__name__, got=names, hint=hint)
    if count < 2:
        expected = "example=(inputs..., target)"
        raise ModelError("a loss of an output and a target needs both", where="example", expected=expected, got=count)

    def of_batch(model: torch.nn.Module, *batch: torch.Tensor) -> Any:
        *inputs, target = batch
        return loss(model(*inputs), target)

    return of_batch


def _is_of_outputs(loss: Callable[..., Any], count: int) -> bool:
    """Whether `loss` is a function of output and target, rather than of the model and a batch of `count` arrays: it is
    one of PyTorch's, or its signature says so."""
    if (getattr(loss, "__module__", None) or "").partition(".")[0] == "torch":
        return True
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # a function of C, which says nothing
        return True
    return not _binds(signature, count + 1) and _binds(signature, 2)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _batch_names(model: torch.nn.Module, loss: Callable[..., Any] | None, value: Any, count: int) -> list[str]:
    """The names of the `count` arrays of a batch for `model` and `loss`, where `value` computes the loss: as in the
    signature of `loss` if that takes the batch itself, or, for a loss of an output and a target, as in the model's,
    followed by "target"."""
    if loss is None:
        return names_of(model.forward, count)
    if loss is value:
        return names_of(loss, count + 1)[1:]
    return [*names_of(model.forward, count - 1), "target"]


def _check_arguments(function: Callable[..., Any], batch: Sequence[Any]) -> None:
    """Raise CallError if a batch does not have the arguments that the loss `function` takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C, which says nothing
        return
    try:
        signature.bind(*batch)
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise CallError(f"the example does not fit the loss: {error}", expected=f"({names})", got=len(batch)) from None


def traced(model: Any, loss: Callable[..., Any] | None, example: Sequence[Any], symbolic: bool = False) -> Objective:
    """The loss, traced with the batch `example`, as an objective with the module's names of weights, each submodule in
    its own mode. `symbolic`: for batches of any size. Raises ModelError if the model is no module, or cannot be traced;
    UnsupportedError if it contains a function with a backward pass of its own, which PyTorch's exporter drops."""
    if not isinstance(model, torch.nn.Module):
        raise ModelError("a step is made of a module", expected="torch.nn.Module or (Graph, weights)", got=type(model))
    batch = tensors(example)
    passed_loss = loss
    loss = None if loss is None else of_outputs(loss, len(batch))
    _check_arguments(model if loss is None else partial(loss, model), batch)
    objective = _Loss(model, loss)
    parts = [objective, *([passed_loss] if isinstance(passed_loss, torch.nn.Module) else [])]
    hooks.refuse([*hooks.of_modules(parts), *hooks.of_parameters(parts)])
    _refuse_cumulative(objective)
    try:
        with hooks.watched() as seen:
            tape, arguments = ran(objective.computed, objective, batch)
    except Error:
        raise
    except Exception as error:  # the user's own code
        refuse_control(error)
        raise ModelError("the loss of the example fails", got=f"{type(error).__name__}: {error}") from error
    hooks.refuse(seen)
    metrics = _names(arguments)
    check_backward(arguments["loss"] if isinstance(arguments, dict) else arguments)
    name = None if tape is None or symbolic else trace_cache.name_of(tape, metrics)
    read = None if name is None else trace_cache.get(name)
    if read is None:
        read = _read(objective, batch, symbolic)
        if name is not None:
            trace_cache.put(name, read)
    tied = dict(read.tied)
    state = {n: to_array(t, n) for n, t in model.state_dict().items() if isinstance(t, torch.Tensor) and n not in tied}
    weights = {v.name: state[v.name] for v in read.graph.params}
    result = Objective(
        read.graph,
        weights,
        metrics,
        tuple(name for name, p in model.named_parameters() if p.requires_grad and name in weights),
        read.changed,
        {name: state[name] for name in read.counters},
        read.key,
        {name: array for name, array in state.items() if name not in read.counters},
        tied,
        to_tensor,
    )
    return named(result, _batch_names(model, loss, passed_loss, len(batch)))


def tensors(example: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """The arrays of a batch as tensors. Raises ModelError for other objects."""
    results = []
    for k, x in enumerate(example):
        try:
            results.append(to_tensor(x) if framework(x) == "numpy" else torch.as_tensor(x))
        except (TypeError, ValueError, RuntimeError, CallError) as error:
            got = f"{type(x).__qualname__} ({error})"
            raise ModelError("a batch is made of arrays", where=f"example {k}", got=got) from None
    return tuple(results)


def _names(result: Any) -> tuple[str, ...]:
    """ "loss", followed by the names of the metrics in the result of a loss function."""
    if not isinstance(result, dict):
        return ("loss",)
    if "loss" not in result:
        raise ModelError("the loss is missing", expected='a dict with "loss"', got=", ".join(result))
    return ("loss", *(name for name in result if name != "loss"))


def ran(function: Callable[..., Any], module: torch.nn.Module, batch: Sequence[torch.Tensor]) -> tuple[str | None, Any]:
    """Run a loss function on a batch: the digest of the operations it performs, and its result with autograd's graph.

    The digest is None where `tape_of` cannot record the function. It then runs in evaluation mode, so that it does not
    change the module's buffers.
    """
    with parameters_restored(module):
        tape = tape_of(function, module, batch)
        if tape is not None:
            return tape
    from tilewright.frontend.torch.export import evaluating

    with evaluating(module), parameters_restored(module), torch.enable_grad():
        return None, function(*(x.clone() for x in batch))  # which code may write, and autograd may have to say how


CONTROL = "torch._higher_order_ops"
"""The module of PyTorch's control flow, whose autograd functions have the same gradients as its operators."""


def refuse_control(error: BaseException) -> None:
    """Raise UnsupportedError if PyTorch's own control flow caused the error."""
    unskip(error)
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    if any(name.startswith(CONTROL) for name in frames):
        hint = "torch.where takes both branches; torch.compile(module, backend='tilewright') leaves this to PyTorch"
        got = f"{type(error).__name__}: {error}".partition("\n")[0]
        what = "PyTorch cannot run this control flow (cond, while_loop, scan) with gradients"
        raise UnsupportedError(what, got=got, hint=hint) from error


def _refuse_cumulative(module: torch.nn.Module) -> None:
    """Raise UnsupportedError for norms that are trained with `momentum=None`: their running statistics are the average
    of all steps, which divides by the count of steps."""
    norms = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, _NormBase) and part.training and part.track_running_stats and part.momentum is None
    }
    if norms:
        where = ", ".join(name.removeprefix("model.") or type(part).__name__ for name, part in norms.items())
        what = "a step does not compute the cumulative average of a norm with momentum=None"
        raise UnsupportedError(what, where=where, hint="pass a number as its momentum, or .eval() these norms")


def check_backward(result: Any) -> None:
    """Raise UnsupportedError if a result depends on a `torch.autograd.Function`, whose `backward` no trace contains, or
    on the CTC loss, which has no gradient here."""
    following = [getattr(x, "grad_fn", None) for x in tree_leaves(result)]
    seen: set[Any] = set()
    own: set[str] = set()
    while following:
        node = following.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        following += [before for before, _ in node.next_functions]
        if node.name().startswith("CtcLoss"):
            hint = "compute the loss in eager PyTorch, of a model in autograd (tw.differentiable)"
            raise UnsupportedError("the gradient of ctc_loss is not supported", hint=hint)
        own_class = getattr(node, "_forward_cls", type(node)).__module__
        if isinstance(node, torch.autograd.function.BackwardCFunction) and not own_class.startswith(CONTROL):
            own.add(type(node).__name__.removesuffix("Backward"))
    if own:
        hint = "say it in operators: x + (f(x) - x).detach() has the value of f and the gradient of x"
        raise UnsupportedError("gradients of one's own cannot be traced", got=", ".join(sorted(own)), hint=hint)


def _read(objective: _Loss, batch: Sequence[torch.Tensor], symbolic: bool) -> Traced:
    """Export the module `objective` for the example `batch` by PyTorch, and import the result. `symbolic`: the batch
    size is a symbol."""
    from tilewright.frontend.torch import import_training

    result = import_training(objective, tuple(batch), "auto" if symbolic else None)
    read = result.read
    graph = with_values(read.graph, {v: Value(_own(v.name), v.type) for v in read.graph.params})
    graph, changed, counters = _without_counters(graph, tuple(map(_own, result.changed)))
    tied = tuple((_own(name), _own(first)) for name, first in read.interface.tied)
    return Traced(graph, changed, tuple(counters), result.key, tied)


def _own(name: str) -> str:
    """The name in the user's module of weight `name` of the exported loss module."""
    return name.removeprefix("model.")


def _without_counters(graph: Graph, changed: Sequence[str]) -> tuple[Graph, tuple[str, ...], list[str]]:
    """(the graph without new values of integer buffers that only count steps, the names of other changed buffers, the
    names of those counters). Raises ModelError if the graph reads a counter."""
    first = len(graph.outputs) - len(changed)
    makers = {v: n for n in graph.nodes for v in n.outputs}
    counts = [_counts(name, makers.get(v), makers) for name, v in zip(changed, graph.outputs[first:], strict=True)]
    outputs = [v for v, counter in zip(graph.outputs[first:], counts, strict=True) if not counter]
    left = tuple(name for name, counter in zip(changed, counts, strict=True) if not counter)
    counters = [name for name, counter in zip(changed, counts, strict=True) if counter]
    smaller = pruned(replace(graph, outputs=(*graph.outputs[:first], *outputs)))
    read = {v.name for v in smaller.params}
    if read.intersection(counters):  # something reads how many steps there were
        raise ModelError("buffers of integers that change must not be read", got=", ".join(read.intersection(counters)))
    return smaller, left, counters


def _counts(name: str, node: Node | None, makers: Mapping[Value, Node]) -> bool:
    if node is None or node.op != "add" or node.inputs[0] is None or node.inputs[1] is None:
        return False
    one = makers.get(node.inputs[1])
    if one is None or one.op != "constant" or node.inputs[0].name != name or node.output.dtype.is_float:
        return False
    return bool((one.of(ConstantAttrs).value.array == 1).all())
