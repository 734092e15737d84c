"""How well estimates tell how wide a direct convolution's panels should be: `python -m benchmarks.bench_panels`.

Each convolution stands between two others, so that it reads and writes blocks. It is compiled with panels of each width
that is estimated near the best, and these race inside of their models (`tuning/workers.py`); only its own step counts.
`--cases 64,256,56 32,64,40,3,2,1` names others: channels, filters, side of the map, and for windows of more than one
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from benchmarks import harness
from benchmarks.layers import Conv
from benchmarks.onnx_builder import Builder
from tilewright.targets.target import Target
from tilewright.tuning import entry
from tilewright.tuning.programs import Built, Maker, changed
from tilewright.tuning.significance import slowness, there_and_back
from tilewright.tuning.workers import Processes, ratios

CASES = (
    "32,128,40 48,192,33 64,64,56 64,256,28 64,256,56 96,96,20 128,512,28 256,64,56 256,128,56 256,1024,14 320,320,10 "
    "512,128,28 512,2048,7 1024,256,14 2048,512,7 4,32,84,8,4,0 3,64,112,7,2,3 32,64,20,4,2,0 64,128,28,3,2,1 "
    "128,128,14,3,2,1"
).split()
MARGIN = 1.3
"""Panels that are estimated to take more than this multiple of the best are left out."""
BLOCK = 16
"""Channels of the convolutions around; fewer than these are read as NCHW."""
RACES, ROUNDS = 3, 12
HEADER = ["convolution", "panels", "estimate, µs", "of the best", "clock, µs", "of the best"]


@dataclass(frozen=True, slots=True)
class Way:
    """A setting of a convolution's panels: its estimate and its step's time, in seconds."""

    label: str
    estimate: float
    clock: float


def model(conv: Conv) -> onnx.ModelProto:
    """The convolution between two others."""
    b = Builder("panels", seed=1)
    ordinary = conv.c_in < BLOCK
    x = b.input("x", [1, conv.c_in if ordinary else BLOCK, conv.size, conv.size])
    if not ordinary:
        x = b.relu(_conv(BLOCK, conv.c_in, conv.size, 3, 1, 1)._layer(b, x, "before"))
    x = b.relu(conv._layer(b, x, "conv"))
    after = _conv(conv.c_out, BLOCK, conv.out_size, 3, 1, 1)
    b.output(after._layer(b, x, "after"), "y", [1, BLOCK, conv.out_size, conv.out_size])
    return b.build()


def _conv(channels: int, filters: int, size: int, kernel: int = 1, stride: int = 1, pad: int = 0) -> Conv:
    return Conv(1, channels, filters, size, kernel, stride, pad, 1, 1, "conv")


def measured(conv: Conv, target: Target, folder: Path) -> list[Way]:
    """The ways to compute a convolution, the best estimate first."""
    maker = Maker(model(conv), folder, threads=1, target=target)
    program, untuned = maker.untuned(), maker.listed({})
    weights = f"f32[{conv.c_out}, {conv.c_in}, {conv.kernel}, {conv.kernel}]"
    own = [d for d in untuned.decisions if weights in d.key.text]
    direct = {d.key.name: "direct" for d in own if d.key.kind == "algorithm" and "direct" in d.space.labels}
    listed = maker.listed(direct)
    decision = next(d for d in listed.decisions if d.key.kind == "panels" and weights in d.key.text)
    ranked = sorted(zip(decision.estimates, decision.space.labels, strict=True))
    cached = [(e, label) for e, label in ranked if e <= MARGIN * ranked[0][0]]
    built = [maker.built({**direct, decision.key.name: label}) for _, label in cached]
    races = Processes(maker.weights(program), maker.inputs(entry.example_inputs(program, None)), 1)
    clocks = raced(races, built)
    cycles = target.frequency * 1e9
    return [Way(label, e / cycles, clock) for (e, label), clock in zip(cached, clocks, strict=True)]


def raced(races: Processes, built: Sequence[Built]) -> list[float]:
    """The seconds of the steps in which programs differ from the first: its own, by ratios of neighbours in time."""
    parts = [changed(built[0].kernels, other.kernels) for other in built[1:]]
    own = frozenset[int]().union(*(before for before, _ in parts)) or frozenset(range(len(built[0].kernels)))
    first: list[float] = []
    slower: list[list[float]] = [[] for _ in built]
    for _ in range(RACES):
        timed = races.steps(built, ROUNDS)
        seconds = [[sum(times[k] for k in own) for times in t.rounds] for t in timed]
        first.append(statistics.median(seconds[0]))
        for candidate, other in zip(slower, seconds, strict=True):
            candidate.append(slowness(there_and_back(ratios(seconds[0], other))))
    base = statistics.median(first)
    return [base * statistics.median(candidate) for candidate in slower]


def rows(case: str, ways: Sequence[Way]) -> list[list[str]]:
    estimate, clock = min(w.estimate for w in ways), min(w.clock for w in ways)
    return [
        [case, w.label.removeprefix("panels "), f"{w.estimate * 1e6:.1f}", f"{w.estimate / estimate:.3f}"]
        + [f"{w.clock * 1e6:.1f}", f"{w.clock / clock:.3f}"]
        for w in ways
    ]


def summary(result: Sequence[Sequence[Way]]) -> str:
    """The time that the choice of the best estimate loses."""
    losses = [ways[0].clock / min(w.clock for w in ways) - 1 for ways in result]
    return (
        f"{len(result)} convolutions: the best estimate's panels take {statistics.mean(losses):.2%} longer than the "
        f"best ones in the mean, {max(losses):.2%} at most."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=CASES, metavar="SIZES")
    parser.add_argument("--target", default="host", metavar="NAME")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    target = Target.on_host(options.target)
    result, table = [], []
    for case in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            result.append(measured(_conv(*map(int, case.split(","))), target, Path(folder)))
        table += rows(case, result[-1])
        for row in rows(case, result[-1]):
            print("  ".join(row), flush=True)
    print(summary(result))
    if not options.no_report:
        title = "Panels of direct convolutions: estimates and the clock"
        harness.write_markdown("panels", title, f"{summary(result)}\n\n{harness.markdown_table(HEADER, table)}")


if __name__ == "__main__":
    main()
