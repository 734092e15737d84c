"""Goodput under a promise: against what the model alone computes, under twice its capacity, and against other servers.

The generator is open-loop (`tilewright.serve.load`). What the model alone does is measured just before each turn, on
the server's core, while the server rests: a machine that is slower now is slower for both.
"""

from __future__ import annotations

import asyncio
import json as jsons
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import models
from benchmarks.serving.hosts import Host, host
from tilewright.serve.errors import ServeError
from tilewright.serve.load import Http, Local, Point, Target, offer, request_bytes

PROMISE = 0.02
"""Seconds, where nothing else is said. A machine with ten processes for each core keeps one of a tenth at best: there
all servers are given more."""
_ALONE = """
import json, sys, time
import numpy as np
import tilewright as tw
model = tw.load(sys.argv[1])
best = 0.0
for rows in (1, 2, 4, 8, 16, 32, 64):
    x = np.zeros((rows, *model.inputs[0].shape[1:]), np.uint8)
    model(x)
    times = []
    for _ in range(max(3, 48 // rows)):
        start = time.perf_counter()
        model(x)
        times.append(time.perf_counter() - start)
    seconds = sorted(times)[len(times) // 2]
    if 2 * seconds <= float(sys.argv[2]):
        best = max(best, rows / seconds)
print(json.dumps(best))
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn.

    Args:
        way: of the requests.
        alone: requests a second by `model(batch)`, with the best batch that takes half of the promise at most.
        full: answers in time at 1.05 of that; over: at twice it; calm: the load at 0.8 of `full`.
    """

    way: str
    alone: float
    full: Point
    over: Point
    calm: Point


ROWS = 8
"""Rows of a request: the frame stacks of so many environments, as a vectorised actor sends them. A row of NAT takes
150 us, and a request over HTTP about half of that, so that requests of one row measure HTTP."""


def observation() -> np.ndarray:
    """Frame stacks, as NAT takes them."""
    return np.random.default_rng(0).integers(0, 255, (ROWS, 4, 84, 84), np.uint8)


def alone(promise: float, core: int = 0) -> float:
    """Requests a second that NAT by itself would compute, in batches that take half of the promise at most."""
    from benchmarks.live.common import program

    command = ["taskset", "-c", str(core), sys.executable, "-c", _ALONE, str(program("nat")), str(promise)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout
    return float(jsons.loads(out)) / ROWS


WAYS = ("HTTP", "shared memory")


def at(
    server: Host,
    rate: float,
    seconds: float,
    promise: float,
    *,
    way: str = "HTTP",
    connections: int = 64,
    json: bool = False,
    seed: int = 0,
) -> Point:
    """Offer requests to the server at a rate, and measure its goodput.

    Args:
        way: one of `WAYS`.
        json: whether tensors go as JSON, for servers that take nothing else.
    """
    inputs = {"obs": observation()}
    target: Target
    if way == "HTTP":
        target = Http(server.url, _json_request() if json else request_bytes(server.url, "nat", inputs, promise))
    else:
        target = Local(server.ports["local"], "nat", inputs, promise)
    return asyncio.run(offer(target, rate, promise, seconds=seconds, connections=connections, seed=seed))


def _json_request() -> bytes:
    """A whole request whose tensor is JSON."""
    x = observation()
    tensor = {"name": "obs", "datatype": "UINT8", "shape": x.shape, "data": x.reshape(-1).tolist()}
    body = jsons.dumps({"inputs": [tensor]}).encode()
    lines = ("POST /v2/models/nat/infer HTTP/1.1", "Host: x", "Content-Type: application/json")
    head = "\r\n".join((*lines, f"Content-Length: {len(body)}", "", ""))
    return head.encode() + body


def measure(turns: int, seconds: float, policy: str, promise: float) -> list[Turn]:
    """Our server alone, each way in turns: full load, overload, calm."""
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        options = ("--model", "nat", "--promise", promise, "--policy", policy, "--local", f"{folder}/s.sock")
        with host("tilewright", *options, core=0) as server:
            at(server, 100.0, 1.0, promise)
            for k in range(turns):
                for way in WAYS:
                    rows = alone(promise)
                    full = at(server, 1.05 * rows, seconds, promise, way=way, seed=k)
                    over = at(server, 2 * rows, seconds, promise, way=way, connections=256, seed=k)
                    calm = at(server, 0.8 * full.goodput, seconds, promise, way=way, seed=k)
                    measured.append(Turn(way, rows, full, over, calm))
    return measured


@dataclass(frozen=True, slots=True)
class Rival:
    """Another server, in an environment of its own."""

    name: str
    module: str
    python: str
    json: bool = False


def race(rivals: Sequence[Rival], turns: int, seconds: float, promise: float) -> dict[str, list[float]]:
    """Goodput of each server at several loads, in turns; the most of its loads counts for each turn. One server runs at
    a time. Ours is "tilewright"."""
    goodputs: dict[str, list[float]] = {}
    for k in range(turns):
        rows = alone(promise)
        every = [Rival("tilewright", "tilewright", sys.executable), *rivals]
        for rival in every if k % 2 == 0 else reversed(every):
            ours = ("--model", "nat", "--promise", promise)
            arguments = ours if rival.module == "tilewright" else ("--file", models.load("nat"))
            try:
                with host(rival.module, *arguments, core=0, python=rival.python) as server:
                    at(server, 20.0, 2.0, promise, json=rival.json, seed=k)
                    points = [
                        at(server, s * rows, seconds, promise, json=rival.json, seed=k)
                        for s in (0.02, 0.1, 0.25, 0.5, 0.9)
                    ]
            except (RuntimeError, ServeError) as error:
                print(error, file=sys.stderr)
                continue
            print(
                rival.name, *(f"{p.offered:.0f}: {p.goodput:.0f} {dict(p.statuses)}" for p in points), file=sys.stderr
            )
            goodputs.setdefault(rival.name, []).append(max(p.goodput for p in points))
    return goodputs


__all__ = ["PROMISE", "Rival", "Turn", "measure", "race"]
