"""Primitives that are declared beside their functions: both methods, what a trace holds, and what is refused."""

from __future__ import annotations

import inspect

import pytest

from tilewright import te
from tilewright.ir.loops import PrimFunc
from tilewright.schedule import Schedule, parse_trace
from tilewright.schedule.primitive import loop_on_block, names, on_block, on_block_in_loop
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import PRIMITIVES
from tilewright.schedule.stages import Stage, StageSchedule
from tilewright.support.errors import ScheduleError


def _schedule() -> StageSchedule:
    a = te.placeholder((8, 6), name="A")
    b = te.compute((8, 6), lambda i, j: a[i, j] + 1, name="B")
    return te.create_schedule(te.compute((8, 6), lambda i, j: b[i, j] * 2, name="C"))


@on_block
def rename(func: PrimFunc, block: str, scope: str, buffer: str | None = None) -> PrimFunc:
    """The program as it is, with what was asked in its name."""
    from dataclasses import replace

    return replace(func, name=f"{func.name}_{block}_{scope}_{buffer}")


@on_block_in_loop
def repeat(func: PrimFunc, block: str, loop: str, times: int = 2) -> tuple[PrimFunc, str]:
    """The program as it is; the block stands for what was made."""
    assert times == 3 and loop == "i"
    return func, block


@loop_on_block
def outermost(func: PrimFunc, block: str) -> tuple[PrimFunc, str]:
    """The program as it is; a loop around the block stands for what was made."""
    return func, {"B": "i", "C": "i_2"}[block]


@on_block
def all_blocks(func: PrimFunc, block: str, least: int = 0) -> tuple[PrimFunc, tuple[str, ...]]:
    """The program as it is; both blocks stand for what was made."""
    return func, ("C", block)


class Extended(Schedule):
    rename = rename
    repeat = repeat
    outermost = outermost
    all_blocks = all_blocks


class ExtendedStage(Stage):
    rename = rename
    repeat = repeat
    outermost = outermost
    all_blocks = all_blocks


def test_a_declared_function_is_a_method_of_both_and_a_step_of_the_trace():
    s = _schedule()
    s.schedule = Extended(s.func)
    stage = ExtendedStage(s, s["C"].block)
    stage.rename("local")
    assert s.func.name.endswith("_C_local_None")
    s.schedule.rename(BlockRef("B"), "global", buffer="A")
    assert s.func.name.endswith("_B_global_A")
    copy = stage.repeat("i", 3)
    assert isinstance(copy, Stage) and copy.name == "C"
    assert s.schedule.repeat("C", "i", times=3) == copy.block
    steps = [line for line in str(s.schedule.trace).splitlines() if "rename" in line or "repeat" in line]
    assert steps == [
        's.rename(b0, "local")',
        's.rename(b1, "global", buffer="A")',
        "b2 = s.repeat(b0, l0, 3)",
        "b3 = s.repeat(b2, l0, 3)",
    ]


def test_a_declared_primitive_may_make_a_loop_or_several_blocks():
    s = _schedule()
    s.schedule = Extended(s.func)
    stage = ExtendedStage(s, s["B"].block)
    loop = stage.outermost()
    assert loop == s.schedule.outermost("B") and isinstance(loop, LoopRef) and loop in s["B"].loops
    stages = stage.all_blocks(3)
    assert [x.name for x in stages] == ["C", "B"] and all(isinstance(x, Stage) for x in stages)
    assert s.schedule.all_blocks("B") == tuple(x.block for x in stages)
    steps = [line for line in str(s.schedule.trace).splitlines() if "outermost" in line or "all_blocks" in line]
    assert [line.partition(" = ")[2] for line in steps] == [
        "s.outermost(b0)",
        "s.outermost(b0)",
        "s.all_blocks(b1, 3)",
        "s.all_blocks(b3, 0)",
    ]
    s.schedule.vectorize(loop)
    assert "vectorized" in str(s.func)


def test_signatures_are_those_of_the_functions_without_what_is_known():
    s = _schedule()
    assert list(inspect.signature(s.schedule.cache_write).parameters) == ["block", "scope", "buffer"]
    assert list(inspect.signature(s["C"].cache_write).parameters) == ["scope", "buffer"]
    assert list(inspect.signature(s["C"].bind).parameters) == ["loop", "thread"]
    assert "Before::" in (s["C"].cache_write.__doc__ or "")


def test_every_primitive_is_a_method_and_a_trace_of_declared_ones_replays():
    assert names(Schedule) < PRIMITIVES
    assert all(callable(getattr(Schedule, name)) for name in PRIMITIVES)
    s = _schedule()
    b = s["B"]
    b.set_scope("local")
    _, inner = s["C"].split(s["C"].loops[1], factor=3)
    s["C"].cache_write("local")
    s["C"].vectorize(inner)
    s["B"].pad(1, 4)
    s["B"].storage_align(0, 16, 1)
    assert isinstance(s["B"].add_unit_loop(), LoopRef)
    Schedule.parallel(s.schedule, s["C"].loops[0])
    other = Schedule(_schedule().func)
    for step in parse_trace(str(s.schedule.trace)).instructions:
        other.execute(step)
    assert str(other.func) == str(s.func) and str(other.trace) == str(s.schedule.trace)


@pytest.mark.parametrize(
    "ask",
    [
        lambda stage: stage.bind("i"),
        lambda stage: stage.vectorize(),
        lambda stage: stage.vectorize("i", "j"),
        lambda stage: stage.cache_write("local", "C", 3),
        lambda stage: stage.set_scope(to="local"),
        lambda stage: stage.set_scope("local", scope="local"),
        lambda stage: stage.compute_inline("C"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(ask):
    s = _schedule()
    stage = s["C"]
    before = str(s.func), s.schedule.trace
    with pytest.raises(ScheduleError, match="the arguments do not fit"):
        ask(stage)
    assert (str(s.func), s.schedule.trace) == before
