"""Times of operators and gradients at numbers below the normal ones: `python -m benchmarks.bench_subnormal_times`.

Each operator is compiled once for f32, f16 and bf16, forward and backward, and called in turns with numbers around 1
and with

    vanishing    numbers around 1 times 2^-100 (f16: 2^-12): products of two are below the normal numbers
    subnormal    numbers that are subnormal themselves, around 2^-130 (f16: 2^-18)
    steep        arguments at which the operator's results are subnormal, where it has such
    seed         backward alone: arguments around 1 and gradients of results that are subnormal

A ratio is the median of the ratios of pairs of turns, in processor time of the process. Every result is compared with
the same graph in float64: functions whose error docs/accuracy.md states by element, in units in the last place, all
others by the greatest number of the result (`TOLERANCES`); what is below the normal numbers may be zero where subnormal
results cost, and backward passes in narrow types round after each step, so that they multiply subnormal numbers of few
bits (`STEPS`). The table has operators with a ratio above `--above`; `--only` takes those whose names contain a text.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tilewright as tw
from benchmarks.harness import markdown_table, write_markdown
from tilewright import ops
from tilewright.ir.dtype import DType, bf16, f16, f32, f64
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.interpret import run_graph
from tilewright.ops.rooms import pruned
from tilewright.support.errors import Error, UnsupportedError
from tilewright.targets.target import Target
from tilewright.transform.math.expand import ACCURACY

Array = np.ndarray[Any, Any]
ELEMENTS, ROWS, PAIRS, TURN = 1 << 15, (64, 512), 15, 6e-4
"""Elements of a function's array, shape of what goes by rows, pairs of turns, seconds of a turn."""
STORAGE = {"f32": f32, "f16": f16, "bf16": bf16}
SCALES = {"vanishing": (-100, -12), "subnormal": (-130, -18)}
"""Exponents of the factor of each kind: of types with eight bits of exponent, and of f16."""
TOLERANCES = {"f32": 2e-5, "f16": 1e-2, "bf16": 8e-2}
"""Greatest errors by the greatest number of a result: roundings of the type, of which backward passes have several."""
STEPS = {"f32": 4, "f16": 64, "bf16": 64}
"""Errors in addition, in steps of the subnormal numbers."""


@dataclass(frozen=True, slots=True)
class Case:
    """An operator on arrays of `shapes`, with numbers between `low` and `high`, or `steep` if its results are to be
    subnormal."""

    op: str
    shapes: Sequence[tuple[int, ...]] = ((ELEMENTS,),)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    low: float = 0.5
    high: float = 1.5
    steep: Sequence[tuple[float, float]] = ()

    def arrays(self, kind: str, dtype: DType) -> list[Array]:
        rng, exact = np.random.default_rng(0), self.steep if kind == "steep" else [(self.low, self.high)]
        exponent = SCALES[kind][dtype is f16] if kind in SCALES else 0
        ranges = [exact[min(k, len(exact) - 1)] for k in range(len(self.shapes))]
        drawn = [rng.uniform(low, high, s) for (low, high), s in zip(ranges, self.shapes, strict=True)]
        return [np.ldexp(a, exponent).astype(dtype.numpy) for a in drawn]


TWO = ((ELEMENTS,), (ELEMENTS,))
CONV = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
POOL = {"kernel": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 0, 0), "ceil_mode": False}
TINY = (1e-20, 2e-20)
CASES = [
    *(Case(op) for op in "abs neg relu sign floor round sqrt rsqrt sin tan sinh cos cosh arctan arcsinh".split()),
    *(Case(op) for op in "log log2 log1p softsign hard_swish digamma lgamma expm1 bessel_i0 bessel_j0".split()),
    *(Case(op, low=0.1, high=0.9) for op in "arcsin arccos arctanh erfinv".split()),
    Case("exp", steep=[(-102, -89)]),
    Case("exp2", steep=[(-147, -128)]),
    Case("sigmoid", steep=[(-102, -89)]),
    Case("swish", attrs={"alpha": 1.0}, steep=[(-102, -93)]),
    Case("softplus", steep=[(-102, -89)]),
    Case("mish", steep=[(-102, -93)]),
    Case("gelu", attrs={"approximate": "none"}, steep=[(-13.6, -13.3)]),
    Case("gelu", attrs={"approximate": "tanh"}, steep=[(-13.6, -13.3)]),
    Case("elu", attrs={"alpha": 1.0}, steep=[(-102, -89)]),
    Case("selu", attrs={"alpha": 1.67, "gamma": 1.05}, steep=[(-102, -89)]),
    Case("celu", attrs={"alpha": 1.0}, steep=[(-102, -89)]),
    Case("tanh", steep=[(-102, -89)]),
    Case("erf", steep=[(-10, -9.4)]),
    Case("erfc", steep=[(9.3, 10)]),
    Case("reciprocal", steep=[(1e38, 3e38)]),
    Case("leaky_relu", attrs={"alpha": 0.01}),
    Case("hard_sigmoid", attrs={"alpha": 0.2, "beta": 0.5}),
    *(Case(op, TWO) for op in "add sub min max fmod atan2".split()),
    Case("mul", TWO, steep=[TINY]),
    Case("div", TWO, steep=[TINY, (1e20, 2e20)]),
    Case("pow", TWO, steep=[(0.1, 0.11), (39, 43)]),
    *(Case(op, (ROWS,), {"axis": 1}, steep=[(-102, 0)]) for op in ("softmax", "log_softmax")),
    Case("layer_norm", (ROWS, (ROWS[1],), (ROWS[1],)), {"axis": 1, "epsilon": 1e-5}),
    Case("rms_norm", (ROWS, (ROWS[1],)), {"axis": 1, "epsilon": 1e-5}),
    Case("lp_normalize", (ROWS,), {"axes": (1,), "epsilon": 1e-12, "p": 2}),
    *(
        Case(f"reduce_{op}", (ROWS,), {"axes": (1,), "keepdims": False}, steep=steep)
        for op, steep in {"sum": (), "mean": (), "max": (), "prod": [(0.83, 0.84)]}.items()
    ),
    Case("cumsum", (ROWS,), {"axis": 1, "exclusive": False, "reverse": False}),
    Case("cumulative_logsumexp", (ROWS,), {"axis": 1}),
    Case("matmul", ((64, 256), (256, 128)), steep=[TINY]),
    Case("conv", ((1, 32, 28, 28), (32, 32, 3, 3)), CONV, steep=[TINY]),
    Case("conv", ((1, 64, 28, 28), (64, 1, 3, 3)), CONV | {"groups": 64}, steep=[TINY]),
    Case("avg_pool", ((1, 32, 32, 32),), POOL | {"count_include_pad": False}),
    Case("max_pool", ((1, 32, 32, 32),), POOL),
    Case("lrn", ((1, 32, 28, 28),), {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 1.0}),
]


def graph_of(case: Case, dtype: DType, *, back: bool) -> Graph:
    """The operator, or the gradients of its inputs, which then come before those of its result `g`."""
    builder = GraphBuilder("one")
    inputs = [builder.input(f"x{k}", TensorType(dtype, tuple(map(const, s)))) for k, s in enumerate(case.shapes)]
    (result,) = ops.emit(builder, case.op, *inputs, **case.attrs)
    if not back:
        return builder.finish((result,))
    seed = builder.input("g", result.type)
    gradients = backward(builder, list(builder.nodes), {result: seed}, inputs)
    computed = (gradients[v] for v in inputs if v in gradients)
    return pruned(builder.finish(tuple(dict.fromkeys(v for v in computed if v is not seed))))


def wrong(storage: str, got: Sequence[Array], want: Sequence[Array], floor: float, ulps: float | None) -> float:
    """The greatest error as a share of what is allowed; infinite where one of the two alone is no finite number."""
    worst = 0.0
    for narrow, b in zip(got, want, strict=True):
        with np.errstate(all="ignore"):
            a, rounded = narrow.astype(np.float64), b.astype(narrow.dtype).astype(np.float64)
            error = np.abs(a - b)
        same = (a == rounded) | (np.isnan(a) & np.isnan(b))
        if ulps is not None:
            allowed = ulps * np.spacing(np.maximum(np.abs(b), 2.0**-126).astype(np.float32)).astype(np.float64)
        else:
            finite = np.abs(b[np.isfinite(b)])
            allowed = np.full(b.shape, TOLERANCES[storage] * (finite.max() if finite.size else 0.0))
        share = np.where(np.isfinite(error), error, np.inf) / (allowed + floor)
        worst = max(worst, float(np.where(same, 0.0, share).max(initial=0.0)))
    return worst


@dataclass(frozen=True, slots=True)
class Row:
    """`ratio` of the time with numbers of a kind to that with those around 1, `microseconds`; `error`: the greatest as
    a share of the bound; `subnormal`: the share of exact results that are subnormal in the type."""

    name: str
    storage: str
    way: str
    kind: str
    microseconds: float
    ratio: float
    error: float
    subnormal: float


def paired(model: Any, usual: Sequence[Array], other: Sequence[Array]) -> tuple[float, float]:
    """Seconds of a call with usual numbers, and the median of the ratios of pairs."""

    def turn(arrays: Sequence[Array], calls: int) -> float:
        start = time.process_time()
        for _ in range(calls):
            model(*arrays)
        return (time.process_time() - start) / calls

    turn(usual, 2), turn(other, 2)
    calls = max(1, round(TURN / max(turn(usual, 4), 1e-7)))
    pairs = [(turn(usual, calls), turn(other, calls)) for _ in range(PAIRS)]
    return statistics.median(a for a, _ in pairs), statistics.median(b / a for a, b in pairs)


def sweep(case: Case, storage: str, host: Target, *, back: bool) -> Iterator[Row]:
    """The rows of an operator in a type, forward or backward; none where it has no gradient."""
    dtype = STORAGE[storage]
    try:
        graph, exact = graph_of(case, dtype, back=back), graph_of(case, f64, back=back)
    except UnsupportedError:
        return
    if not graph.outputs:
        return
    model = tw.compile((graph, {}), threads=1, target=host)
    seeds = [v for v in graph.inputs if v.name == "g"]
    shapes = [tuple(int(str(d)) for d in v.shape) for v in seeds]
    least = {f32: -126, bf16: -126, f16: -14}[dtype]
    step = least - {f32: 23, bf16: 7, f16: 10}[dtype]
    floor = STEPS[storage] * 2.0**step + (2.0**least if host.costs.arithmetic.subnormal else 0.0)
    ulps = max(ACCURACY[case.op], 0.5) if case.op in ACCURACY and dtype is f32 and not back else None

    def feeds(kind: str) -> list[Array]:
        exponent = SCALES["subnormal"][dtype is f16] if kind == "seed" else 0
        drawn = [np.ldexp(np.random.default_rng(1).uniform(0.5, 1.5, s), exponent).astype(dtype.numpy) for s in shapes]
        return case.arrays("usual" if kind == "seed" else kind, dtype) + drawn

    usual = feeds("usual")
    kinds = [*SCALES, *(["steep"] if case.steep and dtype is not f16 else []), *(["seed"] if back else [])]
    for kind in kinds:
        arrays = feeds(kind)
        outputs = model(*arrays)
        got = [np.asarray(a) for a in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))]
        names = [v.name for v in exact.inputs]
        with np.errstate(all="ignore"):
            results = run_graph(exact, dict(zip(names, (a.astype(np.float64) for a in arrays), strict=True)))
        want = [results[v.name] for v in exact.outputs]
        small = [np.count_nonzero((np.abs(b) < 2.0**least) & (np.abs(b) >= 2.0**step)) / max(b.size, 1) for b in want]
        seconds, ratio = paired(model, usual, arrays)
        error = wrong(storage, got, want, floor, ulps)
        name = case.op + "".join(f" {v}" for v in case.attrs.values() if isinstance(v, str))
        name += " depthwise" if case.attrs.get("groups", 1) != 1 else ""
        yield Row(name, storage, "backward" if back else "forward", kind, seconds * 1e6, ratio, error, max(small))


def summary(rows: Sequence[Row], above: float) -> str:
    """Counts, and a table of operators that have a ratio above a number, the types of elements side by side."""
    kinds = ("vanishing", "subnormal", "steep", "seed")
    medians = {kind: statistics.median([r.ratio for r in rows if r.kind == kind] or [math.nan]) for kind in kinds}
    said = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in medians.items())
    beyond = ", ".join(f"{r.name} {r.way} ({r.storage}, {r.kind})" for r in rows if r.error > 1) or "none"
    slow = [r for r in rows if r.ratio > above]
    storages = list(dict.fromkeys(r.storage for r in rows))
    text = (
        f"{len(rows)} rows of {len({r.name for r in rows})} operators in {', '.join(storages)}; {len(slow)} take more "
        f"than {above:g} of the time around 1. Median ratios: {said}. Beyond the bound of their error: {beyond}.\n\n"
        "Ratios in the order of the types; a dash where there is no such number.\n\n"
    )
    ratios = {(r.name, r.way, r.storage, r.kind): r for r in rows}

    def cell(name: str, way: str, kind: str) -> str:
        results = [ratios.get((name, way, storage, kind)) for storage in storages]
        return " ".join("-" if r is None else f"{r.ratio:.2f}" for r in results)

    def usual(name: str, way: str) -> str:
        results = [ratios.get((name, way, storage, kinds[0])) for storage in storages]
        return " ".join("-" if r is None else f"{r.microseconds:.1f}" for r in results)

    listed = sorted({(r.way, r.name) for r in slow}, key=lambda k: (k[0] == "backward", k[1]))
    cells = [(name, way, usual(name, way), *(cell(name, way, kind) for kind in kinds)) for way, name in listed]
    return text + markdown_table(["operator", "way", "µs around 1", *kinds], cells)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators whose names contain this")
    parser.add_argument("--storage", default="f32,f16,bf16", help="types of elements")
    parser.add_argument("--above", type=float, default=1.1, help="ratios that the table shows")
    parser.add_argument("--write", action="store_true", help="write results/subnormals.md")
    settings = parser.parse_args(arguments)
    host, rows = Target.host(), list[Row]()
    for case in CASES:
        if settings.only not in case.op:
            continue
        for storage in settings.storage.split(","):
            for back in (False, True):
                try:
                    for row in sweep(case, storage, host, back=back):
                        rows.append(row)
                        if row.ratio > settings.above or row.error > 1:
                            print(row, flush=True)
                except Error as error:
                    print(case.op, storage, "backward" if back else "forward", error, flush=True)
    text = summary(rows, settings.above)
    print(text)
    if settings.write:
        write_markdown("subnormals", "Numbers below the normal ones, 1 thread", text)


if __name__ == "__main__":
    main()
