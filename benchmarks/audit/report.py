"""The third phase of an audit: tables of what was estimated against what was measured, and a picture."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.audit.records import Compiled, Timed
from benchmarks.harness import RESULTS, wrong

LOW, HIGH = 0.5, 2.0
SLOWER = 1.1
"""Times of "auto" against "exact" from which on the choice of an algorithm was wrong."""
SHORTEST = 20e-6
"""Seconds."""
LEVELS = (0.7, 0.9, 1.0)
"""Eager's time by ours below which layers are counted."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a layer: its plan, what bounds it, its time and the estimate, in seconds."""

    kind: str
    layer: str
    label: str
    plan: str
    knobs: str
    bound: str
    seconds: float
    estimate: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.estimate

    @property
    def outside(self) -> bool:
        return not LOW <= self.ratio <= HIGH


@dataclass(frozen=True, slots=True)
class Named:
    """Kernels whose estimates are known to be off, and why that decides nothing."""

    name: str
    holds: Callable[[Kernel], bool]
    reason: str


EXCEPTIONS = (
    Named(
        "far",
        lambda k: k.bound == "memory" and 1.0 < k.ratio <= 4.0 and k.estimate > 50e-6,
        "megabytes that the kernel before wrote are read from memory where others of the machine fill the last level of"
        " cache, which estimates take for empty: its bandwidth is some three to four times the memory's",
    ),
)
"""Layers that stand outside on purpose."""


def write(compiled: Mapping[int, Compiled], timed: Mapping[int, Timed], target: str, most: int) -> None:
    """Prints the tables, and keeps figures and picture."""
    console = Console(width=180)
    kernels = [k for number in timed for k in _kernels(compiled[number], timed[number])]
    errors = [row for row in compiled.values() if row.error]
    console.print(f"{len(timed)} layers timed of {len(compiled)} compiled, {len(errors)} refused")
    for row in errors:
        console.print(f"refused: {row.kind} {row.layer}: {row.error}", markup=False)
    _by_plan(console, kernels)
    _outside(console, kernels, most)
    for e in EXCEPTIONS:
        console.print(f"{e.name}: {e.reason}")
    _choices(console, compiled, timed, most)
    _peers(console, compiled, timed, most)
    rows = [dataclasses.asdict(k) for k in kernels]
    layers = [dataclasses.asdict(compiled[n]) | dataclasses.asdict(timed[n]) for n in timed]
    text = json.dumps({"kernels": rows, "layers": layers}, indent=1)
    (RESULTS / f"audit-{target}.json").write_text(text + "\n")
    draw(kernels, target)


def _kernels(compiled: Compiled, timed: Timed) -> list[Kernel]:
    """The kernels that are long enough to count."""
    results = []
    for estimated, seconds in zip(compiled.kernels, timed.kernels, strict=True):
        if max(seconds, estimated.seconds) > SHORTEST and estimated.seconds:
            about = (estimated.label, estimated.plan, estimated.knobs, estimated.bound)
            results.append(Kernel(compiled.kind, compiled.layer, *about, seconds, estimated.seconds))
    return results


def _by_plan(console: Console, kernels: Sequence[Kernel]) -> None:
    table = Table("plan", "kernels", "5 %", "median", "95 %", f"outside {LOW}-{HIGH}", "named")
    plans: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        plans[kernel.plan].append(kernel)
    for name, own in sorted({**plans, "all": list(kernels)}.items(), key=lambda item: (item[0] == "all", item[0])):
        if own:
            ends = np.quantile([k.ratio for k in own], [0.05, 0.5, 0.95])
            from_memory = [k for k in own if k.outside]
            named = [k for k in from_memory if exception(k)]
            table.add_row(name, str(len(own)), *(f"{e:.2f}" for e in ends), str(len(from_memory)), str(len(named)))
    console.print(table)


def exception(kernel: Kernel) -> str:
    """The name of the exception that a kernel falls under, empty if none."""
    return next((e.name for e in EXCEPTIONS if e.holds(kernel)), "")


def _outside(console: Console, kernels: Sequence[Kernel], most: int) -> None:
    from_memory = sorted((k for k in kernels if k.outside), key=lambda k: -abs(math.log(k.ratio)))
    for k in from_memory[:most]:
        text = f"{k.ratio:6.2f}  {k.knobs}  {k.kind} {k.layer} ({k.label}: {k.bound})"
        console.print(f"{text}  {k.seconds * 1e6:.0f} µs  {exception(k)}", markup=False)


def _choices(console: Console, compiled: Mapping[int, Compiled], timed: Mapping[int, Timed], most: int) -> None:
    """The layers whose algorithm was not worth it."""
    both = [(t.auto / t.exact, t) for t in timed.values() if t.exact]
    slow = sorted(((r, t) for r, t in both if r > SLOWER), key=lambda pair: -pair[0])
    console.print(f"{len(slow)} of {len(both)} layers with another algorithm take {SLOWER} times what exact ones take:")
    for ratio, t in slow[:most]:
        console.print(
            f"{ratio:6.2f}  {compiled[t.number].kind} {compiled[t.number].layer}  {t.auto * 1e6:.0f} µs", markup=False
        )


def _peers(console: Console, compiled: Mapping[int, Compiled], timed: Mapping[int, Timed], most: int) -> None:
    """Eager's time by ours, Inductor's, and whose results differ."""
    for peer in ("eager", "inductor"):
        both = [(seconds / t.auto, t) for t in timed.values() if (seconds := getattr(t, peer))]
        if both:
            _peer(console, peer, sorted(both, key=lambda pair: pair[0]), compiled, most)
    off = [t for t in timed.values() if t.difference is not None and not t.difference <= wrong("ours")]
    console.print(f"{len(off)} results differ by more than {wrong('ours')} of the largest element")
    for t in off:
        about = f"{compiled[t.number].kind} {compiled[t.number].layer}"
        console.print(f"{t.difference:.1e}  {about}", markup=False)


def _peer(
    console: Console, peer: str, both: Sequence[tuple[float, Timed]], compiled: Mapping[int, Compiled], most: int
) -> None:
    ratios = np.array([r for r, _ in both])
    counts = ", ".join(f"{np.count_nonzero(ratios < level)} below {level}" for level in LEVELS)
    mean, least = np.exp(np.log(ratios).mean()), ratios.min()
    console.print(f"{peer}'s time by ours in {len(both)} layers: geomean {mean:.2f}, least {least:.2f}, {counts}")
    for ratio, t in both[:most]:
        if ratio < LEVELS[-1]:
            about = f"{compiled[t.number].kind} {compiled[t.number].layer}"
            console.print(f"{ratio:6.2f}  {about}  {t.auto * 1e6:.1f} µs", markup=False)


def draw(kernels: Sequence[Kernel], target: str) -> None:
    """results/audit-TARGET.png: the ratios by estimate, a colour a plan; nothing without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None or not kernels:
        return
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 6))
    for name in sorted({k.plan for k in kernels}):
        own = [k for k in kernels if k.plan == name]
        axes.loglog([k.estimate * 1e6 for k in own], [k.ratio for k in own], ".", label=f"{name} ({len(own)})")
    for end in (LOW, 1, HIGH):
        axes.axhline(end, color="grey", linewidth=0.7, linestyle="-" if end == 1 else "--")
    axes.set(xlabel="estimate, µs", ylabel="time / estimate", title=f"kernels of random layers, {target}")
    axes.legend(fontsize=8)
    figure.savefig(RESULTS / f"audit-{target}.png", dpi=120, bbox_inches="tight")
