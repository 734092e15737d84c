"""Functions for tests of GPU code: of graphs, planned and lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.codegen.ptx.emulator import run_both_ways
from tilewright import ops, plans
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.ptx.emit import emit_module
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Var, as_int, const
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ir.loops import PrimFunc
from tilewright.ir.rewrite import substitute
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

Array = np.ndarray[Any, Any]

H100 = Target.parse("nvidia-sm_90")
ROWS = Var("rows", lo=1, hi=4096)
Build = Callable[[GraphBuilder], tuple[Value, ...]]


def tensor(*shape: int | Var, t: str = "f32") -> TensorType:
    return TensorType(dtype(t), tuple(const(d) if isinstance(d, int) else d for d in shape))


def function(build: Build, name: str = "kernel") -> PrimFunc:
    """The function of a graph that is one group."""
    b = GraphBuilder("case")
    graph = b.finish(build(b))
    (group,) = [g for g in fuse(graph) if g.nodes]
    return lower_group(group, name).func


def emit(b: GraphBuilder, op: str, *values: Value, **attrs: Any) -> Value:
    (result,) = ops.emit(b, op, *values, **attrs)
    return result


def lowered(func: PrimFunc, plan: str, target: Target = H100) -> PrimFunc:
    """The flat loops of a function, which the plan of this name must have been chosen for."""
    planned = plans.plan(func, target)
    assert planned.plan == plan, planned.describe()
    return lower_loops(planned.func, target)


def arguments(func: PrimFunc, symbols: Mapping[Var, int], seed: int = 0) -> list[Array]:
    """Arrays for a function's parameters: normal numbers, small integers."""
    random = np.random.default_rng(seed)
    values = {v: const(n) for v, n in symbols.items()}
    results = []
    for b in func.params:
        shape = [as_int(substitute(d, values)) or 0 for d in b.shape]
        x = random.standard_normal(shape) if b.dtype.is_float else random.integers(-3, 4, shape)
        results.append(np.array(x, b.dtype.numpy, order="C"))
    return results


def check(
    func: PrimFunc, plan: str, rows: int = 3, tolerance: float = 1e-5, target: Target = H100, *, loops: bool = True
) -> PrimFunc:
    """Run a function's GPU code in the emulator and (with `loops`) its loops, scheduled and lowered, in the
    interpreter, and compare both with the interpreter's result of what was not scheduled. Returns the lowered loops."""
    flat = lowered(func, plan, target)
    symbols = dict.fromkeys(func.symbols, rows)
    arrays = arguments(flat, symbols)
    count = len(func.params)
    wanted = [a.copy() for a in arrays[:count]]
    interpret(func, wanted)
    others = [run_both_ways(emit_module(flat, target), arrays, symbols)]
    if loops:
        others.append([a.copy() for a in arrays])
        interpret(flat, others[-1])
    for k, a in enumerate(wanted):
        for other in (result[k] for result in others):
            np.testing.assert_allclose(other.astype(np.float64), a.astype(np.float64), rtol=tolerance, atol=tolerance)
    return flat
