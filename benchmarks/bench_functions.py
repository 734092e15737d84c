"""Functions that are written out, such as `exp` and `arctan`: cycles of a vector against what estimates take for it.

    python -m benchmarks.bench_functions [--target x86-64-v3] [--only exp log]

Arrays of `ELEMENTS` stay in the first level of cache; the time is that of the kernel alone, as profiles show it, the
least of several medians. `entry` is a table of 256 bytes, whose vectors are of bytes. What estimates say is in
`FUNCTIONS` of plans/framework/cost.py, and in `function`, `divide` and their kin of a target's constants.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import tilewright as tw
from tilewright import ops
from tilewright.ir.dtype import f32, u8
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.lowered.entry import ENTRIES
from tilewright.plans import plan
from tilewright.plans.framework.cost import FUNCTIONS
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.lower import lower_group

ELEMENTS = 2048
ROUNDS, CALLS = 9, 400
OTHERS = ("relu", "sqrt", "reciprocal", "softplus", "mish")
ABOVE_ONE = ("arccosh",)
"""Functions of arguments from 1 on."""


TABLE = "entry"


def function(name: str) -> Graph:
    """The function of one array, or of two if it is a power; or a table that is read at the numbers of one."""
    b = GraphBuilder(name)
    if name == TABLE:
        x, table = (b.input(v, TensorType(u8, (const(n),))) for v, n in (("x", ELEMENTS), ("t", ENTRIES)))
        return b.finish((ops.emit1(b, "lowered.entry", x, table),))
    inputs = [b.input(f"x{k}", TensorType(f32, (const(ELEMENTS),))) for k in range(1 + (name == "pow"))]
    return b.finish((ops.emit1(b, name, *inputs),))


def measure(name: str, target: str) -> tuple[float, float]:
    """Measured and estimated cycles of a vector."""
    machine, graph = Target.on_host(target), function(name)
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 0.9, ELEMENTS).astype(np.float32) + np.float32(name in ABOVE_ONE)
    arrays = [x] * len(graph.inputs)
    if name == TABLE:
        arrays = [rng.integers(0, ENTRIES, n, np.uint8) for n in (ELEMENTS, ENTRIES)]
    clock = tw.compile((graph, {}), target=target).step_clock(*arrays)
    medians = [np.median(clock.samples(CALLS, warm=2), axis=0).sum() for _ in range(ROUNDS)]
    estimate = sum(plan(lower_group(g, "kernel").func, machine).chosen.cycles for g in fuse(graph))
    vectors = ELEMENTS / machine.lanes(arrays[0].itemsize)
    return float(min(medians)) * machine.frequency / vectors, estimate / vectors


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_functions", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--target", default="host")
    parser.add_argument("--only", nargs="*", help="these functions")
    options = parser.parse_args(arguments)
    names = (*OTHERS, TABLE, *(name for name in FUNCTIONS if name in ops.names()))
    for name in options.only or names:
        measured, estimate = measure(name, options.target)
        print(f"{name:12} {measured:6.1f} cycles a vector, estimate {estimate:6.1f}, ratio {measured / estimate:.2f}")


if __name__ == "__main__":
    main()
