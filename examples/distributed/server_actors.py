"""A3C in small: workers act with the newest weights of the node, learn from what they get, and push gradients to a
parameter server at their own pace; each of its steps is what the workers act with next.

The game is a corridor with a door: the agent sees where it is and where the door is, goes left or right, and gets 1 if
it opens the door in time.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from examples.distributed.processes import run
from tilewright.collective.server import SGD, Server, connect

LENGTH, ROWS = 7, 32
Array = np.ndarray[Any, Any]


def policy() -> tw.Model:
    """Scores of left and right for positions and doors, both one-hot: a product with a table."""
    table = np.zeros((LENGTH * LENGTH, 2), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["seen", "table"], ["scores"])],
        "policy",
        [helper.make_tensor_value_info("seen", TensorProto.FLOAT, [ROWS, LENGTH * LENGTH])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [ROWS, 2])],
        [numpy_helper.from_array(table, "table")],
    )
    return tw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def play(actor: Any, rng: np.random.Generator) -> tuple[Array, float]:
    """Games of one length side by side: the gradient of the table, and the mean reward."""
    at, door = rng.integers(0, LENGTH, ROWS), rng.integers(0, LENGTH, ROWS)
    reward, steps = (at == door).astype(np.float32), []
    for _ in range(LENGTH - 1):
        seen = np.zeros((ROWS, LENGTH * LENGTH), np.float32)
        seen[np.arange(ROWS), at * LENGTH + door] = 1
        scores = actor(seen)
        odds = 1 / (1 + np.exp(scores[:, 0] - scores[:, 1]))
        right = rng.random(ROWS) < odds
        steps.append((seen, odds, right, reward == 0))
        at = np.where(reward > 0, at, np.clip(at + np.where(right, 1, -1), 0, LENGTH - 1))
        reward = np.maximum(reward, at == door).astype(np.float32)
    gradient, advantage = np.zeros((LENGTH * LENGTH, 2), np.float32), reward - reward.mean()
    for seen, odds, right, playing in steps:
        change = np.where(right, 1 - odds, -odds) * advantage * playing
        gradient -= seen.T @ np.stack([-change, change], 1).astype(np.float32)
    return gradient / ROWS, float(reward.mean())


def worker(rank: int, name: str, games: int, folder: str) -> list[float]:
    """Act and learn; the mean reward of each game."""
    rng, rewards = np.random.default_rng(rank), list[float]()
    with tw.attach(name, directory=folder, timeout=60) as actor, connect(name, rank, directory=folder) as server:
        for _ in range(games):
            gradient, reward = play(actor, rng)
            server.pull([])  # waits while it is too far ahead of the slowest
            server.push({"table": gradient})
            rewards.append(reward)
    return rewards


def main(games: int = 300, workers: int = 2) -> tuple[float, float]:
    """Rewards at the beginning and at the end."""
    model, name = policy(), f"corridor-{secrets.token_hex(4)}"
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").exists() else None) as folder:
        with tw.Publisher(name, model, directory=folder) as publisher:
            values = {n: np.array(v) for n, v in model.weights.items()}
            with Server(name, values, workers, SGD(20.0), staleness=3, publisher=publisher, directory=folder) as server:
                rewards = run(workers, worker, name, games, folder)
                steps, version = server.shard.steps, publisher.version
    first, last = (float(np.mean([r[part] for r in rewards])) for part in (slice(None, 20), slice(-20, None)))
    print(f"{workers} workers, {steps} pushes, version {version} of the weights: rewards {first:.2f} -> {last:.2f}")
    return first, last
