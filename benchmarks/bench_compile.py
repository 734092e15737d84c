"""Compile time, without and from the cache, each in a fresh process: `python -m benchmarks.bench_compile`.

Without the cache means an empty folder; from the cache means the folder that the first compile left. Both include
reading the file and preparing the weights, whose size is given.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from pathlib import Path

from benchmarks import harness
from benchmarks.compile_probe import CompileTimes, ProbeError, probe

DEFAULT = "m64,az6,resnet50,bert"
UNCACHED_BARS = {"m64": 1.0, "az6": 5.0, "resnet50": 15.0, "bert": 20.0}
WARM_BAR = 1.0
HEADER = ["model", "cold s", "bar", "cached s", "bar", "import s", "first run ms", "weights MB", "peak MB", "cached"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_compile", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=DEFAULT)
    parser.add_argument("--threads", type=int, default=1, help="threads of the compiled model")
    parser.add_argument("--repeat", type=int, default=3, help="compiles of each kind; the median is reported")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    console = harness.console()
    rows, cells, status = [], [], 0
    for model in options.models.split(","):
        try:
            with console.status(model):
                uncached, warm = measure(model, options.threads, options.repeat)
        except ProbeError as error:
            console.print(f"[red]{model} failed[/red]: {error}", highlight=False)
            status = 1
            continue
        rows.append({"model": model, "cold": dataclasses.asdict(uncached), "warm": dataclasses.asdict(warm)})
        bar = UNCACHED_BARS.get(model)
        cells.append(
            [
                model,
                f"{uncached.compiling:.2f}",
                f"{bar:g}" if bar else "-",
                f"{warm.compiling:.2f}",
                f"{WARM_BAR:g}",
                f"{uncached.importing:.2f}",
                f"{warm.first_run * 1e3:.1f}",
                f"{uncached.weight_bytes / 1e6:.1f}",
                f"{uncached.peak_memory / 1e6:.0f}",
                f"{warm.peak_memory / 1e6:.0f}",
            ]
        )
        console.print(
            f"{model}: cold {uncached.compiling:.2f} s, from the cache {warm.compiling:.2f} s", highlight=False
        )
    header = [
        "model",
        "cold s",
        "bar",
        "cached s",
        "bar",
        "import s",
        "first run ms",
        "weights MB",
        "peak MB cold",
        "cached",
    ]
    text = harness.markdown_table(header, cells)
    print(text)
    if not options.no_report:
        path = harness.write_report("compile", "Compile time, cold and from the cache", rows, text)
        console.print(f"wrote {path}")
    return status


def measure(model: str, threads: int, repeat: int) -> tuple[CompileTimes, CompileTimes]:
    """Medians of compiles without and from the cache."""
    uncached, warm = [], []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="tilewright-cache-") as folder:
            uncached.append(probe(model, threads, Path(folder)))
            warm.append(probe(model, threads, Path(folder)))
    return _median(uncached), _median(warm)


def _median(times: list[CompileTimes]) -> CompileTimes:
    fields = [field.name for field in dataclasses.fields(CompileTimes)]
    return CompileTimes(**{name: statistics.median(getattr(t, name) for t in times) for name in fields})


if __name__ == "__main__":
    raise SystemExit(main())
