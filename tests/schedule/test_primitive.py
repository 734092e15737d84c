"""Primitives that are declared beside their functions: both methods, what a trace holds, and what is refused."""

from __future__ import annotations

import inspect

import pytest

from tilewright import te
from tilewright.ir.loops import PrimFunc
from tilewright.schedule import Schedule, parse_trace
from tilewright.schedule.primitive import names, on_block, on_block_in_loop
from tilewright.schedule.recording import BlockRef
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


class Extended(Schedule):
    rename = rename
    repeat = repeat


class ExtendedStage(Stage):
    rename = rename
    repeat = repeat


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
