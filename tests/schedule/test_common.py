"""Stages in memory that threads share: their size, whatever is said first, and what is refused."""

from __future__ import annotations

import pytest

from tests.codegen.interpret.gpu_schedules import Case, case
from tilewright import te
from tilewright.ir.expr import as_int
from tilewright.ir.loops import Allocate, PrimFunc
from tilewright.ir.rewrite import walk
from tilewright.schedule.stages import StageSchedule
from tilewright.schedule.trace import parse_trace
from tilewright.support.errors import ScheduleError

N = 32


def shifted() -> tuple[StageSchedule, te.Tensor, te.Tensor, list[te.Tensor]]:
    """Differences of neighbours of doubled elements."""
    a = te.placeholder((N + 1,), name="A")
    b = te.compute((N + 1,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((N,), lambda i: b[i] - b[i + 1], name="C")
    return te.create_schedule(c), b, c, [a, c]


def sizes(s: StageSchedule, args: list[te.Tensor]) -> dict[str, list[int | None]]:
    """The shapes of the buffers that the loops allocate, by name."""
    import numpy as np

    flat = Case(s, args, [], [np.zeros(0, np.float32)]).flat()
    return {x.buffer.name: [as_int(n) for n in x.buffer.shape] for x in walk(flat.body) if isinstance(x, Allocate)}


@pytest.mark.parametrize("order", ["scope, bind, move", "move, bind, scope", "scope, move, bind", "bind, move, scope"])
def test_a_stage_that_threads_share_has_what_all_of_them_read(order: str) -> None:
    s, b, c, args = shifted()
    block, lane = s[c].split(c.axis[0], 8)
    steps = {
        "scope": lambda: s[b].set_scope("shared"),
        "bind": lambda: (s[c].bind(block, "blockIdx.x"), s[c].bind(lane, "threadIdx.x")),
        "move": lambda: s[b].compute_at(s[c], lane),
    }
    for step in order.split(", "):
        steps[step]()
    assert sizes(s, args) == {"B": [9]}
    _, inner = s[b].split(s[b].loops[-1], 8)
    s[b].bind(inner, "threadIdx.x")
    assert [str(s.schedule.extent(x)) for x in s[b].loops[-3:]] == ["8", "2", "8"]


def test_a_local_stage_has_one_threads_part() -> None:
    s, b, c, args = shifted()
    _, lane = s[c].split(c.axis[0], 8)
    s[c].bind(lane, "threadIdx.x")
    s[b].set_scope("local")
    s[b].compute_at(s[c], lane)
    assert sizes(s, args) == {"B": [2]}


def test_a_warps_stage_has_what_one_row_of_threads_reads() -> None:
    a = te.placeholder((8, 17), name="A")
    b = te.compute((8, 17), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((8, 16), lambda i, j: b[i, j] - b[i, j + 1], name="C")
    for scope, shape in (("warp", [1, 17]), ("shared", [4, 17]), ("local", [1, 2])):
        s = te.create_schedule(c)
        _, row = s[c].split(c.axis[0], 4)
        s[c].bind(row, "threadIdx.y")
        s[c].bind(c.axis[1], "threadIdx.x")
        s[b].set_scope(scope)
        s[b].compute_at(s[c], c.axis[1])
        assert sizes(s, [a, c]) == {"B": shape}


def test_what_threads_do_not_share_is_not_bound_twice() -> None:
    s, b, c, _ = shifted()
    _, lane = s[c].split(c.axis[0], 8)
    s[c].bind(lane, "threadIdx.x")
    s[b].compute_at(s[c], lane)
    with pytest.raises(ScheduleError, match="has it already"):
        s[b].bind(s[b].loops[-1], "threadIdx.x")


def test_more_iterations_than_threads_are_refused() -> None:
    s, b, c, _ = shifted()
    _, lane = s[c].split(c.axis[0], 8)
    s[c].bind(lane, "threadIdx.x")
    s[b].set_scope("shared")
    s[b].compute_at(s[c], lane)
    with pytest.raises(ScheduleError, match="with fewer iterations: expected at most 8 iterations, got 9"):
        s[b].bind(s[b].loops[-1], "threadIdx.x")


def test_one_threads_part_that_was_changed_is_refused() -> None:
    s, b, c, _ = shifted()
    _, lane = s[c].split(c.axis[0], 8)
    s[b].set_scope("shared")
    s[b].compute_at(s[c], lane)
    s[b].split(s[b].loops[-1], 2)
    with pytest.raises(ScheduleError, match="'B' is one thread's part of what they share"):
        s[c].bind(lane, "threadIdx.x")


@pytest.mark.parametrize("seed", range(8))
def test_traces_replay(seed: int) -> None:
    s = case(seed).schedule
    fresh: PrimFunc = s._first
    assert parse_trace(str(s.schedule.trace)).replay(fresh).func == s.func
