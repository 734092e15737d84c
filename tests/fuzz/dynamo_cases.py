"""Random cases of the forms of `dynamo_forms.py` under `torch.compile(backend="tilewright")`.

A case is a form with random steps inside, called several times at sizes from 0 up, in eager PyTorch and compiled, each
with modules and inputs of its own. All that a caller can see is compared: results with their types and trees, which
tensors share memory, inputs and buffers afterwards, gradients. What PyTorch's own backend `aot_eager` does otherwise
than eager as well is not ours.

    python -m tests.fuzz.dynamo_cases 0 100      the seeds 0 to 99, by hand
"""

from __future__ import annotations

import copy
import itertools
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from tests.fuzz.dynamo_forms import FORMS, WIDTH, Form, body

Random = random.Random
SIZES = (3, 1, 2, 5, 7)


def inputs(rng: Random, n: int, kind: str, dtype: Any) -> torch.Tensor:
    """A matrix of n rows, as it lies in memory by its kind."""
    numbers = torch.randn(n, WIDTH, dtype=torch.float32).to(dtype)
    match kind:
        case "transposed":
            return numbers.T.contiguous().T
        case "strided":
            result = torch.zeros(n, 2 * WIDTH, dtype=dtype)[:, ::2]
        case "unaligned":
            result = torch.zeros(n * WIDTH + 1, dtype=dtype)[1:].view(n, WIDTH)
        case "inner":
            result = torch.zeros(n + 2, WIDTH + 3, dtype=dtype)[1:-1, 2:-1]
        case _:
            return numbers
    return result.copy_(numbers)


@dataclass
class Failed:
    """An error of PyTorch's."""

    kind: str
    text: str


@dataclass
class Case:
    name: str
    model: Form
    dynamic: bool | None
    sizes: Sequence[int]
    kind: str
    dtype: Any
    gradients: bool
    change: str

    def __str__(self) -> str:
        return (
            f"{self.name} {self.sizes} {self.kind} {self.dtype} dynamic={self.dynamic}"
            f"{' gradients' if self.gradients else ''} {self.change}"
        )


KINDS = ("as usual", "as usual", "transposed", "strided", "unaligned", "inner")
CHANGES = ("", "", "weights", "scale", "number", "load", "hook", "train", "replace")


def drawn(seed: int) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    torch.manual_seed(seed)
    name = list(FORMS)[seed % len(FORMS)]
    model = FORMS[name](body(rng), rng)
    dtype = rng.choice((torch.float32,) * 4 + (torch.float64, torch.bfloat16))
    sizes = [rng.choice((*SIZES, 0)) for _ in range(4)]
    gradients = rng.random() < 0.4
    case = Case(
        name, model.to(dtype), rng.choice((None, True)), sizes, rng.choice(KINDS), dtype, gradients, rng.choice(CHANGES)
    )
    if name == "hooked layer":
        model.a.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        model.a.register_forward_hook(lambda m, args, result: result + 1)
        model.a.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    return case


def changed(model: Form, change: str, k: int) -> None:
    """Change a model between two calls."""
    with torch.no_grad():
        match change:
            case "weights":
                model.a.weight.data.mul_(0.5 + k)
            case "scale":
                model.scale += 1.5
            case "number":
                model.number = 1 + k % 3
            case "load":
                model.load_state_dict({n: v + 1 if v.is_floating_point() else v for n, v in model.state_dict().items()})
            case "hook":
                model.b.register_forward_hook(lambda m, args, result: result * 2)
            case "train":
                model.train(k % 2 == 0)
            case "replace":
                model.a.weight = nn.Parameter(model.a.weight * (1 + k))


def observed(case: Case, function: Callable[..., Any], model: Form) -> list[Any]:
    """All that callers see of the calls of a case, a list for each call."""
    calls: list[Any] = []
    for k, n in enumerate(case.sizes):
        seen: list[Any] = []
        calls.append(seen)
        torch.manual_seed(100 + k)
        x = inputs(Random(k), n, case.kind, case.dtype)
        leaf = x.requires_grad_() if case.gradients else x
        # What changes its input may not change a leaf.
        argument = leaf * 1 if case.gradients else leaf
        model.zero_grad()
        with nullcontext() if case.gradients else torch.no_grad():
            try:
                result = function(argument)
            except Exception as error:
                seen.append(Failed(type(error).__name__, str(error)[:200]))
                continue
        leaves, tree = pytree.tree_flatten(result)
        seen.append(str(tree))
        tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
        everything = [argument, *model.buffers(), *tensors]
        shared = [_overlap(a, b) for a, b in itertools.combinations(everything, 2) if a.numel() > 0 and b.numel() > 0]
        seen.append(("shared", shared))
        if case.gradients:
            loss = sum((t.float() ** 2).sum() for t in tensors if t.requires_grad and t.is_floating_point())
            if isinstance(loss, torch.Tensor):
                try:
                    loss.backward()
                except RuntimeError as error:  # what is saved was changed in place
                    seen.append(Failed(type(error).__name__, str(error)[:200]))
                    break
                seen.append([leaf.grad, *(p.grad for p in model.parameters())])
        seen += [t.requires_grad for t in tensors]
        seen.append([t.detach().clone(memory_format=torch.preserve_format) for t in tensors])
        seen.append([v for v in leaves if not isinstance(v, torch.Tensor)])
        seen.append([argument.detach().clone(), *(b.clone() for b in model.buffers()), *model.parameters()])
        seen[-1] = [t.detach().clone() for t in seen[-1]]
        changed(model, case.change, k)
    return calls


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and not a.is_complex()


def differs(got: Any, want: Any, path: str = "") -> str:
    """Where two observations differ; empty where they do not."""
    if isinstance(want, torch.Tensor):
        if not isinstance(got, torch.Tensor) or got.shape != want.shape or got.dtype != want.dtype:
            return f"{path}: {_kind(got)} for {_kind(want)}"
        half = want.dtype in (torch.bfloat16, torch.float16)
        limit = 0.06 if half else 2e-5 if want.dtype == torch.float32 else 1e-9
        exact = not want.is_floating_point() and not want.is_complex()
        scale = float(want.detach().abs().nan_to_num(0, 0, 0).max()) if want.numel() and not exact else 0.0
        close = torch.equal(got, want) if exact else torch.allclose(got, want, limit, limit * max(scale, 0.1), True)
        return "" if close else f"{path}: {got.flatten()[:8].tolist()} for {want.flatten()[:8].tolist()}"
    if isinstance(want, list) and any(isinstance(v, Failed) for v in want):
        return ""  # what eager PyTorch does not take
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        if len(want) != len(got):
            return f"{path}: {len(got)} for {len(want)}"
        return next(
            (d for k, (g, w) in enumerate(zip(got, want, strict=True)) if (d := differs(g, w, f"{path}.{k}"))), ""
        )
    return "" if type(got) is type(want) and got == want else f"{path}: {got} for {want}"


def _kind(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, torch.Tensor) else str(x)


def check(seed: int) -> str:
    """ "right", "wrong: how" or "PyTorch's", where its own backend does as ours does."""
    case = drawn(seed)
    models = [case.model, copy.deepcopy(case.model), copy.deepcopy(case.model)]
    want = observed(case, models[0], models[0])
    got = compiled(case, models[1], "tilewright")
    said = differs(got, want)
    if not said:
        return "right"
    other = compiled(case, models[2], "aot_eager")
    return f"wrong: {said}" if differs(got, other) else f"PyTorch's: {said}"


def compiled(case: Case, model: Form, backend: str) -> list[Any]:
    """All that callers see of a case under `torch.compile`."""
    torch._dynamo.reset()
    return observed(case, torch.compile(model, backend=backend, dynamic=case.dynamic), model)


def main() -> int:
    warnings.simplefilter("always", RuntimeWarning)
    faults = 0
    for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            try:
                said = check(seed)
            except Exception as error:
                said = f"wrong: {type(error).__name__}: {str(error)[:300]}"
        faults += said.startswith("wrong")
        left = [str(w.message) for w in caught if "runs in PyTorch" in str(w.message)]
        if said != "right" or left:
            print(seed, str(drawn(seed)), "|", " ".join(said.split()), "|", *left[:2], flush=True)
    print("done", faults)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
