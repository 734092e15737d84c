"""`make demo-serve`: two models on one server, a burst, a weight swap; live in the terminal.

A policy whose learner publishes new weights every half second, and a larger critic with a promise of 20 ms, are served
by one process with one lane. The load is open: requests leave at times that were drawn before. In the middle it is
three times what the lane can do: what cannot be in time is refused at once, and what is answered is answered in time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.live import Live
from rich.table import Table

import tilewright as tw
from tilewright.serve.load import Http, Point, offer, request_bytes
from tilewright.serve.opening import Source, served
from tilewright.serve.server import Server, Settings, run

PROMISE = 0.02
PHASES = (("calm", 0.4), ("a burst", 3.0), ("calm again", 0.4))


def mlp(name: str, widths: list[int]) -> onnx.ModelProto:
    """Dense layers with relu between them."""
    source = np.random.default_rng(len(widths))
    nodes, weights, value = [], [], "obs"
    for k, (rows, columns) in enumerate(pairwise(widths)):
        last = k == len(widths) - 2
        matrix = (source.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{k}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{k}"], ["out" if last else f"h{k}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"h{k}"], [f"r{k}"]))
            value = f"r{k}"
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["batch", widths[0]])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", widths[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@contextlib.contextmanager
def server_process() -> Iterator[tuple[str, list[list[float]]]]:
    """A server in a process of its own: its address, and the critic's estimates."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        policy = served(Source("policy", store="demo-policy", promise=PROMISE), tw.attach("demo-policy"))
        critic = tw.Model(tw.compile_program(mlp("critic", [64, 1024, 1024, 1024, 1])))
        slow = served(Source("critic", promise=PROMISE), critic)
        server = Server(Settings(http_port=0), [policy, slow])

        def tell() -> None:
            os.write(writing, (json.dumps([server.url, slow.estimates.table()]) + "\n").encode())

        server.on_start = tell
        run(server)
        os._exit(0)
    os.close(writing)
    with open(reading) as said:
        url, table = json.loads(said.readline())
    try:
        yield url, table
    finally:
        os.kill(child, 15)
        os.waitpid(child, 0)


def learner(publisher: tw.Publisher, weights: dict[str, Any], stop: threading.Event) -> None:
    """New weights every half second."""
    version = 1
    while not stop.wait(0.5):
        version += 1
        publisher.publish({name: array * np.float32(1 + 0.01 * version) for name, array in weights.items()}, version)


def picture(data: dict[str, Any], phase: str) -> Table:
    """The server's report of itself, as a table."""
    table = Table(title=f"{phase}: {data['in_flight']} in flight", title_justify="left")
    for column in ("model", "weights", "answered", "refused", "too late", "p50 ms", "p99 ms", "batches by rows"):
        table.add_column(column, justify="left" if column in ("model", "batches by rows") else "right")
    for model in data["models"]:
        quantiles = [f"{1000 * (model['latency'][share] or 0):.2f}" for share in ("0.5", "0.99")]
        batches = "  ".join(f"{rows}:{count}" for rows, count in model["batches"].items())[:60]
        table.add_row(
            model["name"], str(model["weights_version"]), str(model["answered"]), str(sum(model["dropped"].values())),
            str(model["missed"]), *quantiles, batches,
        )  # fmt: skip
    return table


async def phases(url: str, capacity: float, seconds: float, console: Console) -> list[tuple[str, Point, Point]]:
    """The loads one after the other, and a picture twice a second."""
    policy = Http(url, request_bytes(url, "policy", {"obs": np.ones((1, 17), np.float32)}, None))
    critic = Http(url, request_bytes(url, "critic", {"obs": np.ones((1, 64), np.float32)}, None))
    client = tw.client.Client(url)
    results = []
    with Live(console=console, refresh_per_second=4) as live:
        for phase, load in PHASES:

            async def show(phase: str = phase) -> None:
                while True:
                    data = await asyncio.to_thread(client.dashboard)
                    live.update(picture(data, phase))
                    await asyncio.sleep(0.5)

            shown = asyncio.create_task(show())
            both = await asyncio.gather(
                offer(policy, 100, PROMISE, seconds=seconds, connections=16),
                offer(critic, capacity * load, PROMISE, seconds=seconds, connections=256),
            )
            shown.cancel()
            results.append((phase, *both))
    client.close()
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each phase")
    parser.add_argument("--capacity", type=float, help="requests a second that the critic's lane is taken to do")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TILEWRIGHT_STORE_DIR", str(Path(folder)))
        model = tw.Model(tw.compile_program(mlp("policy", [17, 64, 64, 6])))
        weights = {name: array.copy() for name, array in model.weights.items()}
        publisher = tw.Publisher("demo-policy", model)
        with server_process() as (url, table):
            rows, batch = table[-1]
            capacity = options.capacity or min(rows / batch, 3000.0)  # more would be the generator's limit
            stop = threading.Event()
            thread = threading.Thread(target=learner, args=(publisher, weights, stop))
            thread.start()
            results = asyncio.run(phases(url, capacity, options.seconds, console))
            stop.set()
            thread.join()
            console.print(f"the policy's weights are version {publisher.version} now; no request has failed by that")
        publisher.close(remove=True)
    for phase, policy, critic in results:
        console.print(
            f"{phase}: critic {critic.offered:.0f}/s offered, {critic.goodput:.0f}/s in time, "
            f"{critic.statuses.get(429, 0)} refused at once, {critic.violations:.2%} too late; "
            f"policy p99 {1000 * policy.quantile(0.99):.2f} ms"
        )


if __name__ == "__main__":
    main()
