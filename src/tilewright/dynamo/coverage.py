"""The part of a PyTorch module that `torch.compile(module, backend="tilewright")` would compile, and why not the
rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.debugging import ExplainWithBackend
from torch.fx import GraphModule

from tilewright.dynamo.backend import tilewright
from tilewright.dynamo.report import PYTORCH, GraphReport
from tilewright.support.coverage import Coverage, Uncompiled, totals
from tilewright.support.errors import CallError

BREAK = "graph break"


def module_coverage(module: Callable[..., Any], example: Any, **options: Any) -> Coverage:
    """Run a module or function once through TorchDynamo, without gradients, and report which operators of its graphs
    are compiled.

    Args:
        example: inputs, as `tilewright.compile` takes them: a tensor, a tuple of arguments, or a dict of keyword
            arguments.
        options: those of the backend.

    Raises CallError where there is no example; whatever the module raises.
    """
    if example is None:
        raise CallError("a PyTorch module needs an example of its inputs", expected="tw.coverage(module, example)")
    args, kwargs = _arguments(example)
    reports: list[GraphReport] = []

    def backend(gm: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        return tilewright(gm, examples, options={**options, "report": reports.append})

    explain = ExplainWithBackend(backend)
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(module, backend=explain)(*args, **kwargs)
    finally:
        torch._dynamo.reset()
    name = getattr(module, "__name__", type(module).__name__)
    return Coverage(
        name,
        totals(pair for report in reports for pair in report.operators),
        tuple(part for report in reports for part in report.parts),
        (*(item for report in reports for item in report.uncompiled), *_breaks(explain.break_reasons)),
    )


def _arguments(example: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(example, Mapping):
        return (), {str(name): value for name, value in example.items()}
    return tuple(example) if isinstance(example, tuple | list) else (example,), {}


def _breaks(reasons: Sequence[Any]) -> list[Uncompiled]:
    """For each place where TorchDynamo broke the graph, the reason."""
    result: dict[tuple[str, str], Uncompiled] = {}
    for k, reason in enumerate(reasons):
        if not getattr(reason, "graph_break", True) or not reason.user_stack:
            continue
        frame = reason.user_stack[-1]
        where = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}: {frame.line or ''}".rstrip(": ")
        what = reason.reason.strip().splitlines()[0]
        help = "torch._dynamo.explain says more; what stands between two graphs runs as Python"
        result.setdefault((what, where), Uncompiled(f"break{k}", BREAK, what, PYTORCH, help, where))
    return list(result.values())


__all__ = ["module_coverage"]
