"""Time per call of whole models, side by side: `python -m benchmarks.bench_models --models m64,nat --threads 1`.

The first peer is the one that is judged; ratios below 1 mean that it is faster. A model may carry its batch: nat@32.
"""

from __future__ import annotations

import argparse
import dataclasses

from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.peers import PEERS

DEFAULT = "m64,nat,az6,resnet50,bert"
# Bars that are checked when the first peer is Tilewright: time as a share of ONNX Runtime's.
BARS = {"m64": 0.4, "nat": 1.4, "az6": 1.4, "resnet50": 1.4, "bert": 1.4}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_models", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=DEFAULT, help=f"names, each with @batch if not 1 (default {DEFAULT})")
    parser.add_argument("--peers", default="tilewright,onnxruntime,onnxruntime-run", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30, help="turns of each peer")
    parser.add_argument("--name", help="name of the report (default models-<threads>t)")
    parser.add_argument("--no-report", action="store_true", help="print only")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    console = harness.console()
    peers = options.peers.split(",")
    comparisons = []
    for item in options.models.split(","):
        model, _, batch = item.partition("@")
        with console.status(item) as status:
            comparison = harness.compare(
                model,
                peers,
                threads=options.threads,
                batch=int(batch or 1),
                rounds=options.rounds,
                announce=status.update,
            )
        comparisons.append(comparison)
        _print(comparison, console)
    table = Table(*_header(peers))
    for comparison in comparisons:
        table.add_row(*_row(comparison, peers))
    console.print(table)
    if not options.no_report:
        name = options.name or f"models-{options.threads}t"
        rows = [dataclasses.asdict(c) for c in comparisons]
        path = harness.write_report(
            name, f"Time per call, {options.threads} thread(s)", rows, _markdown(comparisons, peers)
        )
        console.print(f"wrote {path}")
    return 1 if any(c.failures for c in comparisons) else 0


def _label(c: harness.Comparison) -> str:
    return c.model if c.batch == 1 else f"{c.model} batch {c.batch}"


def _row(c: harness.Comparison, peers: list[str]) -> list[str]:
    cells = [_label(c)]
    cells += [f"{c.seconds[p] * 1e6:.1f} ±{c.spread[p]:.0%}" if p in c.seconds else "failed" for p in peers]
    cells += [str(c.ratios.get(p, "-")) for p in peers[1:]]
    bar = BARS.get(c.model) if c.batch == 1 and c.threads == 1 and peers[0] == "tilewright" else None
    cells.append(f"{bar:g}" if bar else "-")
    cells.append(f"{max(c.errors.values()):.0e}" if c.errors else "-")
    return cells


def _header(peers: list[str]) -> list[str]:
    times = [f"{p} µs" for p in peers]
    return ["model", *times, *(f"ratio to {p} [95 %]" for p in peers[1:]), "bar", "error"]


def _print(c: harness.Comparison, console: Console) -> None:
    """One line as soon as a model is done; a failure with its whole message."""
    times = ", ".join(f"{peer} {seconds * 1e6:.1f} µs" for peer, seconds in c.seconds.items())
    ratios = ", ".join(f"{ratio} of {peer}" for peer, ratio in c.ratios.items())
    console.print(f"{_label(c)}: {times}; {ratios}", highlight=False, markup=False)
    for peer, failure in c.failures.items():
        console.print(f"{peer} failed on {_label(c)}: {failure}", highlight=False, markup=False, style="red")


def _markdown(comparisons: list[harness.Comparison], peers: list[str]) -> str:
    text = harness.markdown_table(_header(peers), [_row(c, peers) for c in comparisons])
    text += "\nMedians over rounds in which the frameworks take turns, each in its own process; ± is half the distance"
    text += " between the quartiles; ratios are medians of paired ratios with a bootstrap interval;"
    text += " error is the largest difference of outputs relative to the output's scale.\n\n"
    text += harness.describe_peers(peers)
    for c in comparisons:
        for peer, failure in c.failures.items():
            text += f"\n{peer} failed on {_label(c)}: {failure.splitlines()[0]}\n"
    return text


if __name__ == "__main__":
    raise SystemExit(main())
