"""Forks: what may be made side by side, what is estimated to pay, and memory that branches do not share."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import TensorType, Value
from tilewright.ir.parser import parse_func
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.runtime.arena import plan, temp_intervals
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.threads import supported
from tilewright.support.errors import ArtifactError
from tilewright.targets.target import Target
from tilewright.transform import forks
from tilewright.transform.call import CompiledKernel, KernelCall, Workspace
from tilewright.transform.forks import Times
from tilewright.transform.graph.fuse import Group
from tilewright.transform.graph.memory import assign_slots

pytestmark = pytest.mark.skipif(not supported(), reason="there is no thread pool for this system")

WIDTH = 256


def towers(joined: bool = True) -> onnx.ModelProto:
    """Two perceptrons of one input; their results after each other, or separate."""
    rng = np.random.default_rng(0)
    nodes, weights, ends = [], {}, []
    for tower in "ab":
        x = "x"
        for k in range(3):
            weights[f"{tower}{k}"] = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
            nodes.append(node("MatMul", [x, f"{tower}{k}"], [f"{tower}{k}.product"]))
            nodes.append(node("Relu", [f"{tower}{k}.product"], [f"{tower}{k}.out"]))
            x = f"{tower}{k}.out"
        ends.append(x)
    if joined:
        nodes.append(node("Concat", ends, ["y"], axis=0))
    return model(nodes, [info("x", [1, WIDTH])], ["y"] if joined else ends, weights)


def inputs() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((1, WIDTH)).astype(np.float32)


def branches_of(manifest: Manifest) -> list[tuple[int, int] | None]:
    return [s.branch for s in manifest.run_steps]


@pytest.fixture(autouse=True)
def compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "estimate", lambda func, target: 20_000.0 + 10_000.0 * target.threads)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")


def test_parts_of_one_memory_are_written_side_by_side() -> None:
    result = branches_of(tw.compile(towers(), threads=2).manifest)
    assert sorted(s for s in result if s is not None) == [(0, 0)] * 3 + [(0, 1)] * 3


def test_one_thread_has_no_forks() -> None:
    assert not any(branches_of(tw.compile(towers(), threads=1).manifest))


def test_a_fork_is_a_decision() -> None:
    with deciding() as record:
        tw.compile(towers(), threads=2)
    (fork,) = [d for d in record.decisions if d.key.kind == "fork"]
    assert (fork.selected.label, [s.label for s in fork.space.settings]) == ("fork", ["fork", "shared"])
    with forcing({fork.key.name: "shared"}):
        assert not any(branches_of(tw.compile(towers(), threads=2).manifest))


@pytest.mark.parametrize("joined", [True, False])
def test_memory_of_a_fork_is_in_use_during_all_of_it(joined: bool) -> None:
    manifest = tw.compile(towers(joined), threads=2).manifest
    temps = manifest.run_temps
    placed = plan(temp_intervals(temps, [t.nbytes or 0 for t in temps], 2))
    leading = len(manifest.inputs) + len(manifest.outputs) + len(manifest.packed)
    touched: dict[int, set[int]] = {0: set(), 1: set()}
    for step in manifest.run_steps:
        assert step.branch is not None
        touched[step.branch[1]] |= {slot - leading for slot in step.slots if slot >= leading}
    assert touched[0] and touched[1]
    for a in touched[0]:
        for b in touched[1] - {a}:
            first, second = placed.offsets[a], placed.offsets[b]
            assert first + (temps[a].nbytes or 0) <= second or second + (temps[b].nbytes or 0) <= first


def test_profiles_and_timelines_say_who_created_what() -> None:
    several = tw.compile(towers(), threads=2)
    profile = several.profile(inputs(), repeat=3)
    assert len(profile.kernels) == 6 and all(k.seconds > 0 for k in profile.kernels)
    timeline = several.timeline(inputs(), threads=2)
    steps = several.manifest.run_steps
    created = {(s.step, s.thread) for s in timeline.of("kernel")}
    assert created == {(k, s.branch[1]) for k, s in enumerate(steps) if s.branch is not None}
    assert {s.thread for s in several.timeline(inputs(), threads=1).of("kernel")} == {0}


def test_branches_are_balanced_and_follow_each_other() -> None:
    #  0 -> 1 -> 2,   3 -> 4,   5,   all -> 6
    before = [0, 0b1, 0b11, 0, 0b1000, 0, 0b111111]
    times = [Times(60.0, 100.0, 0.0)] * 6 + [Times(60.0, float("inf"), 0.0)]
    target = replace(Target.parse("x86-64-v3"), threads=2).adjusted(barrier=10.0)
    assert forks._branches(range(6), before, times, target) == [[0, 1, 2], [3, 4, 5]]
    assert forks._fork_cycles([[0, 1, 2], [3, 4, 5]], before, times, target) == 305.0
    assert forks._cut(range(7), before, times, target).ends == (6, 7)
    slow = [Times(51.0, 100.0, 0.0)] * 6 + times[6:]
    assert forks._cut(range(7), before, slow, target).ends == (1, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_the_best_of_all(seed: int) -> None:
    """Random calls, of which some cannot be made by one thread: no other runs, alone or in forks, take fewer cycles."""
    rng = random.Random(seed)
    count, endless = rng.randint(3, 7), float("inf")
    before = [0] * count
    for k in range(count):
        for j in rng.sample(range(k), rng.randint(0, min(k, 2))):
            before[k] |= before[j] | 1 << j
    alone = [rng.choice([40.0, 90.0, 150.0, 400.0, *[endless] * (rng.random() < 0.3)]) for _ in range(count)]
    times = [
        Times(rng.choice([0.5, 0.6, 0.8]) * (60.0 if a == endless else a), a, rng.choice([0.0, 9.0])) for a in alone
    ]
    target = replace(Target.parse("x86-64-v3"), threads=2).adjusted(barrier=10.0)

    def cycles(run: range) -> float:
        shared = sum(times[k].shared for k in run)
        if len(run) == 1 or any(alone[k] == endless for k in run):
            return shared if len(run) == 1 else endless
        fork = forks._fork_cycles(forks._branches(run, before, times, target), before, times, target)
        worth = min(forks.MIN_GAIN * shared, shared - forks.MIN_BARRIERS * target.barrier)
        return fork if fork < worth else endless

    least = [0.0]
    for end in range(1, count + 1):
        least.append(min(least[at] + cycles(range(at, end)) for at in range(end)))
    result = forks._cut(range(count), before, times, target)
    assert result.cycles == pytest.approx(least[-1])
    starts = (0, *result.ends[:-1])
    assert sum(cycles(range(a, b)) for a, b in zip(starts, result.ends, strict=True)) == pytest.approx(least[-1])


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("branch", [None, (0, 1)])
def test_a_branch_has_its_workspace_once(branch: tuple[int, int] | None, each: bool) -> None:
    """One thread makes a call of a branch: only calls that threads share need memory for each of them."""
    func = parse_func("func @f(a: f32[8]) { for i in 0..8 { a[i] = 1.0 } }")
    code = CompiledKernel("f", lambda: b"", (Workspace(const(96), each),), (), alone=False, cycles=0, work=(None, None))
    a = Value("a", TensorType(f32, (const(8),)))
    call = KernelCall(func, (a,), "f", Group((), (), (a,)), branch=branch, compiled=code)
    (temp,) = assign_slots([call], [a], {}, ()).temps
    assert (temp.nbytes, temp.per_thread) == (96, each and branch is None)


def test_calls_come_early_where_others_wait() -> None:
    #  0 -> 1,   2 alone, needed by 3 with 1
    before = [0, 0b1, 0, 0b111]
    times = [Times(1.0, 1.0, 0.0)] * 4
    assert forks._as_early_as_possible(before, times) == [0, 2, 1, 3]


def test_impossible_branches_are_refused() -> None:
    manifest = tw.compile(towers(), threads=2).manifest
    steps = (replace(manifest.run_steps[0], branch=(0, -1)), *manifest.run_steps[1:])
    with pytest.raises(ArtifactError, match="its branch is not possible"):
        replace(manifest, run_steps=steps)
