"""Gradients of PyTorch's own operators and modules against autograd: `make torch-gradients`.

Each entry of `op_db` that supports autograd (with --modules, of `module_db`, in training as in evaluation where these
differ) is traced in f32 with a few of PyTorch's samples; `tw.gradient` makes the backward pass of a weighted sum of its
floating point results to its inputs and a module's parameters, which the operators' NumPy references run. An entry is
as good as its worst sample:

right      all gradients are autograd's, to 1e-5 of the largest, or as near to f64's as autograd's
autograd's where ours is another one, PyTorch's own operator in f64 is differentiated numerically: its central
           differences are ours and not autograd's
no rule    an error of Tilewright's says what has no gradient
refused    the operator itself is not taken
wrong      another gradient
left out   no sample that is exported, or that has a gradient

The share is of all entries that support autograd.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import os
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import tilewright as tw
from tests.torch_opinfo.cases import Case, cases, entry_name, modules, operators, supports
from tilewright.frontend.read import import_model
from tilewright.frontend.torch import import_training
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.ir.interface import Imported
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import emit1

TOLERANCE = 1e-5
QUOTIENT_TOLERANCE = 1e-4
"""How near to central differences in f64 a gradient in f32 is, of the largest element."""
STEP = 1e-5
"""Half of what an element moves by for them."""
MAX_QUOTIENTS = 2000
"""Elements of an input that are moved one by one."""
TIMES_AUTOGRAD = 4.0
"""How much further than autograd's in f32 a gradient may be from that in f64, where f32 itself is not so near."""
ORDER = ("wrong", "no rule", "refused", "autograd's", "right", "left out")


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: str
    reason: str = ""


def entries() -> list[Any]:
    """The entries that count: f32 with autograd."""
    return [e for e in operators() if e.supports_autograd and supports(e, "f32")]


def module_entries() -> list[Any]:
    """The modules that count: in f32."""
    return [e for e in modules() if supports(e, "f32")]


def traced(case: Case, inputs: Sequence[torch.Tensor]) -> Imported:
    """A case as a graph of its results.

    Raises tw.Error for what is not taken, and for a module that draws: its masks are others than PyTorch's.
    """
    if not case.training:
        return import_model(case.module, example=tuple(inputs), dynamic=None)
    result = import_training(case.module, tuple(inputs), None)
    if result.key is not None:
        raise tw.Error("random numbers in training")
    graph = result.read.graph
    return replace(result.read, graph=replace(graph, outputs=graph.outputs[: len(graph.outputs) - len(result.changed)]))


def check(case: Case) -> Outcome:
    """The outcome of the gradients of one sample."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if any(t.layout is not torch.strided for t in case.inputs):
            return Outcome("refused", "sparse tensors")
        inputs = [t.detach().clone() for t in case.inputs]
        precise = copy.deepcopy(case.module).double()
        try:
            alone = _alone(case, inputs)
            expected, moving = _autograd(copy.deepcopy(case.module), inputs, alone)
            exact, _ = _autograd(precise, [t.double() if t.is_floating_point() else t for t in inputs], alone)
        except Exception as error:
            return Outcome("left out", f"eager: {type(error).__name__}: {str(error)[:80]}")
        if all(g is None for g in expected):
            return Outcome("left out", "nothing has a gradient")
        try:
            read = traced(case, inputs)
        except tw.Error as error:
            return Outcome("refused", str(error).splitlines()[0][:120])
        except Exception as error:
            return Outcome("refused", f"{type(error).__name__}: {str(error)[:100]}")
        named = dict(zip((v.name for v in read.graph.inputs), inputs, strict=True))
        names = [*named, *(name for name, _ in case.module.named_parameters())]
        sources = [n for n, g in zip(names, expected, strict=True) if g is not None]
        try:
            graph = _weighted(read.graph, moving)
            there = {v.name for v in (*graph.inputs, *graph.params)}
            if missing := set(sources) - there:
                return Outcome("wrong", f"{case.label}: nothing reads {', '.join(sorted(missing))}")
            whole = tw.gradient(graph, graph.outputs[0].name, sources)
        except tw.Error as error:
            return Outcome("no rule", str(error).splitlines()[0][:120])
        arrays = {n: t.contiguous().numpy() for n, t in named.items()}
        with np.errstate(all="ignore"):
            match = run_graph(whole, arrays, read.weights)
    results = [match[v.name] for v in whole.outputs[1:]]
    wanted = [(k, g, x) for k, (g, x) in enumerate(zip(expected, exact, strict=True)) if g is not None]
    outcome = Outcome("right")
    for name, result, (k, want, best) in zip(sources, results, wanted, strict=True):
        difference = _difference(
            np.asarray(result, np.float64), *(None if t is None else t.numpy(force=True) for t in (want, best))
        )
        quotient = difference and k < len(inputs) and _is_quotient(precise, inputs, k, result, want.numpy(force=True))
        if quotient:
            outcome = Outcome("autograd's", f"{case.label}: by {name}: central differences are ours")
        elif difference:
            return Outcome("wrong", f"{case.label}: by {name}: {difference}")
    return outcome


def _is_quotient(precise: torch.nn.Module, arguments: Sequence[torch.Tensor], k: int, got: Any, want: Any) -> bool:
    """Whether the central differences of a module in f64 by input `k` are `got` and not `want`."""
    inputs = [(t.double() if t.is_floating_point() else t).contiguous().clone() for t in arguments]
    flat = inputs[k].view(-1)
    if flat.numel() > MAX_QUOTIENTS:
        return False
    result = np.zeros(flat.numel())
    for at in range(flat.numel()):
        middle, sides = flat[at].item(), []
        for step in (STEP, -STEP):
            flat[at] = middle + step
            sides.append(_total(precise, inputs)[0].item())
        flat[at] = middle
        result[at] = (sides[0] - sides[1]) / (2 * STEP)
    quotients = result.reshape(tuple(arguments[k].shape))
    most = QUOTIENT_TOLERANCE * max(1.0, float(np.abs(quotients).max(initial=0)))
    adjacent = [bool((np.abs(x - quotients) <= most).all()) for x in (got, want)]  # NaN is near to nothing
    return adjacent == [True, False]


def _weights(k: int, shape: Sequence[int]) -> Any:
    return np.random.default_rng(k).uniform(0.5, 1.5, tuple(shape))


def _alone(case: Case, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether autograd gives a gradient by the first input alone: some losses have none by their targets."""
    try:
        _autograd(copy.deepcopy(case.module), inputs, False)
    except RuntimeError as error:
        return "is not differentiable with respect to" in str(error)
    return False


def _autograd(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], alone: bool
) -> tuple[list[torch.Tensor | None], list[bool]]:
    """Autograd's gradients by all floating point inputs, or the first one `alone`, and after them by parameters, None
    where there is none; and which of the floating point outputs have one."""
    wanted = [t.is_floating_point() and not (alone and k) for k, t in enumerate(inputs)]
    asked = [t.detach().clone().requires_grad_(moves) for t, moves in zip(inputs, wanted, strict=True)]
    total, moving = _total(module, asked)
    asked += module.parameters()
    floating = [t for t in asked if t.requires_grad]
    if not total.requires_grad:
        return [None] * len(asked), moving
    result = iter(torch.autograd.grad(total, floating, allow_unused=True))
    return [next(result) if t.requires_grad else None for t in asked], moving


def _total(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[bool]]:
    """The weighted sum of the floating point outputs, of those with a gradient where any has one; and which have."""
    torch.manual_seed(0)
    leaves = torch.utils._pytree.tree_leaves(module(*inputs))
    outputs = [y for y in leaves if isinstance(y, torch.Tensor) and y.is_floating_point()]
    total = torch.zeros((), dtype=torch.float64)
    moving = [y.requires_grad for y in outputs]
    for k, y in enumerate(outputs):
        if y.requires_grad or not any(moving):
            total = total + (y * torch.as_tensor(_weights(k, y.shape), dtype=y.dtype)).sum().double()
    return total, moving


def _weighted(graph: Graph, moving: Sequence[bool]) -> Graph:
    """The graph of the weighted sum of those floating point outputs that have gradients."""
    used_names = {v.name for v in (*graph.inputs, *graph.params)} | {v.name for n in graph.nodes for v in n.outputs}
    builder = GraphBuilder(graph.name, list(graph.inputs), list(graph.params), list(graph.nodes), used_names)
    total: Value | None = None
    for k, y in enumerate(y for y in graph.outputs if y.dtype.is_float):
        if not moving[k]:
            continue
        shape = tuple(as_int(d) or 0 for d in y.shape)
        if any(as_int(d) is None for d in y.shape):
            raise tw.Error("the size of a result depends on data")
        weight = emit1(builder, "constant", value=_weights(k, shape).astype(y.dtype.numpy))
        part = emit1(builder, "mul", y, weight)
        part = emit1(builder, "reduce_sum", part, axes=tuple(range(len(shape))), keepdims=False) if shape else part
        part = part if part.dtype.name == "f32" else emit1(builder, "cast", part, dtype=f32)
        total = part if total is None else emit1(builder, "add", total, part)
    if total is None:
        raise tw.Error("no floating point result")
    return builder.finish((total,))


def _difference(got: Any, want: Any, best: Any) -> str:
    """A description of a wrong gradient; empty if it is right."""
    if got.shape != want.shape:
        return f"{got.shape}, expected {want.shape}"
    finite = np.isfinite(want) & (np.isfinite(best) if best is not None else True)
    scale = max(float(np.abs(want[finite]).max(initial=0)), 1.0)
    off = np.abs(np.where(finite, got, 0) - np.where(finite, want, 0))
    if best is not None:
        own = np.abs(np.where(finite, want, 0) - np.where(finite, best, 0))
        off = np.minimum(
            off, np.maximum(np.abs(np.where(finite, got, 0) - np.where(finite, best, 0)) - TIMES_AUTOGRAD * own, 0)
        )
    worst = float(off.max(initial=0)) if not np.isnan(off).any() else float("nan")
    return "" if worst <= TOLERANCE * scale else f"off by {worst:.2g} of {scale:.2g}"


def modes(entry: Any) -> tuple[bool, ...]:
    """Whether an entry is taken in training: also, if that is another function."""
    return (False, True) if getattr(entry, "train_and_eval_differ", False) else (False,)


def run_entry(entry: Any, count: int) -> Outcome:
    """One entry: its worst sample, those left out only if there is no other."""
    if entry_name(entry).startswith("sparse."):
        return Outcome("refused", "sparse tensors")
    try:
        results = [check(c) for training in modes(entry) for c in cases(entry, "f32", count, training)]
    except Exception as error:
        results = [Outcome("wrong", f"{type(error).__name__}: {str(error)[:150]}")]
    return min(results, key=lambda o: ORDER.index(o.kind), default=Outcome("left out", "no samples"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="names of entries, such as 'nn.functional.*'; all if none")
    parser.add_argument("--count", type=int, default=2, help="samples of each entry")
    parser.add_argument("--modules", action="store_true", help="module_db in place of op_db")
    parser.add_argument("--part", default="0/1", help="which part of how many, such as 1/4")
    options = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, options.part.split("/"))
    listed = module_entries() if options.modules else entries()
    chosen = [
        e for e in listed if not options.patterns or any(fnmatch.fnmatch(entry_name(e), p) for p in options.patterns)
    ]
    counts: Counter[str] = Counter()
    for entry in chosen[part::parts]:
        outcome = run_entry(entry, options.count)
        counts[outcome.kind] += 1
        if outcome.kind != "right" or options.patterns:
            print(f"{outcome.kind:9} {entry_name(entry):45} {outcome.reason}", flush=True)
    total = sum(counts.values())
    shares = ", ".join(f"{k} {counts[k]}" for k in ORDER)
    print(f"{total} entries: {shares}; right {100 * counts['right'] / max(total, 1):.1f} %")
    sys.stdout.flush()
    os._exit(1 if counts["wrong"] else 0)  # PyTorch's tracing threads need not be waited for


if __name__ == "__main__":
    main()
