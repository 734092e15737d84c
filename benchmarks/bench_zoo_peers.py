"""The zoo's small and middle models against ONNX Runtime, OpenVINO, LiteRT and PyTorch: one thread, f32, in turns.

    python -m benchmarks.bench_zoo_peers --prepare [--only NAME...]     exports and compiles, minutes
    python -m benchmarks.bench_zoo_peers --inductor [--only NAME...]    compiles what is prepared with Inductor
    python -m benchmarks.bench_zoo_peers --litert [--only NAME...]      converts it for LiteRT (`make litert-env` first)
    python -m benchmarks.bench_zoo_peers [--seconds 140] [--rounds 7]   times what is prepared and has no row yet
    python -m benchmarks.bench_zoo_peers --report                       only writes the table of the rows there are

ONNX Runtime and OpenVINO run the file of PyTorch's newer exporter, sizes fixed, with their buffers bound once; LiteRT
runs what litert-torch converts, by XNNPACK, `invoke` alone; eager PyTorch and Inductor run the module in inference
mode. Who differs from eager PyTorch by more than 1e-3 of an output's
largest magnitude, or does not run the model, has no time. All stand in one process, as none of them has a thread beside
the caller's; times are those of a call, medians of the turns, and ratios those of neighbouring turns. Rows are kept
beside the table, each with the commit it was measured at; a peer that is not prepared when a model is raced again keeps
what it had, with a note of the commit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness, models
from benchmarks.harness import console, markdown_table, write_markdown
from benchmarks.tables import geometric_mean

FOLDER = models.ROOT / "build" / "zoo-peers"
TURN_SECONDS = 0.02
TOLERANCE = 1e-3
PEERS = ("onnxruntime", "openvino", "litert", "inductor")
"""Among whom the best is sought. Eager PyTorch has a column of its own."""
OTHERS = (*PEERS, "eager")


@dataclass(slots=True)
class PeerRow:
    """A model: microseconds of a call by runtime, each other's time by ours, why one has none, and our commit."""

    name: str
    times: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    commit: str = ""

    @property
    def worst(self) -> float | None:
        """The best peer's time by ours."""
        return min((ratio for peer, ratio in self.ratios.items() if peer in PEERS), default=None)


def prepared() -> list[str]:
    """The models whose files are complete: those of the peers' inputs are written last."""
    return sorted(path.parent.name for path in FOLDER.glob("*/inputs.npz"))


def race(name: str, rounds: int) -> PeerRow:
    """All runtimes in turns."""
    from benchmarks.zoo.peers import PARTS, RUNTIMES, absent, arrays, said

    row = PeerRow(name, commit=harness.commit())
    folder = FOLDER / name
    expected = list(arrays(folder / "outputs.npz").values())
    calls: dict[str, Any] = {}
    row.notes |= absent(folder)
    if (folder / PARTS).exists():
        row.notes["in parts"] = (folder / PARTS).read_text()
    for runtime, make in RUNTIMES.items():
        if runtime in row.notes or not _ready(runtime, folder):
            continue
        try:
            call, results = make(folder)
            call()
            wrong = differs(expected, results())
        except Exception as error:  # a peer may raise anything
            wrong = said(error)
        if wrong:
            row.notes[runtime] = wrong
        else:
            calls[runtime] = call
    if "ours" not in calls:
        return row
    counts = {runtime: max(1, round(TURN_SECONDS / turn(call, 1))) for runtime, call in calls.items()}
    turns = [{runtime: turn(call, counts[runtime]) for runtime, call in calls.items()} for _ in range(rounds)]
    row.times = {runtime: statistics.median(t[runtime] for t in turns) * 1e6 for runtime in calls}
    row.ratios = {p: statistics.median(t[p] / t["ours"] for t in turns) for p in OTHERS if p in calls}
    return row


def _ready(runtime: str, folder: Path) -> bool:
    """Whether what a runtime needs is installed and, for those that are prepared separately, has been built."""
    from benchmarks.zoo.peers import INDUCTOR, litert

    match runtime:
        case "onnxruntime" | "openvino":
            return importlib.util.find_spec(runtime) is not None
        case "inductor":
            return (folder / INDUCTOR).exists()
        case "litert":
            return litert.ready(folder)
    return True


def merged(row: PeerRow, former: PeerRow | None) -> PeerRow:
    """A row with what its predecessor has of peers that were not raced now."""
    for peer in PEERS if former is not None else ():
        if peer in former.ratios and peer not in row.ratios and peer not in row.notes:
            row.times[peer], row.ratios[peer] = former.times[peer], former.ratios[peer]
            row.notes[peer] = former.notes.get(peer, f"raced at {former.commit}")
    return row


def turn(call: Any, count: int) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def differs(expected: Sequence[Any], got: Sequence[Any]) -> str:
    """A description of wrong results; empty if they agree."""
    if len(expected) != len(got):
        return f"{len(got)} outputs for {len(expected)}"
    for k, (e, g) in enumerate(zip(expected, got, strict=True)):
        if e.shape != g.shape:
            return f"output {k} has shape {list(g.shape)} for {list(e.shape)}"
        a, b = e.astype(np.float64), g.astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b)).max(initial=0)
        largest = max(np.abs(a[np.isfinite(a)]).max(initial=0), 1e-6)
        if not difference <= TOLERANCE * largest:
            return f"output {k} differs by {difference / largest:.1e} of its largest"
    return ""


def read(path: Path) -> dict[str, PeerRow]:
    """The rows of earlier runs; of two of one name the later."""
    if not path.exists():
        return {}
    rows = [PeerRow(**json.loads(line)) for line in path.read_text().splitlines()]
    return {row.name: row for row in rows}


def report(rows: dict[str, PeerRow]) -> str:
    """The table, worst first, and what it comes to."""
    timed = sorted((r for r in rows.values() if r.worst is not None), key=lambda r: r.worst or 0)
    lines = [f"{len(rows)} models of the zoo, {len(timed)} with a peer that agrees with eager PyTorch."]
    for other in OTHERS:
        ratios = [r.ratios[other] for r in rows.values() if other in r.ratios]
        if ratios:
            lines.append(
                f"- {other}'s time by ours: {geometric_mean(ratios):.2f} in the geometric mean of {len(ratios)}, "
                f"least {min(ratios):.2f}, {sum(r < 1 for r in ratios)} below 1."
            )
    best = [r.worst for r in timed if r.worst is not None]
    if best:
        lines.append(
            f"- The best peer's time by ours: **{geometric_mean(best):.2f}**, least {min(best):.2f}, "
            f"{sum(b < 1 for b in best)} below 1, {sum(b < 0.95 for b in best)} below 0.95."
        )
    lines.append("- Peers: " + ", ".join(PEERS) + ". Where no time stands and nothing is noted, one was not raced.")
    header = ["model", "ours us", *(f"{o} us" for o in OTHERS), "best peer / ours", "eager / ours", "commit", "notes"]
    table = [cells(r) for r in [*timed, *(r for r in rows.values() if r.worst is None)]]
    return "\n".join(lines) + "\n\n" + markdown_table(header, table)


def cells(row: PeerRow) -> list[str]:
    """A line of the table."""
    eager = row.ratios.get("eager")
    return [
        row.name,
        f"{row.times.get('ours', 0):.0f}",
        *(f"{row.times[o]:.0f}" if o in row.times else "" for o in OTHERS),
        f"{row.worst:.2f}" if row.worst is not None else "",
        f"{eager:.2f}" if eager is not None else "",
        row.commit,
        "; ".join(f"{k}: {v}" for k, v in row.notes.items()).replace("|", "/"),
    ]


def prepare_all(names: Sequence[str], seconds: float, limit: float, peer: str = "") -> None:
    """Prepare models, one process each, for all who read files or for one `peer`."""
    start, out = time.monotonic(), console()
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    if peer == "litert":
        path = str(models.ROOT)  # it has an environment of its own
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    for name in names:
        if time.monotonic() - start > seconds:
            break
        order = _order(name, peer)
        try:
            ended = subprocess.run(
                order, env=environment, cwd=models.ROOT, capture_output=True, text=True, timeout=limit, check=False
            )
            last = (ended.stderr.strip().splitlines() or [""])[-1]
            said = "prepared" if ended.returncode == 0 else last
        except subprocess.TimeoutExpired:
            said = f"not done in {limit:.0f} s"
        out.print(f"{name}: {said}", markup=False, highlight=False)


def _order(name: str, peer: str) -> list[str]:
    """The command that prepares a model."""
    if peer == "litert":
        from benchmarks.zoo import litert

        return [str(litert.PYTHON), "-m", "benchmarks.zoo.litert", name, str(FOLDER / name)]
    return [sys.executable, "-m", "benchmarks.zoo.peers", name, *([f"--{peer}"] if peer else [])]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_zoo_peers", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="models whose names contain one of these")
    parser.add_argument("--prepare", action="store_true", help="export and compile, time nothing")
    parser.add_argument("--inductor", action="store_true", help="compile with Inductor what is prepared, time nothing")
    parser.add_argument("--litert", action="store_true", help="convert for LiteRT what is prepared, time nothing")
    parser.add_argument(
        "--again", dest="repeat", action="store_true", help="also those that have a row; the later one counts"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after these")
    parser.add_argument("--limit", type=float, default=200, help="seconds for preparing one")
    parser.add_argument("--rounds", type=int, default=7, help="turns of the timing")
    parser.add_argument("--name", default="zoo-peers", help="of the files of rows and of the table among the results")
    parser.add_argument("--report", action="store_true", help="only write the table of the rows there are")
    options = parser.parse_args(arguments)
    if options.prepare or options.inductor or options.litert:
        get_ready(options)
        return 0
    path = harness.RESULTS / f"{options.name}.jsonl"
    start, rows = time.monotonic(), read(path)
    wanted = [n for n in prepared() if any(part in n for part in options.only)]
    for name in [] if options.report else [n for n in wanted if options.repeat or n not in rows]:
        if time.monotonic() - start > options.seconds:
            break
        row = rows[name] = merged(race(name, options.rounds), rows.get(name))
        with path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        result = ", ".join(f"{k} {v:.2f}" for k, v in row.ratios.items())
        console().print(f"{name}: {result} {row.notes or ''}", markup=False, highlight=False)
    if rows:
        path.write_text("".join(json.dumps(asdict(rows[name])) + "\n" for name in sorted(rows)))
        title = "The zoo against ONNX Runtime, OpenVINO, LiteRT and PyTorch, one thread, f32"
        console().print(f"wrote {write_markdown(options.name, title, report(rows))}")
    return 0


def get_ready(options: argparse.Namespace) -> None:
    """Do what must be done before a race and is no part of it: files and programs, or those of one peer."""
    peer = "litert" if options.litert else "inductor" if options.inductor else ""
    if options.prepare:
        from benchmarks.zoo import builders

        done = set() if options.repeat else set(prepared())
        names = [n for n in builders() if n not in done]
        peer = ""
    else:
        names = [n for n in prepared() if options.repeat or not _ready(peer, FOLDER / n)]
    wanted = [n for n in names if any(part in n for part in options.only)]
    prepare_all(wanted, options.seconds, options.limit, peer)


if __name__ == "__main__":
    raise SystemExit(main())
