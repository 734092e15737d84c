"""Parts that the tests of PyTorch modules share: functions as modules, and comparison with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.ir.interface import Imported
from tilewright.ops.interpret import run_graph
from tilewright.runtime.interop import as_numpy

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
nn, pytree = torch.nn, torch.utils._pytree

BATCHES = (1, 2, 5, 8)


class Functional(nn.Module):
    """Functions of the same arguments as one module, so that one export serves many."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: Any) -> list[Any]:
        return [f(*args) for f in self.functions]


def interpreted(imported: Imported, *inputs: Any) -> list[Any]:
    """The outputs, by the operators' references."""
    feeds = {v.name: as_numpy(x, v.name) for v, x in zip(imported.graph.inputs, inputs, strict=True)}
    return list(run_graph(imported.graph, feeds, imported.weights).values())


def assert_close(
    result: Sequence[Any],
    expected: Any,
    tolerance: float = 2e-6,
    what: str = "",
    allowed: Sequence[np.ndarray] | None = None,
) -> None:
    """Equal shapes and types, and equal numbers up to the tolerance times the largest number; where that is less than
    `allowed`, which has a bound for each element of each output, up to this."""
    leaves = [x for x in pytree.tree_leaves(expected) if isinstance(x, torch.Tensor)]
    assert len(result) == len(leaves), f"{what}: {len(result)} outputs instead of {len(leaves)}"
    for k, (a, e) in enumerate(zip(result, leaves, strict=True)):
        x, y = np.asarray(as_numpy(a, "found")), as_numpy(e, "expected")
        where = f"{what} output {k}"
        assert x.shape == y.shape and x.dtype == y.dtype, f"{where}: {x.dtype}{x.shape} for {y.dtype}{y.shape}"
        x, y = (np.asarray(v, np.float64) if v.dtype.kind not in "iub" else v for v in (x, y))
        if x.dtype.kind in "iub":
            np.testing.assert_array_equal(x, y, err_msg=where)
            continue
        finite = np.abs(y[np.isfinite(y)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        if allowed is not None:  # what is within its bound is not looked at further
            x = np.where(np.abs(x - y) <= allowed[k], y, x)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale, err_msg=where)


def check(
    module: Any,
    make: Callable[[int], tuple[Any, ...]],
    *,
    batches: Sequence[int] = BATCHES,
    tolerance: float = 2e-6,
    **options: Any,
) -> Imported:
    """Import with a dynamic batch; the graph's references give what eager PyTorch gives at each batch."""
    from tilewright.frontend.torch import import_torch

    module.eval()
    imported = import_torch(module, make(3), **options)
    for batch in batches:
        inputs = make(batch)
        with torch.no_grad():
            expected = module(*inputs)
        assert_close(interpreted(imported, *pytree.tree_leaves(inputs)), expected, tolerance, f"batch {batch},")
    return imported


def check_functions(*functions: Callable[..., Any], make: Callable[[int], tuple[Any, ...]], **options: Any) -> Imported:
    return check(Functional(*functions), make, **options)
