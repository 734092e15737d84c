"""Models with branches, which threads make side by side, by the same whose kernels threads share: `bench_threads
--branches`.

Each model is compiled for several threads as it is, for several with every fork forced to be shared, and for one
thread; the three are called in turns in one process, back to back. As everywhere, a call uses as many of its threads as
a trial on the calls finds fastest.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
import onnx

import tilewright as tw
from benchmarks import harness, models
from tilewright.plans.framework.decisions import deciding, forcing

MODELS = (
    "inception3,inception3-160,hrnet,hrnet-96,hok1,hok1@8,towers256,towers256@8,towers512,towers512@8,m64,m64@64,m256@8,hok3,"
    "light-inception_v1,light-shufflenet"
)
TURN_SECONDS = 0.03
MODEL_SECONDS = 5.0
SETTLING_CALLS = 40
NAME = "threads-branches"
HEADER = ["model", "calls in forks", "forks", "one thread µs", "shared µs", "forks µs", "times faster [quartiles]"]


@dataclass(frozen=True, slots=True)
class Row:
    """A model's steps, those of them in forks, forks, and of the three programs seconds and the gain by forks."""

    model: str
    steps: int
    inside: int
    forks: int
    one: float
    shared: float
    forked: float
    gain: tuple[float, float, float]

    def cells(self) -> list[str]:
        times = [f"{t * 1e6:.1f}" for t in (self.one, self.shared, self.forked)]
        low, middle, high = self.gain
        return [
            self.model,
            f"{self.inside} of {self.steps}",
            str(self.forks),
            *times,
            f"{middle:.3f} [{low:.3f}, {high:.3f}]",
        ]


def programs(label: str, threads: int) -> tuple[list[tw.Model], list[np.ndarray]]:
    """A model for one thread, shared by several, and as it is; and its inputs."""
    name, _, number = label.partition("@")
    path, batch = models.load(name), int(number or 1)
    model = onnx.load(path)
    symbols = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    sizes = dict.fromkeys(symbols, batch)
    with deciding() as record:
        forked = tw.compile(path, threads=threads, dims=sizes)
    with forcing({d.key.name: "shared" for d in record.decisions if d.key.kind == "fork"}):
        shared = tw.compile(path, threads=threads, dims=sizes)
    one = tw.compile(path, threads=1, dims=sizes)
    return [one, shared, forked], list(models.example_inputs(model, batch).values())


def race(label: str, threads: int) -> Row:
    """Turns of the three programs."""
    contenders, inputs = programs(label, threads)

    def turn(model: tw.Model, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            model(*inputs)
        return (time.perf_counter() - start) / calls

    for model in contenders:
        turn(model, SETTLING_CALLS)
    calls = max(1, round(TURN_SECONDS / turn(contenders[0], 5)))
    rounds: list[list[float]] = []
    end = time.monotonic() + MODEL_SECONDS
    while time.monotonic() < end:
        order = [0, 1, 2] if len(rounds) % 2 else [2, 1, 0]
        times = {k: (turn(contenders[k], 1), turn(contenders[k], calls))[1] for k in order}
        rounds.append([times[k] for k in range(3)])
    one, shared, forked = (statistics.median(r[k] for r in rounds) for k in range(3))
    low, middle, high = statistics.quantiles([r[1] / r[2] for r in rounds], n=4)
    branches = [s.branch for s in contenders[2].manifest.run_steps]
    inside = [s for s in branches if s is not None]
    return Row(label, len(branches), len(inside), len({s[0] for s in inside}), one, shared, forked, (low, middle, high))


def main(labels: str, threads: int, *, report: bool) -> int:
    """Race the models; 1 if forks make one slower by a twentieth."""
    console = harness.console()
    rows = []
    for label in labels.split(","):
        with console.status(label):
            rows.append(race(label, threads))
        console.print(" | ".join(rows[-1].cells()), markup=False, highlight=False)
    text = harness.markdown_table(HEADER, [r.cells() for r in rows])
    text += "\n" + " ".join((__doc__ or "").split("\n\n", 1)[1].split()) + "\n"
    if report:
        title = f"Branches side by side: {threads} threads"
        console.print(f"wrote {harness.write_markdown(NAME, title, text)}")
    return 1 if any(r.gain[1] < 1 / 1.05 for r in rows) else 0
