"""Memory against time of learning steps that compute activations again: `python -m benchmarks.bench_recompute`.

Each share is a budget of what a step's temporaries take where nothing is computed again, and "auto" the default, which
computes again what costs hardly any time; the step with it and the step that keeps all take turns, one thread. Memory
is the arena that was planned before a step, and the one that a step then held. Beside it stands what PyTorch's
allocator hands out in a step, eager and compiled by Inductor. Rows of a step that took other memory are dropped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.bench_training import ONE_CORE
from benchmarks.harness import RESULTS, markdown_table, speedup, write_report
from benchmarks.peers.training import CASES
from tilewright.measure import paired

SHARES = ("auto", "0.75x", "0.5x", "0.4x", "0.3x")
COMPILERS = ("eager", "inductor")
HEADER = ["network@batch", "budget", "planned MB", "held MB", "of it all", "time / all kept", "the same loss"]


def compare(case: str, share: str, rounds: int, seconds: float) -> dict[str, Any] | None:
    """A row: planned and held bytes, and how many times longer a step takes; None where no plan fits."""
    contenders = [
        paired.Contender(name, "benchmarks.peers.training:own", {"case": case, "memory": memory}, ONE_CORE)
        for name, memory in (("small", share), ("plain", None))
    ]
    small, ordinary = paired.race(contenders, rounds=rounds, turn_seconds=0.02, enough_seconds=seconds)
    if ordinary.error or small.error:
        print(f"{case} {share}: {ordinary.error or small.error}", flush=True)
        return None
    ratio = speedup(ordinary, small)
    return {
        "case": case,
        "share": share,
        "plain": ordinary.info["planned"],
        "planned": small.info["planned"],
        "held": small.info["held"],
        "time": [ratio.median, ratio.low, ratio.high],
        "same": small.info["loss"] == ordinary.info["loss"],
    }


def others(case: str) -> dict[str, int]:
    """The bytes that PyTorch allocates in a step, by who runs it; without those that failed."""
    setup = "benchmarks.peers.training:allocated"
    contenders = [paired.Contender(c, setup, {"case": case, "compiler": c}, ONE_CORE) for c in COMPILERS]
    match = paired.race(contenders, rounds=1, turn_seconds=0.0, warmup_seconds=0.0)
    for result in match:
        if result.error:
            print(f"{case}: {result.name}: {result.error}", flush=True)
    return {result.name: result.info["peak"] for result in match if not result.error}


def cells(row: dict[str, Any]) -> list[str]:
    median, low, high = row["time"]
    return [
        row["case"],
        row["share"],
        f"{row['planned'] / 1e6:.1f}",
        f"{row['held'] / 1e6:.1f}",
        f"{row['planned'] / row['plain']:.2f}",
        f"{median:.3f} [{low:.3f}, {high:.3f}]",
        "yes" if row["same"] else "no",
    ]


def peers_text(rows: Sequence[dict[str, Any]], peers: dict[str, dict[str, int]]) -> str:
    """Ours without a budget beside what PyTorch allocates, and the first budget that takes no more than either."""
    table = []
    for case, held in peers.items():
        own = [r for r in rows if r["case"] == case]
        if not own or not held:
            continue
        fitting = (r for r in own if r["planned"] <= min(held.values()))
        enough = next((f"{r['share']}: {r['planned'] / 1e6:.1f} MB, {r['time'][0]:.3f}" for r in fitting), "-")
        default = next((r["planned"] for r in own if r["share"] == "auto"), 0)
        sizes = [
            f"{n / 1e6:.1f}" if n else "-" for n in (own[0]["plain"], default, *(held.get(c, 0) for c in COMPILERS))
        ]
        table.append([case, *sizes, enough])
    header = ["network@batch", "ours, all kept", "ours", "eager", "Inductor", "no more than either: budget, MB, time"]
    what = "MB of temporaries of a step, gradients among them; of PyTorch what its allocator hands out, without what"
    return f"{what} oneDNN takes within a call:\n\n{markdown_table(header, table)}"


def draw(rows: Sequence[dict[str, Any]], peers: dict[str, dict[str, int]]) -> None:
    """Memory against time, a panel a network; nothing where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(r["case"] for r in rows))
    figure, panels = pyplot.subplots(1, len(cases), figsize=(4.2 * len(cases), 3.4), squeeze=False)
    for axes, case in zip(panels[0], cases, strict=True):
        own = [r for r in rows if r["case"] == case]
        points = [(own[0]["plain"] / 1e6, 1.0), *((r["planned"] / 1e6, r["time"][0]) for r in own)]
        axes.plot(*zip(*points, strict=True), "o-", color="#1f77b4", label="budgets")
        for name, colour in zip(COMPILERS, ("#ff7f0e", "#2ca02c"), strict=True):
            if name in peers.get(case, {}):
                axes.axvline(peers[case][name] / 1e6, color=colour, ls="--", label=f"{name}'s memory")
        axes.set_title(case, fontsize=9)
        axes.set_xlabel("MB of temporaries")
        axes.set_ylabel("time / time without a budget")
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "recompute.png", dpi=110)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=";".join(CASES), help="names as in the table, with semicolons between")
    parser.add_argument("--shares", default=",".join(SHARES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=30, help="no further round of a row begins after this time")
    parser.add_argument("--prepare", action="store_true", help="one round, nothing kept: warms the compiler's cache")
    options = parser.parse_args(arguments)
    path = RESULTS / "recompute.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else {"own": [], "peers": {}}
    rows = {(r["case"], r["share"]): r for r in known["own"]}
    peers = known["peers"]
    for case in options.cases.split(";"):
        for share in options.shares.split(","):
            row = compare(case, share, 1 if options.prepare else options.rounds, options.seconds)
            if row is None:
                continue
            print("  ".join(cells(row)), flush=True)
            rows = {k: r for k, r in rows.items() if r["case"] != case or r["plain"] == row["plain"]}
            rows[case, share] = row
        peers[case] = others(case)
        print(case, peers[case], flush=True)
    if not options.prepare:
        ordered = sorted(rows.values(), key=lambda r: (list(CASES).index(r["case"]), -r["planned"]))
        title = "Learning steps that compute activations again, one thread: memory against time"
        table = markdown_table(HEADER, [cells(r) for r in ordered])
        text = f"{table}\n{peers_text(ordered, peers)}\n![memory against time](recompute.png)\n"
        write_report("recompute", title, {"own": ordered, "peers": peers}, text)
        draw(ordered, peers)


if __name__ == "__main__":
    main()
