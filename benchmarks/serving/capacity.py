"""The processor time that a request takes at a server that always has more to do, beside that of the model alone.

Clocks of a busy machine count what others do; a process's own time does not. Sixteen connections ask again as soon as
they are answered, so that batches are as large as the server makes them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.serving.hosts import Host, host
from benchmarks.serving.promise import ROWS, observation
from tilewright.serve.client import Client
from tilewright.serve.load import Http, Local, Target, offer, request_bytes

CONNECTIONS = 16
FULL = 64
"""Rows of a batch at most, which is what sixteen connections with eight rows each make."""
_ALONE = """
import sys, time
import numpy as np
import tilewright as tw
model = tw.load(sys.argv[1])
for line in sys.stdin:
    rows = int(line)
    x = np.random.default_rng(0).integers(0, 255, (rows, *model.inputs[0].shape[1:]), np.uint8)
    model(x)
    times = []
    for _ in range(max(3, 128 // rows)):
        start = time.process_time()
        model(x)
        times.append(time.process_time() - start)
    print(sorted(times)[len(times) // 2] / rows, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Share:
    """The processor time of one way.

    Args:
        alone: seconds of `model(batch)` for a request's rows, in batches of 64.
        loop, lane: seconds of the threads of the server for a request.
        rows: of a batch, on average.
        faults: pages that the system gave the server for a request.
    """

    way: str
    alone: float
    loop: float
    lane: float
    rows: float
    faults: float

    @property
    def ratio(self) -> float:
        """The throughput by processor time, as a part of the model's alone."""
        return self.alone / (self.loop + self.lane)


@contextmanager
def alone(core: int = 0) -> Iterator[Callable[[int], float]]:
    """A process with the model alone, on the server's core: seconds of the processor for each row of a batch of so
    many."""
    from benchmarks.live.common import program

    command = ["taskset", "-c", str(core), sys.executable, "-c", _ALONE, str(program("nat"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdin is not None and process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def seconds(rows: int) -> float:
            asked.write(f"{rows}\n")
            asked.flush()
            return float(answers.readline())

        yield seconds
        asked.close()


def measure(turns: int, requests: int) -> list[Share]:
    """Each way, in turns with the model alone, of which there is one measurement before and one after each."""
    shares: list[Share] = []
    with tempfile.TemporaryDirectory() as folder, alone() as seconds:
        path = str(Path(folder) / "s.sock")
        with host("tilewright", "--model", "nat", "--local", path, core=0) as server:
            http = Http(server.url, request_bytes(server.url, "nat", {"obs": observation()}, None))
            ways: dict[str, Target] = {"HTTP": http, "shared memory": Local(path, "nat", {"obs": observation()})}
            for target in ways.values():
                _saturate(target, requests, 0)
            for k in range(turns):
                for way, target in ways.items():
                    before = seconds(FULL)
                    share = _share(server, way, target, requests, k)
                    shares.append(replace(share, alone=ROWS * (before + seconds(FULL)) / 2))
    return shares


def _share(server: Host, way: str, target: Target, requests: int, seed: int) -> Share:
    threads, faults, batches = _times(server), _faults(server), _batches(server)
    _saturate(target, requests, seed)
    after, rows = _times(server), _batches(server)
    took = {thread: seconds - threads.get(thread, 0.0) for thread, seconds in after.items()}
    lane = max(took, key=lambda thread: took[thread])
    return Share(
        way, 0.0, (sum(took.values()) - took[lane]) / requests, took[lane] / requests,
        (rows[0] - batches[0]) / (rows[1] - batches[1]), (_faults(server) - faults) / requests,
    )  # fmt: skip


def _saturate(target: Target, requests: int, seed: int) -> None:
    """Send so many requests, of which sixteen are under way at a time."""
    point = asyncio.run(offer(target, requests / 0.1, 2.0, seconds=0.1, connections=CONNECTIONS, seed=seed))
    assert set(point.statuses) == {200}, point.statuses


def _times(server: Host) -> dict[str, float]:
    """Seconds of the processor of each thread of a server."""
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}


def _faults(server: Host) -> int:
    return int(Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[7])


def _batches(server: Host) -> tuple[int, int]:
    """Rows and batches that a server has computed."""
    with Client(server.url) as client:
        stats = client.statistics("nat")[0]
    return stats["inference_count"], stats["execution_count"]


__all__ = ["Share", "measure"]
