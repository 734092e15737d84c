"""One of two processes that learn together: `python -m tests.train.learners WHAT STORE RANK OUT`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.nn.functional  # before there is a group, which it would keep: docs/training.md
from torch import distributed, nn

import tilewright as tw
from tilewright.train.step import Step

Array = np.ndarray[Any, Any]
STEPS = 6
ROWS = 4
"""Rows of a process's part of a batch."""
AVERAGE = tw.train.Average("follower.", "one.", 0.1)


class Encoder(nn.Module):
    """A layer of attention after a projection of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(self.first(x)).mean(1))


class Tower(nn.Module):
    """The learner without the layer, for settings that see gradients and not what they come from."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.first(x)).mean(1))


class Agent(nn.Module):
    """Batch norm, whose statistics the first stage moves and the second reads."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(8) if norm else nn.LayerNorm(8)
        self.one, self.two, self.follower = (nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1)) for _ in range(3))


def first(model: Any, x: Any, y: Any) -> Any:
    off = model.one(model.norm(x)) - model.follower(x) - y
    return {"loss": off.square().mean(), "off": off.abs().mean()}


def second(model: Any, x: Any, y: Any) -> Any:
    if isinstance(model.norm, nn.BatchNorm1d):
        x = (x - model.norm.running_mean) / (model.norm.running_var + 1e-5).sqrt()
    return (model.two(x) * model.one(x) + y).square().mean()


def stages() -> list[tw.train.Stage]:
    return [
        tw.train.Stage("first", first, ["norm.*", "one.*"], tw.train.SGD(0.05, momentum=0.9), clip=0.1),
        tw.train.Stage("second", second, ["two.*"], tw.train.SGD(0.05, momentum=0.9), every=2),
    ]


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(model(x), y)


def sequences(rows: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 6, 8)).astype(np.float32), rng.integers(0, 3, rows)


def rows(count: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 8)).astype(np.float32), rng.normal(size=(count, 1)).astype(np.float32)


def vector(step: Step) -> Array:
    return np.concatenate([np.ravel(v) for v in step.weights.values()])


@dataclass(frozen=True)
class Case:
    """A model, its loss and the settings of its step."""

    model: Callable[[], nn.Module] = Encoder
    loss: Any = loss_of
    batch: Callable[[int, int], tuple[Array, ...]] = sequences
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def grows(self) -> bool:
        return bool(self.settings.get("symbolic"))

    def step(self, **arguments: Any) -> Step:
        loss = self.loss() if self.loss is stages else self.loss
        optimizer = None if self.loss is stages else MOMENTUM
        example = self.joint(0) if arguments["reduce"] is None else self.part(0, 0)
        return tw.compile_step(self.model(), loss, optimizer, example, **self.settings, **arguments)

    def joint(self, k: int) -> tuple[Array, ...]:
        """The whole batch of a step."""
        return self.batch(2 * ROWS * (1 + k % 3 if self.grows else 1), k)

    def part(self, k: int, rank: int) -> tuple[Array, ...]:
        return tuple(np.ascontiguousarray(np.split(array, 2)[rank]) for array in self.joint(k))


MOMENTUM = tw.train.SGD(0.1, momentum=0.9)
CASES = {
    "clip": Case(Tower, settings={"clip": 0.1}),
    "accumulate": Case(Tower, settings={"accumulate": 2}),
    "skip, accumulate, clip": Case(settings={"on_nonfinite": "skip", "accumulate": 3, "clip": 0.1}),
    "keep, groups": Case(
        Tower, settings={"on_nonfinite": "keep", "groups": {"*.bias": tw.train.SGD(0.3, momentum=0.5)}}
    ),
    "symbolic, groups": Case(settings={"symbolic": True, "groups": {"*.bias": tw.train.SGD(0.3, momentum=0.5)}}),
    "symbolic, accumulate, clip": Case(Tower, settings={"symbolic": True, "accumulate": 2, "clip": 0.1}),
    "stages": Case(lambda: Agent(False), stages, rows, {"averages": [AVERAGE]}),
    "symbolic, stages": Case(lambda: Agent(False), stages, rows, {"averages": [AVERAGE], "symbolic": True}),
}


def cases(rank: int) -> dict[str, Any]:
    """Parameters after some steps, case by case, and how many buckets there are in a step."""
    result: dict[str, Any] = {}
    for name, case in CASES.items():
        counted = Counted()
        step = compiled(case, rank, bucket=64, reduce=counted)
        for k in range(STEPS):
            step(*case.part(k, rank))
        updates = STEPS // case.settings.get("accumulate", 1)
        result |= {name: vector(step), f"{name} buckets": counted.calls // updates}
    return result


def compiled(case: Case, rank: int, **arguments: Any) -> Step:
    """The step, which one process compiles, and then the other finds in the cache."""
    if rank == 1:
        distributed.barrier()
    step = case.step(**arguments)
    if rank == 0:
        distributed.barrier()
    return step


class Counted:
    """The mean over the processes, of so many buckets."""

    def __init__(self) -> None:
        self.calls = 0
        self.reduce = tw.train.averaged()

    def __call__(self, part: Array) -> Any:
        self.calls += 1
        return self.reduce(part)


def refused(rank: int) -> dict[str, Any]:
    """Steps that one of the processes spoils."""
    result: dict[str, Any] = {}
    case = CASES["clip"]
    for name, chosen in (("skip", "skip"), ("raise", "raise"), ("shape", "raise")):
        step = compiled(case, rank, bucket=256, reduce=tw.train.averaged(), on_nonfinite=chosen)
        step(*case.part(0, rank))
        x, y = case.part(1, rank)
        if rank == 1:
            x = x[:, :5].copy() if name == "shape" else np.full_like(x, np.nan)
        result[f"{name} before"] = vector(step)
        result[f"{name} error"] = error_of(step, (x, y))
        result[f"{name} after"] = vector(step)
    step(*case.part(2, rank))
    return result | {"last": vector(step)}


def dies(rank: int, after: int = 0) -> dict[str, Any]:
    """One of the processes ends, at once or so many buckets later."""
    case = CASES["clip"]
    counted = Counted()
    step = compiled(case, rank, bucket=64, reduce=counted)
    for k in range(2):
        step(*case.part(k, rank))
    before = vector(step)
    if rank == 1:
        counted.reduce = ends(after, counted.reduce)
    error = error_of(step, case.part(2, rank))
    return {"before": before, "error": error, "after": vector(step), "count": step.count}


def ends(after: int, reduce: Any) -> Any:
    left = iter(range(after))

    def ending(part: Array) -> Any:
        if next(left, None) is None:
            os._exit(9)
        return reduce(part)

    return ending


def error_of(step: Step, batch: Sequence[Any]) -> str:
    try:
        step(*batch)
    except tw.Error as error:
        return str(error)
    return ""


WHAT: dict[str, Callable[[int], dict[str, Any]]] = {
    "cases": cases,
    "refused": refused,
    "dies": dies,
    "dies in the backward pass": lambda rank: dies(rank, 2),
}


def main(what: str, store: str, rank: str, out: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    result = WHAT[what](int(rank))
    np.savez(out, **result)
    if what not in ("cases", "refused"):
        os._exit(0)  # a group that has lost a process cannot be destroyed, and one that is not may abort the process
    distributed.destroy_process_group()
    assert not any("gloo" in task.read_text() for task in Path("/proc/self/task").glob("*/comm"))


if __name__ == "__main__":
    main(*sys.argv[1:])
