"""One case on Tilewright against eager PyTorch."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils import _pytree as pytree

import tilewright as tw
from tests.torch_opinfo.cases import Case
from tilewright.frontend.read import import_model
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import UnsupportedError

Kind = Literal["native", "fell back", "refused", "wrong", "crashed", "not exportable", "left out"]

UNSET = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_as_")
"""Operators whose results hold whatever was in memory: only shapes and types are compared."""

OPEN = ("kthvalue", "median", "nanmedian", "mode", "topk", "sort", "min", "max", "masked")
"""Operators of which PyTorch leaves open which of several equal elements they take: ours must be equal too."""

TIMES_EAGER = 2.0
ULPS = 4.0
"""Where a result is not near eager's element by element, it may be this much further than eager's from the result in
f64, or differ from that by so many units in the last place of the largest number (sums in another order)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: Kind
    reason: str = ""


def check(case: Case, name: str, native: bool = True) -> Outcome:
    """The outcome of a case. One that `tw.compile` refuses goes through `torch.compile` with our backend, which runs in
    PyTorch what is not supported. With `native` false the graph is run by the operators' NumPy references."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            expected = _tensors(case.module(*_copies(case.inputs)))
    except Exception as error:
        return Outcome("left out", f"eager: {type(error).__name__}: {str(error)[:100]}")
    if not expected:
        return Outcome("left out", "no tensors come out")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            supplied = _native(case) if native else _interpreted(case)
    except tw.Error as error:
        return _by_torch_compile(case, name, expected, error) if native else _refused(error)
    except Exception as error:
        return Outcome("crashed", f"{type(error).__name__}: {str(error)[:200]}")
    difference = _difference(case, name, supplied, expected)
    return Outcome("native") if difference is None else Outcome("wrong", difference)


def _refused(error: tw.Error) -> Outcome:
    text = _first(error)
    elsewhere = "cannot be exported" in text or "one program cannot" in text
    return Outcome("not exportable" if elsewhere and not isinstance(error, UnsupportedError) else "refused", text)


def _by_torch_compile(case: Case, name: str, expected: list[torch.Tensor], refused: tw.Error) -> Outcome:
    """The outcome of a refused case as a part of what Dynamo traces. Where that itself ends in an error, so that no
    backend is asked, the refusal stands."""
    torch.compiler.reset()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            run = torch.compile(case.module, backend="tilewright")
            torch.manual_seed(0)
            inputs = _tensors(run(*_copies(case.inputs)))
    except tw.Error as error:
        return Outcome("crashed", f"torch.compile: {type(error).__name__}: {_first(error)}")
    except Exception as error:
        by_itself = _error_by_dynamo(case)
        text = f"{type(error).__name__}: {str(error)[:150]}"
        return _refused(refused) if by_itself else Outcome("crashed", f"torch.compile: {text}")
    difference = _difference(case, name, inputs, expected)
    reason = _refused(refused).reason
    return Outcome("fell back", reason) if difference is None else Outcome("wrong", f"torch.compile: {difference}")


def _error_by_dynamo(case: Case) -> bool:
    """Whether `torch.compile` fails with the backend that runs everything in PyTorch, too."""
    torch.compiler.reset()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.compile(case.module, backend="eager")(*_copies(case.inputs))
    except Exception:
        return True
    return False


def _first(error: tw.Error) -> str:
    problem = next(iter(error.each()), error)
    got = getattr(problem, "got", None)
    text = f"{problem.what}{'' if got is None else f' (got {got})'}".replace("\n", " ")
    return re.sub(r"/\S*/", "", text)[:300]  # files by their names


def _native(case: Case) -> list[Any]:
    model = tw.compile(case.module, _copies(case.inputs), dynamic=None)
    result = model(*_copies(case.inputs))
    return _tensors(result)


def _interpreted(case: Case) -> list[Any]:
    read = import_model(case.module, example=_copies(case.inputs), dynamic=None)
    arrays = {v.name: _array(t) for v, t in zip(read.graph.inputs, case.inputs, strict=True)}
    result = run_graph(read.graph, arrays, read.weights)
    return [
        torch.from_numpy(np.array(a, order="C")) if a.dtype.name != "bfloat16" else _foreign(a) for a in result.values()
    ]


def _array(t: torch.Tensor) -> Any:
    import ml_dtypes

    if t.dtype is torch.bfloat16:
        return t.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return t.contiguous().numpy()


def _foreign(array: Any) -> torch.Tensor:
    """A tensor of bfloat16, which NumPy has from another package."""
    return torch.from_numpy(np.array(array, order="C").view(np.int16)).view(torch.bfloat16)


def _copies(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The tensors again, in memory of their own, laid out as they are, with zeros between the elements: `as_strided`
    reads those."""
    return tuple(_copy(t) if t.layout is torch.strided else t.clone() for t in tensors)


def _copy(t: torch.Tensor) -> torch.Tensor:
    created = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    created.as_strided((created.untyped_storage().nbytes() // created.itemsize,), (1,)).zero_()
    return created.copy_(t)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf.detach() for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _difference(case: Case, name: str, inputs: list[torch.Tensor], expected: list[torch.Tensor]) -> str | None:
    """How the results differ from eager's; None if they do not."""
    if len(inputs) != len(expected):
        return f"{len(inputs)} results, expected {len(expected)}"
    exact: list[torch.Tensor] | None = None
    for k, (ours, eager) in enumerate(zip(inputs, expected, strict=True)):
        if ours.shape != eager.shape or ours.dtype != eager.dtype:
            return f"result {k} is {ours.dtype}{list(ours.shape)}, expected {eager.dtype}{list(eager.shape)}"
        if name.split(".")[0] in UNSET:
            continue
        if k == 1 and name.split(".")[0] in OPEN and _takes(case.inputs[0], ours, expected[0]):
            continue
        if name == "argsort" and not ours.is_floating_point() and _alike(case.inputs[0], ours, eager):
            continue
        try:
            torch.testing.assert_close(ours, eager, equal_nan=True)
        except AssertionError as error:
            exact = _exact(case) if exact is None else exact
            if not eager.is_floating_point() or not exact or not _as_close(ours, eager, exact[k]):
                return f"result {k}: " + " ".join(line for line in str(error).splitlines() if line)[:200]
    return None


def _takes(x: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether the values are the elements of `x` at these places along some axis."""
    for axis in range(x.ndim):
        index, wanted = (t if t.ndim == x.ndim else t.unsqueeze(axis) for t in (places, values))
        fits = all(a == b for k, (a, b) in enumerate(zip(index.shape, x.shape, strict=True)) if k != axis)
        inside = fits and (not index.numel() or 0 <= int(index.min()) <= int(index.max()) < x.shape[axis])
        if inside and torch.allclose(x.gather(axis, index).double(), wanted.double(), equal_nan=True):
            return True
    return False


def _alike(x: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether both are places of the same elements of `x` along some axis, each place once."""
    return any(
        torch.equal(x.gather(axis, ours), x.gather(axis, theirs))
        and torch.equal(ours.sort(axis).values, theirs.sort(axis).values)
        for axis in range(x.ndim)
        if ours.shape == x.shape and ours.numel() and 0 <= int(ours.min()) <= int(ours.max()) < x.shape[axis]
    )


def _exact(case: Case) -> list[torch.Tensor]:
    """The results of eager in f64; none where it has no such."""
    try:
        with torch.no_grad():
            wide = [t.double() if t.is_floating_point() else t for t in _copies(case.inputs)]
            return _tensors(case.module.double()(*wide))
    except Exception:
        return []
    finally:
        narrow = next((t.dtype for t in case.inputs if t.is_floating_point()), torch.float32)
        case.module.to(narrow)


def _as_close(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether our result is about as near to that in f64 as eager's, and no less finite."""
    if exact.shape != ours.shape or not torch.equal(ours.isfinite(), eager.isfinite()):
        return False
    finite = eager.isfinite() & exact.isfinite()
    error, allowed = ((t.double() - exact.double())[finite].abs() for t in (ours, eager))
    if not error.numel():
        return True
    rounding = ULPS * torch.finfo(eager.dtype).eps * exact[finite].abs().max().item()
    return bool(error.max() <= max(TIMES_EAGER * allowed.max().item(), rounding))
