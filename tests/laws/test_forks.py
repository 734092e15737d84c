"""Programs whose branches are made side by side: the same bits with any number of threads, as those of a program whose
calls are shared; random graphs with branches.

`make fuzz` runs TILEWRIGHT_STRANDS_CASES (400) graphs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright import assemble
from tilewright.runtime.arena import plan, temp_intervals
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.threads import supported
from tilewright.transform import forks

pytestmark = pytest.mark.skipif(not supported(), reason="there is no thread pool for this system")

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
CASES = int(os.environ.get("TILEWRIGHT_STRANDS_CASES", "400")) if LONG else 6
CALLS = 40
CLOSE = 1e-4
"""The largest difference to a compile for one thread, which may sum in another order, by the largest output."""


@dataclass
class Branches:
    """A model under construction: every operator reads any of the values before it."""

    rng: np.random.Generator
    rows: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)

    def op(self, kind: str, width: int, *inputs: str, **attributes: Any) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(kind, list(inputs), [name], **attributes))
        self.widths[name] = width

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = (self.rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
        return name

    def pick(self, *values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def grow(self) -> None:
        x = self.pick(*self.widths)
        width = self.widths[x]
        match self.pick("linear", "linear", "linear", "function", "softmax", "norm", "sum", "concat", "part", "turn"):
            case "linear":
                new = self.pick(1, 7, 16, 48, 64)
                self.op("Gemm", new, x, self.weight(width, new), self.weight(new))
            case "function":
                self.op(self.pick("Relu", "Tanh", "Sigmoid"), width, x)
            case "softmax":
                self.op("Softmax", width, x, axis=-1)
            case "norm":
                self.op("LayerNormalization", width, x, self.weight(width), self.weight(width), axis=-1)
            case "sum":
                others = [v for v, w in self.widths.items() if w == width]
                self.op(self.pick("Add", "Mul"), width, x, self.pick(*others))
            case "concat":
                y = self.pick(*self.widths)
                if width + self.widths[y] <= 160:
                    self.op("Concat", width + self.widths[y], x, y, axis=1)
            case "part" if width > 1:
                new = int(self.rng.integers(1, width))
                for k, v in enumerate((0, new, 1)):
                    self.weights[f"i{len(self.nodes)}.{k}"] = np.array([v], np.int64)
                first, last, axis = (f"i{len(self.nodes)}.{k}" for k in range(3))
                self.op("Slice", new, x, first, last, axis)
            case "turn":
                self.op("MatMul", width, x, self.weight(width, width))


def drawn(seed: int) -> tuple[onnx.ModelProto, list[Any]]:
    """A model of several outputs, and its input."""
    rng = np.random.default_rng(seed)
    b = Branches(rng, int(rng.integers(1, 40)))
    b.widths["x"] = int(rng.integers(1, 70))
    b.weights = {}
    shape = [b.rows, b.widths["x"]]
    for _ in range(int(rng.integers(6, 30))):
        b.grow()
    read = {name for n in b.nodes for name in n.input}
    outputs = [n.output[0] for n in b.nodes if n.output[0] not in read] or [b.nodes[-1].output[0]]
    return model(b.nodes, [info("x", shape)], outputs, b.weights), [rng.standard_normal(shape).astype(np.float32)]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forks wherever there can be one, whatever is estimated and however small models are; nothing is kept on disk."""
    estimated = forks._fork_cycles
    monkeypatch.setattr(forks, "_fork_cycles", lambda *a: min(estimated(*a), 1e-3))
    monkeypatch.setattr(assemble, "HANDOVERS", 0.0)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    yield


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("seed", range(CASES))
@pytest.mark.parametrize("threads", [2, 3])
def test_same_bits_as_one_thread(seed: int, threads: int, tmp_path: Path) -> None:
    source, inputs = drawn(seed)
    several = tw.compile(source, threads=threads)
    check_memory(several.manifest)
    several.save(tmp_path / "many.tw")
    wanted = as_tuple(tw.load(tmp_path / "many.tw", threads=1)(*inputs))
    for _ in range(CALLS):  # the first ones use all threads
        result = as_tuple(several(*inputs))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(result, wanted, strict=True))
    one = as_tuple(tw.compile(source, threads=1)(*inputs))
    for a, b in zip(wanted, one, strict=True):
        assert np.abs(a - b).max(initial=0.0) <= CLOSE * max(1.0, np.abs(b).max(initial=0.0))


def check_memory(manifest: Manifest) -> None:
    """No two temporaries that different branches of a fork use share a byte."""
    temps = manifest.run_temps
    sizes = [t.nbytes or 0 for t in temps]
    offsets = plan(temp_intervals(temps, sizes, 1)).offsets
    leading = manifest.run_slots - len(temps)
    used: dict[tuple[int, int], set[int]] = {}
    for step in manifest.run_steps:
        if step.branch is not None:
            used.setdefault(step.branch, set()).update(slot - leading for slot in step.slots if slot >= leading)
    for (a, mine), (b, theirs) in itertools.combinations(used.items(), 2):
        if a[0] == b[0]:
            for x, y in itertools.product(mine, theirs - mine):
                assert offsets[x] + sizes[x] <= offsets[y] or offsets[y] + sizes[y] <= offsets[x]


@pytest.mark.usefixtures("always")
def test_the_graphs_have_forks() -> None:
    programs = [tw.compile(drawn(seed)[0], threads=2).manifest for seed in range(6)]
    assert sum(any(s.branch is not None for s in m.run_steps) for m in programs) >= 4


def as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)
