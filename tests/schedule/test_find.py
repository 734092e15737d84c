"""Loops by pattern, primitives of primitives, and what a step changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.schedule.recording import LoopRef
from tilewright.schedule.stages import Stage, StageSchedule
from tilewright.support.errors import ScheduleError


def product() -> tuple[StageSchedule, te.Tensor, te.Tensor, te.Tensor]:
    a, b = te.placeholder((8, 12), name="A"), te.placeholder((12, 16), name="B")
    k = te.reduce_axis((0, 12), name="k")
    c = te.compute((8, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_schedule(c), a, b, c


def names(result: Any) -> list[str]:
    return [x.name for x in result]


def test_loops_and_stages_by_pattern() -> None:
    s, _, _, c = product()
    outer, inner = s[c].split(s.find("for j in _"), factor=4)
    assert s.find("for k in _") == s[c].loops[-1]
    assert names(s.find_all("for j_* in _")) == [outer.name, inner.name]
    assert names(s.find_all("for _ in 4")) == [outer.name, inner.name]
    assert names(s.find_all("for _ in 0..8")) == ["i"]
    s[c].reorder(outer, "i", s.find("for k in _"), inner)
    s[c].vectorize(inner)
    assert s.find("for _ in _ vectorized") == inner
    assert s.find("for _ in _", role="reduce").name == "k"
    assert s.find("for _ in _", c, "spatial", nth=-1) == inner
    stage = s.find("block C")
    assert isinstance(stage, Stage) and stage.name == "C"
    copy = s[c].cache_write("local")
    assert names(s.find_all("block C*")) == ["C", copy.name]
    assert names(s.find_all("for _ in _", copy)) == names(copy.loops)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("for z in _", r"'for z in _' says nothing: expected one loop or stage"),
        ("for _ in _", r"says i, j, k: expected one loop or stage"),
        ("while k", r"'while k' is no pattern"),
        ("", r"'' is no pattern"),
        ("block D", "says nothing"),
    ],
)
def test_what_is_not_located(pattern: str, message: str) -> None:
    s, *_ = product()
    with pytest.raises(ScheduleError, match=message):
        s.find(pattern)
    with pytest.raises(ScheduleError, match="says 3 of them: got nth=3"):
        s.find("for _ in _", nth=3)


def test_a_hint_is_passed_where_it_helps() -> None:
    s, *_ = product()
    with pytest.raises(ScheduleError, match="says i, j, k") as several:
        s.find("for _ in _")
    assert several.value.hint == "name the stage or its role, or say which with nth"
    with pytest.raises(ScheduleError, match="says nothing") as none:
        s.find("block nobody")
    assert none.value.hint is None


@te.primitive
def in_registers(stage: Stage, rows: int, columns: int) -> Stage:
    """The usual tile: summed up in registers, rows unrolled, columns in vectors."""
    copy = stage.cache_write("local")
    _, place, _, _ = copy.tile(*copy.loops, rows, columns)
    stage.compute_at(copy, place)
    i, j, k = stage.loops[-3:]
    stage.reorder(k, i, j)
    init = stage.decompose_reduction(k)
    for part in (init, stage, copy):
        part.unroll(part.loops[-2])
        part.vectorize(part.loops[-1])
    return copy


def test_a_primitive_of_primitives() -> None:
    s, a, b, c = product()
    copy = in_registers(s[c], 4, 8)
    assert copy.name == "C_local"
    x, y = np.random.default_rng(0).standard_normal((8, 12)), np.random.default_rng(1).standard_normal((12, 16))
    z = np.empty((8, 16), np.float32)
    tw.build(s, [a, b, c])(x.astype(np.float32), y.astype(np.float32), z)
    np.testing.assert_allclose(z, x @ y, atol=1e-5)
    text = s.diff()
    assert text.startswith("in_registers\n")
    assert "+  buffer C_local: f32[8, 16] in local" in text and "-          init { C[vi, vj] = 0.0 }" in text
    assert s.schedule.trace.replay(te.create_schedule(c).func).func == s.func


def test_it_is_done_as_a_whole_or_not_at_all() -> None:
    s, _, _, c = product()
    row = s[c].split(c.axis[0], 2)[1]

    @te.primitive
    def too_outer(stage: Stage, loop: LoopRef) -> None:
        stage.split(c.axis[1], 4)
        stage.vectorize(loop)
        stage.parallel(c.reduce_axis[0])

    before, trace = s.func, s.schedule.trace
    with pytest.raises(ScheduleError, match="too_outer: cannot parallelize loop 'k'"):
        too_outer(s[c], row)
    assert s.func == before and s.schedule.trace == trace
    s[c].split(c.axis[1], 4)
    with pytest.raises(ScheduleError, match="axis 'j' of 'C' is gone: split took it"):
        s[c].split(c.axis[1], 4)
    with pytest.raises(ScheduleError, match="in_registers: no stage or schedule: got int"):
        in_registers(3, 4, 8)  # type: ignore[type-var]


def test_the_difference_of_a_step() -> None:
    s, _, _, c = product()
    assert s.diff() == ""
    s[c].vectorize(c.axis[1])
    assert s.diff().splitlines()[0] == "vectorize(j)"
    assert "-    for j in 0..16 {" in s.diff() and "+    for j in 0..16 vectorized {" in s.diff()
