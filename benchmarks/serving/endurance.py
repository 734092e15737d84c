"""Endurance of a server: requests while weights change, and workers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from benchmarks.serving.hosts import started
from tilewright.serve.client import Client
from tilewright.serve.errors import ServeError
from tilewright.serve.local_client import LocalModel

_FEATURES, _WIDTH = 17, 32


@dataclass(frozen=True, slots=True)
class Soak:
    """Requests under weights that change.

    Args:
        failed: requests without an answer; torn: answers that are of no single version.
        memory: bytes of the server's process after a tenth of the requests, and at the end.
    """

    requests: int
    versions: int
    seen: int
    failed: int
    torn: int
    seconds: float
    memory: tuple[int, int]


def scaled_model() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """y = (x @ w) @ v + b: weights of version n are those of version 1 times n, except w, so that y is n times y of
    version 1, and a mixture of versions is no such multiple."""
    source = np.random.default_rng(0)
    weights = {
        "w": source.standard_normal((_FEATURES, _WIDTH), np.float32),
        "v": source.standard_normal((_WIDTH, 8), np.float32),
        "b": source.standard_normal(8, np.float32),
    }
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["obs", "w"], ["h"]), helper.make_node("Gemm", ["h", "v", "b"], ["y"])],
        "policy",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["n", _FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), weights


def memory_of(process: int) -> int:
    """Bytes of a process that stand in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(requests: int, versions: int) -> Soak:
    """A store is served; its weights change every requests / versions requests. Nine of ten requests go through shared
    memory and one over HTTP, and each answer is checked against its version."""
    model, weights = scaled_model()
    x = np.random.default_rng(1).standard_normal((1, _FEATURES), np.float32)
    base = (x @ weights["w"]) @ weights["v"] + weights["b"]
    failed = torn = seen = 0
    memory = 0
    last = -1
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ["TILEWRIGHT_STORE_DIR"] = folder
        with tw.Publisher("policy", tw.compile(model, threads=1)) as publisher:
            publisher.publish(weights, 1)
            path = f"{folder}/serve.sock"
            with started([sys.executable, "-m", "benchmarks.serving.hosts", "store", "--local", path]) as server:
                with Client(server.url) as remote, LocalModel(path, "policy") as local:
                    begin = time.monotonic()
                    every = max(1, requests // versions)
                    for k in range(requests):
                        if k % every == 0:
                            version = k // every + 1
                            publisher.publish(
                                {n: a * np.float32(1 if n == "w" else version) for n, a in weights.items()}, version + 1
                            )
                        if k == requests // 10:
                            memory = memory_of(server.process.pid)
                        try:
                            if k % 10:
                                y, got = local(x), local.weights_version
                            else:
                                answer = remote.infer("policy", {"obs": x})
                                y, got = answer["y"], answer.weights_version
                        except ServeError:
                            failed += 1
                            continue
                        seen += got != last
                        last = got
                        torn += not np.allclose(y, base * np.float32(max(got - 1, 1)), rtol=1e-3, atol=1e-3 * got)
                    seconds = time.monotonic() - begin
                    return Soak(
                        requests, versions, seen, failed, torn, seconds, (memory, memory_of(server.process.pid))
                    )


@dataclass(frozen=True, slots=True)
class Kills:
    """Workers that were killed.

    Args:
        lost: requests that were in a killed worker's hands, and got no answer; wrong: answers that were wrong.
        back: seconds until a worker's place answered again, the median and the longest.
        memory: bytes of the supervisor before and after.
    """

    kills: int
    answered: int
    lost: int
    wrong: int
    back: tuple[float, float]
    memory: tuple[int, int]


def kill(kills: int, workers: int = 2) -> Kills:
    """Kill one worker after the other while requests come, each time with a request in flight on each connection."""
    model, weights = scaled_model()
    x = np.random.default_rng(1).standard_normal((1, _FEATURES), np.float32)
    base = (x @ weights["w"]) @ weights["v"] + weights["b"]
    answered = lost = wrong = 0
    back: list[float] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ["TILEWRIGHT_STORE_DIR"] = folder
        onnx.save(model, f"{folder}/policy.onnx")
        with started([sys.executable, "-m", "benchmarks.serving.hosts", "workers", "--file", f"{folder}/policy.onnx",
                      "--workers", str(workers)]) as server:  # fmt: skip
            before = memory_of(server.process.pid)
            clients: deque[Client] = deque(Client(server.url, timeout=20) for _ in range(4))
            for k in range(kills):
                pids = children(server.process.pid)
                victim = pids[k % len(pids)]
                os.kill(victim, signal.SIGKILL)
                dead = time.monotonic()
                for _ in range(3):
                    clients.append(clients.popleft())
                    try:
                        wrong += not np.allclose(clients[0].infer("policy", {"obs": x})["y"], base, rtol=1e-3)
                        answered += 1
                    except ServeError:
                        lost += 1
                while victim in (now := children(server.process.pid)) or len(now) < workers:
                    time.sleep(0.005)
                for _ in range(8):  # of new connections half go to the place that was killed
                    with Client(server.url, timeout=20) as fresh:
                        wrong += not np.allclose(fresh.infer("policy", {"obs": x})["y"], base, rtol=1e-3)
                        answered += 1
                back.append(time.monotonic() - dead)
            for client in clients:
                client.close()
            after = memory_of(server.process.pid)
    return Kills(kills, answered, lost, wrong, (float(np.median(back)), max(back)), (before, after))


def children(process: int) -> list[int]:
    """Processes that a process has started."""
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return sorted(map(int, out.stdout.split()))


__all__ = ["Kills", "Soak", "kill", "soak"]
