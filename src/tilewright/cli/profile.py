"""`tilewright profile`: the time of each kernel in calls, compared with the machine's limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from tilewright.cli import picture
from tilewright.cli.common import (
    DimOption,
    FastOption,
    JsonOption,
    PrecisionOption,
    SeedOption,
    TargetOption,
    ThreadsOption,
    bytes_text,
    is_quiet,
    out,
    parse_dims,
    parse_ranges,
    print_json,
    table,
    time_text,
)
from tilewright.cli.models import ModelArgument, call_sizes, check_dims, check_output, open_model
from tilewright.measure import calibration
from tilewright.measure.roofline import Level, Roofline
from tilewright.runtime.examples import random_inputs
from tilewright.support.classes import dataclass
from tilewright.support.machine import describe
from tilewright.support.progress import progress

if TYPE_CHECKING:
    from tilewright.runtime.model import Model
    from tilewright.runtime.profile import KernelTime, Profile
    from tilewright.runtime.trace_events import Timeline
    from tilewright.targets.target import Target

SETTLING_CALLS = 64
"""Ordinary calls before any is timed: they warm the caches and end the trials of thread numbers."""
TRACED_CALLS = 5
"""The most calls in a timeline."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel over all calls of the trace: its seconds, its share, its rates if its work is known, the ratio of the
    machine's least time for this work (roofline) to the measured time, what bounds that least time, and the share of
    threads' time spent waiting for each other."""

    label: str
    kernel: str
    seconds: float
    share: float
    gflops: float | None
    gbytes: float | None
    of_roofline: float | None
    bound: str | None
    waiting: float


@dataclass(frozen=True, slots=True)
class Shape:
    """Calls with the same sizes: the median seconds of one, threads used, bytes of temporaries."""

    symbols: dict[str, int]
    calls: int
    seconds: float
    threads: int
    arena: int


def profile(
    model: ModelArgument,
    calls: Annotated[int, typer.Option(min=1, help="Timed calls of each size; the median counts.")] = 50,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="NAME=N,N,...",
            help="Sizes of a symbolic dimension in the calls of a trace; of several, one call has the first of each.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a timeline of threads, waits and memory, for https://ui.perfetto.dev.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw the kernels under the roofline, and one call's threads, waits and memory.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Kernels shown, those that take longest.")] = 25,
    dim: DimOption = None,
    threads: ThreadsOption = None,
    precision: PrecisionOption = None,
    fast: FastOption = None,
    target: TargetOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Show where the time of a call goes: each kernel beside what this machine could do at best.

    *of roofline* is the least time for the kernel's operations and bytes, as far as `tilewright doctor` knows the
    machine, by the time that it took: near 100 % only another algorithm helps. *bound by* says what that least time
    consists of: computing, or reading from a level of memory. *waits* is the share of the threads' time at barriers.

    ```
    tilewright profile policy.onnx
    tilewright profile policy.onnx --dim batch=64 --threads 2 --trace trace.json
    tilewright profile policy.onnx --png policy.png
    tilewright profile bert.onnx --over length=12,31,40,40,200 --json
    ```

    Kernels are timed in a copy of the program that looks at the clock between them; the program itself has no code for
    that.
    """
    sizes = parse_trace(over)
    picture.check(png)
    check_output(trace, [model], "--trace")
    check_output(png, [model], "--png")
    dims = parse_ranges(dim)
    if twice := sorted({n for at in sizes for n in at} & {n for n, said in dims.items() if isinstance(said, int)}):
        raise typer.BadParameter(f"{twice[0]} has sizes by --over and one by --dim", param_hint="--over")
    with progress(f"compile {model.name}", enabled=not is_quiet(json)):
        compiled = open_model(model, threads, dims, precision, fast, target)
    for at in sizes:
        check_dims(at, compiled.manifest.symbols, str(model), "--over")
    fixed = call_sizes(compiled, dims)
    distinct: dict[tuple[tuple[str, int], ...], int] = {}
    for at in sizes:
        key = tuple(sorted((fixed | at).items()))
        distinct[key] = distinct.get(key, 0) + 1
    results = []
    with progress("profile", total=len(distinct), enabled=not is_quiet(json)) as step:
        for key, count in distinct.items():
            results.append(_measured(compiled, dict(key), count, calls, seed))
            step(", ".join(f"{name}={n}" for name, n in key))
    shapes = [shape for shape, _, _ in results]
    kernels = summary(results, _machine(target))
    if trace:
        results[-1][2].save(trace)
    if png:
        last = results[-1][2]
        picture.save(png, compiled.name, kernels, last, roofline(_machine(target), last.threads))
    if json:
        print_json(
            {"threads": compiled.threads, "shapes": list(map(asdict, shapes)), "kernels": [*map(asdict, kernels)]}
        )
        return
    _print(compiled, shapes, kernels, top)
    if calibration.load(describe()) is None:
        out.print(
            "ceilings: what is known of this kind of CPU; `tilewright doctor` measures this one's", soft_wrap=True
        )
    if trace:
        out.print(f"timeline: {trace} (open it at https://ui.perfetto.dev or chrome://tracing)", soft_wrap=True)
    if png:
        out.print(f"picture: {png}", soft_wrap=True)


def parse_trace(texts: Sequence[str] | None) -> list[dict[str, int]]:
    """`["n=1,2", "m=5,6"]` -> [{"n": 1, "m": 5}, {"n": 2, "m": 6}]; a usage error where they do not fit together."""
    columns: dict[str, list[int]] = {}
    for text in texts or ():
        name, _, values = text.partition("=")
        columns[name] = [parse_dims([f"{name}={value}"], "--over", "NAME=N,N,...")[name] for value in values.split(",")]
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise typer.BadParameter("each dimension needs as many sizes as the others", param_hint="--over")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)] or [{}]


def _measured(model: Model, dims: dict[str, int], count: int, calls: int, seed: int) -> tuple[Shape, Profile, Timeline]:
    """(the call's sizes and time, its profile by kernel, its timeline) from `calls` calls of the model with random
    inputs, whose extents are `dims`. `count` is the number of such calls in the trace, `seed` the random
    generator's."""
    created = random_inputs(model.inputs, dims, seed)
    inputs = [created[spec.name] for spec in model.inputs]
    for _ in range(SETTLING_CALLS):
        model(*inputs)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        model(*inputs)
        times.append(time.perf_counter() - start)
    threads = model.threads_of(*inputs)
    by_kernel = model.profile(*inputs, repeat=calls, threads=threads)
    timeline = model.timeline(*inputs, calls=min(calls, TRACED_CALLS), threads=threads)
    arena = model.memory(**by_kernel.symbols).arena
    return Shape(dims | by_kernel.symbols, count, float(np.median(times)), threads, arena), by_kernel, timeline


def summary(result: Sequence[tuple[Shape, Profile, Timeline]], machine: Target) -> list[Kernel]:
    """The summary of each kernel over all calls in `result`, in the order in which they run."""
    total = sum(shape.calls * k.seconds for shape, p, _ in result for k in p.kernels) or inf
    steps = [number for number, step in enumerate(result[0][2].steps) if step.region is None]
    return [
        _over_calls(
            [(shape.calls, p.kernels[place], p.threads, t.waiting(number)) for shape, p, t in result], total, machine
        )
        for place, number in enumerate(steps)
    ]


def _over_calls(parts: Sequence[tuple[int, KernelTime, int, float]], total: float, machine: Target) -> Kernel:
    """The summary of one kernel over all shapes; `parts` has for each shape: number of calls, time in one, threads, and
    share of waits. `total`: the seconds of all kernels."""
    seconds = sum(n * k.seconds for n, k, _, _ in parts) or 1e-12
    least: dict[str, float] = {}
    for n, k, threads, _ in parts:
        flops, nbytes = (None if rate is None else rate * k.seconds * 1e9 for rate in (k.gflops, k.gbytes))
        bound = roofline(machine, threads).bound(flops, nbytes)
        if bound is not None:
            least[bound.by] = least.get(bound.by, 0.0) + n * bound.seconds
    first = parts[0][1]
    return Kernel(
        label=first.label,
        kernel=first.kernel,
        seconds=seconds,
        share=seconds / total,
        gflops=_mean([(n * k.seconds, k.gflops) for n, k, _, _ in parts]),
        gbytes=_mean([(n * k.seconds, k.gbytes) for n, k, _, _ in parts]),
        of_roofline=sum(least.values()) / seconds if least else None,
        bound=max(least, key=lambda name: least[name]) if least else None,
        waiting=_mean([(n * k.seconds, waiting) for n, k, _, waiting in parts]) or 0.0,
    )


def _mean(parts: Sequence[tuple[float, float | None]]) -> float | None:
    """The mean rate, weighted by time, of (seconds, rate) pairs; None if a rate is unknown."""
    known = [(seconds, rate) for seconds, rate in parts if rate is not None]
    total = sum(seconds for seconds, _ in known)
    return sum(seconds * rate for seconds, rate in known) / total if len(known) == len(parts) and total else None


def roofline(machine: Target, threads: int) -> Roofline:
    """The rates that `threads` cores reach at best, in 32-bit floats; each core has its own first two cache levels."""
    hertz = machine.frequency * 1e9
    cores = min(threads, machine.cores)
    memory = machine.memory_bandwidth if cores == 1 else machine.memory_total or cores * machine.memory_bandwidth
    levels = [
        Level("L1", cores * machine.l1, cores * machine.l1_bandwidth * hertz),
        Level("L2", cores * machine.l2, cores * machine.l2_bandwidth * hertz),
        Level("L3", machine.l3, cores * machine.l3_bandwidth * hertz),
        Level("memory", inf, memory * hertz),
    ]
    return Roofline(cores * 2 * machine.fma_per_cycle * machine.lanes(4) * hertz, tuple(levels))


def _machine(target: str | None) -> Target:
    from tilewright.targets.target import Target

    return Target.host() if target is None else Target.on_host(target, "--target")


def _print(model: Model, shapes: Sequence[Shape], kernels: Sequence[Kernel], top: int) -> None:
    rows = []
    for s in shapes:
        sizes = ", ".join(f"{name}={n}" for name, n in s.symbols.items()) or "fixed"
        threads = f"{s.threads} of {model.threads}"
        rows.append([sizes, s.calls, time_text(s.seconds), threads, bytes_text(s.arena)])
    table(f"{model.name}: calls", ["sizes", "calls", "a call", "threads", "temporaries"], rows)
    shown = sorted(kernels, key=lambda k: -k.seconds)[:top]
    rows = [
        [
            k.label if len(k.label) <= 60 else k.label[:57] + "...",
            time_text(k.seconds),
            f"{k.share:.1%}",
            *(f"{rate:.1f}" if rate is not None else "-" for rate in (k.gflops, k.gbytes)),
            f"{k.of_roofline:.0%}" if k.of_roofline is not None else "-",
            k.bound or "-",
            f"{k.waiting:.0%}" if k.waiting else "",
        ]
        for k in shown
    ]
    if len(kernels) > len(shown):
        rest = sorted(kernels, key=lambda k: -k.seconds)[top:]
        seconds, share = sum(k.seconds for k in rest), sum(k.share for k in rest)
        rows.append([f"{len(rest)} other kernels", time_text(seconds), f"{share:.1%}", *[""] * 5])
    columns = ["kernels, all calls together", "time", "share", "GFLOP/s", "GB/s", "of roofline", "bound by", "waits"]
    table("", columns, rows)
