"""The gain of more threads: each framework against itself on one thread: `python -m benchmarks.bench_threads`."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math

from benchmarks import harness, models, thread_branches, thread_layers
from benchmarks.peers import PEERS
from benchmarks.peers.common import fixed_shapes
from benchmarks.work import count
from tilewright.measure import paired
from tilewright.support.progress import progress

MODELS = "resnet50,bert,az6@8"
TURN_SECONDS = 0.3
"""Several calls of every model: the first one after the other process's turn finds nothing of its own in the caches
and waits for memory, from which a second thread gets little more."""
HEADER = ["model", "framework", "one thread µs", "more µs", "threads", "times faster [95 %]", "efficiency"]


def scaling(label: str, peer: str, threads: int, timing: harness.Timing) -> harness.Comparison:
    """One model in two processes, with one thread and with `threads`; the second is listed as "N threads"."""
    model, _, number = label.partition("@")
    batch = int(number or 1)
    models.load(model)
    more = f"{threads} threads"
    contenders = [harness.contender(name, peer, model, n, batch) for name, n in ((peer, 1), (more, threads))]
    one, several = paired.race(
        contenders,
        rounds=timing.rounds,
        turn_seconds=timing.turn_seconds,
        warmup_seconds=timing.warmup_seconds,
        enough_seconds=timing.enough_seconds,
        pause_seconds=0.03,
    )
    good = [r for r in (one, several) if r.error is None and r.times]
    work = count(fixed_shapes(model, batch))
    return harness.Comparison(
        model=model,
        group="threads" if peer.startswith("tilewright") else f"threads of {peer}",
        own=peer,
        batch=batch,
        threads=threads,
        rounds=len(one.times),
        repeat=1,
        seconds={r.name: r.median for r in good},
        spread={r.name: r.spread for r in good},
        speedups={more: harness.speedup(one, several)} if len(good) == 2 else {},
        errors={},
        peak_memory={r.name: r.peak_memory for r in good},
        versions={r.name: str(r.info.get("version", "")) for r in good},
        failures={r.name: r.error for r in (one, several) if r.error is not None},
        flops=work.flops,
        bytes=work.read + work.written,
        commit=harness.commit(),
        date=harness.now(),
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_threads", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=MODELS, help=f"names, each with @batch if not 1 (default {MODELS})")
    parser.add_argument("--peers", default="tilewright-fixed,onnxruntime,openvino", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30, help="turns of each (default 30; a model ends after 20 s)")
    parser.add_argument("--no-report", action="store_true", help="print only")
    parser.add_argument("--random", type=int, metavar="COUNT", help="instead so many random layers, and policies")
    parser.add_argument("--first", type=int, default=0, help="of the random layers, to add to an earlier run's report")
    parser.add_argument("--seed", type=int, default=0, help="of the random layers")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of random layers, when to stop")
    parser.add_argument("--compile", action="store_true", help="only compile the random layers, for a later run")
    parser.add_argument("--branches", action="store_true", help="instead models with branches, with and without forks")
    options = parser.parse_args(arguments)
    if options.branches:
        labels = thread_branches.MODELS if options.models == MODELS else options.models
        return thread_branches.main(labels, options.threads, report=not options.no_report)
    if options.random is not None:
        return random_layers(options)
    console = harness.console()
    timing = harness.Timing(options.rounds, TURN_SECONDS, 0.1, 20.0)
    rows: list[harness.Comparison] = []
    for label in options.models.split(","):
        for peer in options.peers.split(","):
            with console.status(f"{label}, {peer}"):
                rows.append(scaling(label, peer, options.threads, timing))
            console.print(" | ".join(_cells(rows[-1])), markup=False, highlight=False)
    text = harness.markdown_table(HEADER, [_cells(c) for c in rows])
    text += "\nEach framework in two processes that take turns; efficiency is the gain by thread.\n"
    if not options.no_report:
        content = {"environment": harness.environment(), "rows": [dataclasses.asdict(c) for c in rows]}
        harness.RESULTS.mkdir(exist_ok=True)
        (harness.RESULTS / "threads.json").write_text(json.dumps(content, indent=1) + "\n")
        title = f"{options.threads} threads against one"
        console.print(f"wrote {harness.write_markdown('threads', title, text)}")
    return 1 if any(c.failures for c in rows) else 0


def random_layers(options: argparse.Namespace) -> int:
    """`--random`: 1 if a layer is slower than its bound allows."""
    console = harness.console()
    policies = thread_layers.policy_cases() if options.first == 0 else iter(())
    cases = itertools.chain(policies, thread_layers.random_cases(options.first, options.random, options.seed))
    if options.compile:
        for case in cases:
            case.compile(1)
            case.compile(options.threads)
        return 0
    rows = thread_layers.stored_rows(harness.RESULTS / f"{thread_layers.NAME}.json") if options.first else []
    with progress("layers", options.random) as step:
        for row in thread_layers.measure(cases, options.threads, options.seconds):
            rows.append(row)
            if row.pause:
                step(row.name)
    facts = None if options.no_report else harness.environment()
    console.print(thread_layers.report(rows, options.threads, facts), markup=False, highlight=False)
    return 1 if any(r.ratio > thread_layers.BOUND for r in rows) else 0


def _cells(c: harness.Comparison) -> list[str]:
    more = f"{c.threads} threads"
    times = [
        f"{c.seconds[name] * 1e6:.0f} ±{c.spread[name]:.0%}" if name in c.seconds else "failed"
        for name in (c.own, more)
    ]
    ratio = c.speedups.get(more)
    # The interval of one / many; what is stored is many / one.
    gain = str(harness.Interval(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)) if ratio else "-"
    return [c.label, c.own, *times, str(c.threads), gain, f"{1 / ratio.median / c.threads:.2f}" if ratio else "-"]


if __name__ == "__main__":
    raise SystemExit(main())
