"""Where the time of a model goes, by kind of kernel: `python -m benchmarks.bench_profile --models az6,bert`.

Rates stand beside the machine's measured peak: a kind that runs near it can only be helped by a better algorithm.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from typing import Any

from benchmarks import harness, models
from benchmarks.bench_models import DEFAULT

HEADER = ["model", "kernels", "calls", "µs", "share", "GFLOP/s", "of peak", "GB/s"]


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """All kernels with the same label."""

    label: str
    calls: int
    seconds: float
    share: float
    gflops: float | None
    gbytes: float | None


def profile(name: str, threads: int, batch: int, repeat: int) -> list[Kind]:
    """Kinds of kernels, the most expensive first."""
    import onnx

    import tilewright as tw

    path = models.load(name)
    inputs = models.example_inputs(onnx.load(path), batch)
    model = tw.compile(str(path), threads=threads)
    groups: dict[str, list[Any]] = defaultdict(list)
    for kernel in model.profile(*[inputs[i.name] for i in model.inputs], repeat=repeat).kernels:
        groups[kernel.label].append(kernel)
    kinds = []
    for label, group in groups.items():
        seconds = sum(k.seconds for k in group)
        rates = [_rate(group, "gflops", seconds), _rate(group, "gbytes", seconds)]
        kinds.append(Kind(label, len(group), seconds, sum(k.share for k in group), *rates))
    return sorted(kinds, key=lambda k: -k.seconds)


def _rate(group: list[Any], name: str, seconds: float) -> float | None:
    """The rate of all together; None if one is not known."""
    rates = [getattr(k, name) for k in group]
    if None in rates or not seconds:
        return None
    return float(sum(rate * k.seconds for rate, k in zip(rates, group, strict=True)) / seconds)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_profile", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=DEFAULT, help=f"names, each with @batch if not 1 (default {DEFAULT})")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--kinds", type=int, default=6, help="kinds of kernels shown for each model")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    peak = _peak(options.threads)
    rows: list[dict[str, Any]] = []
    cells: list[list[str]] = []
    for item in options.models.split(","):
        name, _, batch = item.partition("@")
        kinds = profile(name, options.threads, int(batch or 1), options.repeat)
        rows += [{"model": item, **dataclasses.asdict(kind)} for kind in kinds]
        cells += [_cells(item, kind, peak) for kind in kinds[: options.kinds]]
        rest = kinds[options.kinds :]
        if rest:
            seconds, share = sum(k.seconds for k in rest), sum(k.share for k in rest)
            others = Kind(f"{len(rest)} other kinds", sum(k.calls for k in rest), seconds, share, None, None)
            cells.append(_cells(item, others, peak))
    text = harness.markdown_table(HEADER, cells) + f"\nPeak, measured: {peak:.0f} GFLOP/s (float32).\n"
    print(text)
    if not options.no_report:
        title = f"Where the time goes, {options.threads} thread(s)"
        print(f"wrote {harness.write_report(f'profile-{options.threads}t', title, rows, text)}")
    return 0


def _peak(threads: int) -> float:
    """The best of three: other work on the machine makes the peak look lower, never higher."""
    from tilewright.measure import peak
    from tilewright.support import machine

    host = machine.describe()
    results = [peak.measure(host) for _ in range(3)]
    return max(f.peak_gflops_one if threads == 1 else f.peak_gflops_all for f in results)


def _cells(model: str, kind: Kind, peak: float) -> list[str]:
    rates = ["-", "-"]
    if kind.gflops is not None:
        rates = [f"{kind.gflops:.1f}", f"{kind.gflops / peak:.0%}"]
    memory = f"{kind.gbytes:.1f}" if kind.gbytes is not None else "-"
    label = kind.label if len(kind.label) <= 60 else kind.label[:57] + "..."
    return [model, label, str(kind.calls), f"{kind.seconds * 1e6:.1f}", f"{kind.share:.1%}", *rates, memory]


if __name__ == "__main__":
    raise SystemExit(main())
