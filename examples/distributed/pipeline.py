"""A network split over two processes: while the second has the second half of one batch, the first has the first half
of the next. Activations go through shared memory."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from examples.distributed.processes import run

ROWS, WIDTH, LAYERS = 32, 256, 6
Array = np.ndarray[Any, Any]


def weights() -> list[Array]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32) for _ in range(LAYERS)]


def network(layers: list[Array]) -> tw.Model:
    """Products with ReLUs between."""
    nodes, last = [], "x"
    for k in range(len(layers)):
        nodes.append(helper.make_node("MatMul", [last, f"w{k}"], [f"p{k}"]))
        nodes.append(helper.make_node("Relu", [f"p{k}"], [f"y{k}"]))
        last = f"y{k}"
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [ROWS, WIDTH])],
        [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(layers)],
    )
    return tw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def batch(number: int) -> Array:
    return np.random.default_rng(number).standard_normal((ROWS, WIDTH)).astype(np.float32)


def stage(rank: int, name: str, batches: int) -> list[Array]:
    """A half of the network; the second one returns the results."""
    half = LAYERS // 2
    model = network(weights()[rank * half : (rank + 1) * half])
    results = []
    with tw.collective.join(name, rank, 2, timeout=120) as group:
        for k in range(batches):
            if rank == 0:
                group.send(model(batch(k)), 1)
            else:
                activations = np.empty((ROWS, WIDTH), np.float32)
                group.receive(activations, 0)
                results.append(model(activations).copy())
        group.barrier()
    return results


def main(batches: int = 20) -> float:
    """The largest difference from the whole network in one process."""
    results = run(2, stage, f"pipeline-{secrets.token_hex(4)}", batches)[1]
    whole = network(weights())
    error = max(float(np.abs(whole(batch(k)) - one).max()) for k, one in enumerate(results))
    print(f"{batches} batches through two processes: {error:.1e} from the whole network at most")
    return error
