"""Heads that share a trunk against heads by themselves, and a cluster whose cores run their plans on a clock."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from benchmarks import models
from benchmarks.live.common import program
from tilewright.serve.batching.estimates import Estimates
from tilewright.serve.batching.policy import DeadlineQueue
from tilewright.serve.batching.simulation import Load, simulate
from tilewright.serve.packing.plan import Demand, plan, violations
from tilewright.serve.packing.prefix import merge


def head(seed: int) -> onnx.ModelProto:
    """NAT's trunk with an output of its own."""
    model = onnx.load(str(models.load("nat")))
    del model.graph.output[1:]
    name = model.graph.output[0].name
    width = model.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    matrix = np.random.default_rng(seed).standard_normal((width, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(matrix, f"own{seed}"))
    model.graph.node.append(helper.make_node("MatMul", [name, f"own{seed}"], [f"y{seed}"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(f"y{seed}", TensorProto.FLOAT, ["batch", 4]))
    return model


def sharing(rows: int = 8, turns: int = 15) -> float:
    """How many times faster two heads are when their trunk is computed once: the median over turns."""
    heads = {"a": head(1), "b": head(2)}
    alone = [tw.compile(model, threads=1) for model in heads.values()]
    both = tw.compile(merge(heads), threads=1)
    x = np.random.default_rng(0).integers(0, 255, (rows, 4, 84, 84), np.uint8)

    def seconds(calls: list[tw.Model]) -> float:
        start = time.perf_counter()
        for _ in range(5):
            for model in calls:
                model(x)
        return time.perf_counter() - start

    seconds([*alone, both])
    return float(np.median([seconds(alone) / seconds([both]) for _ in range(turns)]))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Outcome of a plan in a simulation: shares of requests whose deadline was met or missed."""

    models: int
    nodes: int
    broken: int
    requests: int
    met: float
    missed: float


def profile(name: str) -> list[tuple[int, float]]:
    """Seconds of batches of a compiled model here: the median of some runs."""
    model = tw.load(program(name))
    spec = model.inputs[0]
    points = []
    for rows in (1, 4, 16, 64):
        x = np.zeros([rows, *spec.shape[1:]], np.uint8 if spec.dtype == "u8" else np.float32)
        times = []
        for _ in range(7):
            start = time.perf_counter()
            model(x)
            times.append(time.perf_counter() - start)
        points.append((rows, float(np.median(times))))
    return points


def cluster(nodes: int = 100, seconds: float = 1.0, seed: int = 1) -> Cluster:
    """Plan enough models to fill this number of nodes, with the profiles of two real ones, and simulate each node's
    plan under the server's own policy with noise of 2 %."""
    source = random.Random(seed)
    profiles = [profile(name) for name in ("m64", "nat")]
    demands: list[Demand] = []
    cores = plan([_demand(source, 0, profiles)])
    while len(cores) < nodes:
        demands += [_demand(source, len(demands) + k, profiles) for k in range(40)]
        cores = plan([Demand(d.name, d.rate * 1.3, d.promise, d.time, d.most) for d in demands])
    noise = random.Random(seed)
    by_name = {d.name: d for d in demands}
    totals = [0, 0, 0]
    for number, core in enumerate(cores[:nodes]):
        queues = {
            s.name: DeadlineQueue(Estimates(64, by_name[s.name].time), by_name[s.name].promise, 64) for s in core.slots
        }
        loads = [Load(s.name, s.rate / 1.3, by_name[s.name].promise) for s in core.slots]
        outcomes = simulate(
            queues, loads, lambda m, rows: by_name[str(m)].time(rows) * (1 + abs(noise.gauss(0, 0.02))),
            seconds=seconds, seed=number,
        )  # fmt: skip
        for outcome in outcomes.values():
            totals = [a + b for a, b in zip(totals, (outcome.total, outcome.met, outcome.missed), strict=True)]
    broken = len(violations(cores, [Demand(d.name, d.rate * 1.3, d.promise, d.time, d.most) for d in demands]))
    total = max(totals[0], 1)
    return Cluster(len(demands), min(len(cores), nodes), broken, totals[0], totals[1] / total, totals[2] / total)


def _demand(source: random.Random, number: int, profiles: list[list[tuple[int, float]]]) -> Demand:
    """A model whose batches cost as one of the profiles says, with one row in 1 to 20 ms, a rate and a promise."""
    rows, times = zip(*source.choice(profiles), strict=True)
    factor = source.uniform(0.001, 0.02) / times[0]

    table = [factor * float(t) for t in np.interp(range(65), rows, times)]
    seconds = table.__getitem__
    promise = source.uniform(4.0, 20.0) * seconds(1)
    rate = source.uniform(0.2, 1.5) / seconds(1)
    return Demand(f"m{number}", rate, promise, seconds, 64)


__all__ = ["Cluster", "cluster", "sharing"]
