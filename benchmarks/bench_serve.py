"""The inference server against its bars: `python -m benchmarks.bench_serve PART...` (see --help).

    latency   one small request over HTTP, shared memory and gRPC, each beside a bare server on the same library
    promise   NAT under a promise of 20 ms: against model(batch), under twice the load, at 80 %
    capacity  the processor time of such requests, beside model(batch): what a machine that is busy can say
    peers     the same against other servers (--mlserver, --ray, --pytriton: folders of their environments)
    soak      requests while weights change (--requests 1000000 --versions 1000)
    kills     workers that are killed again and again (--kills 200)
    prefix    two heads over one trunk
    cluster   plans of 100 nodes on a clock

Servers have core 0 and the client core 1. Absolute times count on a quiet machine alone; ratios are of turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.harness import markdown_table
from benchmarks.serving import capacity, endurance, latency, packing, promise

console = Console()


def _latency(options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        rows = latency.measure(Path(folder), options.turns, options.seconds, options.rate, options.spin)
    return markdown_table(
        (
            "way",
            "p50, us",
            "p99, us",
            "median service, us",
            "bare: p50, us",
            "p99, us",
            "service, us",
            "ratio of service",
        ),
        [
            (
                row.way,
                *(f"{1e6 * t:.0f}" for t in (row.ours.p50, row.ours.p99, row.ours.service)),
                *(f"{1e6 * t:.0f}" for t in (row.bare.p50, row.bare.p99, row.bare.service)),
                f"{row.ratio:.2f}",
            )
            for row in rows
        ],
    )


def _promise(options: argparse.Namespace) -> str:
    turns = promise.measure(options.turns, options.seconds, options.policy, options.promise / 1000)
    rows = [
        (
            t.way, f"{t.alone:.0f}", f"{t.full.goodput:.0f}", f"{t.full.goodput / t.alone:.2f}",
            f"{t.over.goodput:.0f}", f"{t.over.goodput / t.full.goodput:.2f}",
            f"{t.calm.violations:.2%}", f"{1e3 * t.calm.quantile(0.5):.1f}", f"{1e3 * t.calm.quantile(0.99):.1f}",
        )
        for t in turns
    ]  # fmt: skip
    header = (
        "way",
        "model(batch)/s",
        "in time/s",
        "ratio",
        "in time/s at 2x",
        "ratio",
        "late at 80 %",
        "p50, ms",
        "p99, ms",
    )
    return markdown_table(header, rows)


def _capacity(options: argparse.Namespace) -> str:
    shares = capacity.measure(options.turns, round(150 * options.seconds))
    rows = []
    for way in dict.fromkeys(share.way for share in shares):
        of_way = [share for share in shares if share.way == way]
        times = [[1e6 * t for t in (s.alone, s.loop, s.lane)] for s in of_way]
        ratios = sorted(share.ratio for share in of_way)
        middle = [statistics.median(column) for column in zip(*times, strict=True)]
        size = statistics.median(share.rows for share in of_way)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        rows.append((way, *(f"{t:.0f}" for t in middle), f"{size:.0f}", spread))
    header = ("way", "model(batch), us", "the loop's thread, us", "the lane's, us", "rows of a batch", "ratio")
    return markdown_table(header, rows)


def _peers(options: argparse.Namespace) -> str:
    rivals = [
        promise.Rival(name, module, str(Path(folder) / "bin" / "python"), json=module == "mlserver")
        for name, module, folder in (
            ("MLServer", "mlserver", options.mlserver), ("Ray Serve", "rayserve", options.ray),
            ("tritonserver", "pytriton", options.pytriton),
        )
        if folder
    ]  # fmt: skip
    goodputs = promise.race(rivals, options.turns, options.seconds, options.promise / 1000)
    ours = goodputs.pop("tilewright")
    rows = [("tilewright", f"{statistics.median(ours):.0f}", "")]
    for name, theirs in goodputs.items():
        ratios = [a / max(b, 0.1) for a, b in zip(ours, theirs, strict=False)]
        rows.append((name, f"{statistics.median(theirs):.0f}", f"{statistics.median(ratios):.1f}"))
    return markdown_table(("server", "in time/s", "ours is so many times as much"), rows)


def _soak(options: argparse.Namespace) -> str:
    s = endurance.soak(options.requests, options.versions)
    header = ("requests", "versions", "seen", "failed", "torn", "requests/s", "MB at a tenth", "MB at the end")
    rate = f"{s.requests / s.seconds:.0f}"
    return markdown_table(header, [(s.requests, s.versions, s.seen, s.failed, s.torn, rate, *map(_mb, s.memory))])


def _kills(options: argparse.Namespace) -> str:
    k = endurance.kill(options.kills)
    header = ("kills", "answered", "lost", "wrong", "back: median, s", "longest, s", "MB before", "MB after")
    back = [f"{seconds:.2f}" for seconds in k.back]
    return markdown_table(header, [(k.kills, k.answered, k.lost, k.wrong, *back, *map(_mb, k.memory))])


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f}"


def _prefix(options: argparse.Namespace) -> str:
    return f"Two heads over NAT's trunk: {packing.sharing():.2f} times as fast as by themselves.\n"


def _cluster(options: argparse.Namespace) -> str:
    c = packing.cluster()
    header = ("models", "nodes", "promises that the plan breaks", "requests", "kept", "late")
    return markdown_table(header, [(c.models, c.nodes, c.broken, c.requests, f"{c.met:.2%}", f"{c.missed:.2%}")])


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "latency": _latency, "promise": _promise, "capacity": _capacity, "peers": _peers,
    "soak": _soak, "kills": _kills, "prefix": _prefix, "cluster": _cluster,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--rate", type=float, default=latency.RATE, help="small requests a second")
    parser.add_argument("--spin", type=float, default=0.0, help="seconds that the server spins after a request")
    for name in ("mlserver", "ray", "pytriton"):
        parser.add_argument(f"--{name}", help="folder of the environment that has it")
    parser.add_argument("--promise", type=float, default=1000 * promise.PROMISE, help="milliseconds")
    parser.add_argument("--policy", default="deadline", choices=("deadline", "aimd"))
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--versions", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    os.sched_setaffinity(0, {1} if os.cpu_count() != 1 else {0})
    for part in options.parts:
        console.print(f"\n{part}\n", markup=False)
        print(PARTS[part](options), flush=True)


if __name__ == "__main__":
    main()
