"""`make server`: 10,000 simulated schedules of a parameter server, and how long a push takes to reach an actor,
against a publication of the same weights."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.collective.server import schedules
from tilewright.collective.server import Add, Server, connect

WIDTH = 512


def model() -> tw.Model:
    """A product with a weight of one megabyte."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["obs", "w"], ["action"])],
        "policy",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, [1, WIDTH])],
        [numpy_helper.from_array(np.zeros((WIDTH, WIDTH), np.float32), "w")],
    )
    return tw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def reaching(rounds: int = 60) -> tuple[float, float, float]:
    """Seconds, medians of turns: to publish, to commit a server's weights, and from a push to an actor's version."""
    publishes, commits, pushes = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder, program = Path(name), model()
        values = {n: np.array(v) for n, v in program.weights.items()}
        with (
            tw.Publisher("p", program, directory=folder) as publisher,
            Server("s", values, 1, Add(), publisher=publisher, directory=folder, every=1) as server,
            tw.attach("p", directory=folder) as actor,
            connect("s", 0, directory=folder) as worker,
        ):
            for _ in range(rounds):
                begin = time.perf_counter()
                version = publisher.publish(values)
                actor.wait(version=version, timeout=10)
                publishes.append(time.perf_counter() - begin)
                begin = time.perf_counter()
                actor.wait(version=server.commit(), timeout=10)
                commits.append(time.perf_counter() - begin)
                begin = time.perf_counter()
                worker.push(values)
                actor.wait(version=version + 2, timeout=10)
                pushes.append(time.perf_counter() - begin)
    return tuple(float(np.median(s)) for s in (publishes, commits, pushes))  # type: ignore[return-value]


def main() -> None:
    schedules.main()
    publish, commit, push = (1e6 * s for s in reaching())
    print(
        f"1 MB until an actor has it: published {publish:.0f} us, committed {commit:.0f} us ({commit / publish:.2f}x), "
        f"pushed by a worker and committed {push:.0f} us ({push / publish:.2f}x)"
    )


if __name__ == "__main__":
    main()
