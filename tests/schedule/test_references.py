"""References are to loops and blocks, not to names; what was asked of a stage holds where it is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.schedule.checks import check_schedule
from tilewright import te
from tilewright.ir.loops import For, PrimFunc
from tilewright.ir.notes import Unroll
from tilewright.schedule import Schedule
from tilewright.schedule.stages import Stage, StageSchedule
from tilewright.schedule.state import last_loop, loop_path
from tilewright.support.errors import ScheduleError

Tensors = tuple[te.Tensor, te.Tensor, te.Tensor]


def chain(m: int = 16, n: int = 64) -> Tensors:
    a = te.placeholder((m, n), name="A")
    b = te.compute((m, n), lambda i, j: a[i, j] + 1.0, name="B")
    return a, b, te.compute((m, n), lambda i, j: b[i, j] * 2.0, name="D")


def rows(m: int = 8, n: int = 12, k: int = 20) -> Tensors:
    a = te.placeholder((m, k), name="A")
    r = te.reduce_axis(k, "k")
    b = te.compute((m, n), lambda i, j: te.sum(a[i, r] + te.cast(j, "float32"), r), name="B")
    return a, b, te.compute((m, n), lambda i, j: b[i, j] * 2.0, name="D")


def kind(s: StageSchedule, name: str) -> str:
    return last_loop(loop_path(s.func, name)).kind


def loops_of(s: StageSchedule, stage: Stage) -> list[tuple[str, int | None, str]]:
    results = []
    for ref in stage.loops:
        loop = s.schedule.get(ref)
        assert isinstance(loop, For)
        results.append((loop.var.name, s.schedule.extent(ref), loop.kind))
    return results


def test_a_reference_never_hits_another_stages_loop() -> None:
    _, b, d = chain()
    s = te.create_schedule(d)
    before = s.func
    _, inner = s[b].split(b.axis[1], 8)
    s[b].compute_at(s[d], d.axis[0])
    outer, _ = s[d].split(d.axis[1], 4)
    s[b].vectorize(inner)
    assert kind(s, inner.name) == "vectorized" and inner in s[b].loops and inner not in s[d].loops
    assert all(k == "serial" for _, _, k in loops_of(s, s[d])) and outer in s[d].loops
    check_schedule(before, s.schedule)


def test_a_loop_that_is_gone_says_which_step_took_it() -> None:
    a, b, d = chain()
    e = te.compute((16, 64), lambda i, j: d[i, j] - 3.0, name="E")
    s = te.create_schedule(e)
    i, j = s[b].loops
    block = s[b].block
    s[b].compute_inline()
    copy = s[d].cache_read(a, "global")  # its loops and block have new names, or names that are free again
    for step in (lambda: s.schedule.vectorize(j), lambda: s.schedule.split(i, factor=2), lambda: s[d].unroll(j)):
        with pytest.raises(ScheduleError, match=r"loop '[ij]' is gone: compute_inline\(B\) took it"):
            step()
    with pytest.raises(ScheduleError, match=r"block 'B' is gone: compute_inline\(B\) took it"):
        s.schedule.compute_at(block, s[e].loops[0])
    assert copy.loops


def test_names_that_are_free_once_more_are_other_loops() -> None:
    """A loop that is split leaves its name to loops that are made later: references to it stay references to it."""
    func = _function()
    s = Schedule(func)
    (i,) = s.loops("B")
    s.split(i, factor=4)
    with pytest.raises(ScheduleError, match=r"loop 'i' is gone: split\(i\) took it"):
        s.vectorize(i)
    fused = s.fuse("i_0", "i_1")
    stale = s.loops("B")[0]
    parts = s.split(fused, factor=2)
    with pytest.raises(ScheduleError, match="is gone: split"):
        s.parallel(stale)
    s.vectorize(parts[1])
    check_schedule(func, s)


def _function() -> PrimFunc:
    a = te.placeholder((16,), name="A")
    return te.create_prim_func([a, te.compute((16,), lambda i: a[i] * 2.0, name="B")])


Ask = Callable[[Stage, te.Tensor], Any]


def _split_and_vectorize(stage: Stage, b: te.Tensor) -> None:
    _, inner = stage.split(b.axis[1], 8)
    stage.vectorize(inner)


def _parts(stage: Stage, b: te.Tensor) -> None:
    outer, inner = stage.split(b.axis[1], nparts=4)
    stage.reorder(inner, outer)
    stage.unroll(outer)


def _fused(stage: Stage, b: te.Tensor) -> None:
    outer, inner = stage.split(b.axis[1], 16)
    joined = stage.fuse(b.axis[0], outer)
    stage.parallel(joined)
    stage.vectorize(inner)


def _notes(stage: Stage, b: te.Tensor) -> None:
    stage.annotate(Unroll(4), b.axis[1])
    stage.reorder(b.axis[1], b.axis[0])


def _twice(stage: Stage, b: te.Tensor) -> None:
    outer, inner = stage.split(b.axis[1], 16)
    _, lanes = stage.split(inner, 4)
    stage.vectorize(lanes)
    stage.reorder(outer, b.axis[0])


@pytest.mark.parametrize("ask", [_split_and_vectorize, _parts, _fused, _notes, _twice])
@pytest.mark.parametrize("sizes", [(16, 64), (5, 37)])
def test_what_was_asked_holds_in_any_order(ask: Ask, sizes: tuple[int, int]) -> None:
    """Asked before compute_at or after it: the same loops."""
    texts = []
    for first in (True, False):
        _, b, d = chain(*sizes)
        s = te.create_schedule(d)
        before = s.func
        outer, _ = s[d].split(d.axis[0], 4)
        if first:
            ask(s[b], b)
        s[b].compute_at(s[d], outer)
        if not first:
            ask(s[b], b)
        check_schedule(before, s.schedule)
        texts.append(str(s))
    assert texts[0] == texts[1]


def test_parts_of_a_region() -> None:
    """`factor` keeps the inner extent, `nparts` the outer one."""
    for case, meant in (({"factor": 8}, [2, 8]), ({"nparts": 2}, [2, 8]), ({"nparts": 8}, [8, 2])):
        _, b, d = chain()
        s = te.create_schedule(d)
        s[b].split(b.axis[1], **case)
        _, j, _, _ = s[d].tile(d.axis[0], d.axis[1], 1, 16)
        s[b].compute_at(s[d], j)
        assert [extent for _, extent, _ in loops_of(s, s[b])][-2:] == meant


def test_reductions_keep_theirs() -> None:
    _, b, d = rows()
    s = te.create_schedule(d)
    before = s.func
    k_0, k_1 = s[b].split(b.reduce_axis[0], 4)
    s[b].reorder(k_0, b.axis[0], b.axis[1], k_1)
    s[b].unroll(k_1)
    s[b].vectorize(b.axis[1])
    s[b].compute_at(s[d], d.axis[0])
    names = [name for name, _, _ in loops_of(s, s[b])]
    assert names[1:] == [k_0.name, "i", "j", k_1.name]
    init = s[b].decompose_reduction(k_0)
    assert kind(s, "j") == "vectorized" and kind(s, k_1.name) == "unrolled" and init.loops
    check_schedule(before, s.schedule)


def test_consumers_keep_theirs() -> None:
    _, b, d = chain()
    s = te.create_schedule(d)
    before = s.func
    outer, _ = s[b].split(b.axis[0], 4)
    _, lanes = s[d].split(d.axis[1], 8)
    s[d].vectorize(lanes)
    s[d].reverse_compute_at(s[b], outer)
    assert [(e, k) for _, e, k in loops_of(s, s[d])] == [(4, "serial"), (4, "serial"), (8, "serial"), (8, "vectorized")]
    assert lanes in s[d].loops
    check_schedule(before, s.schedule)


def test_moved_once_more() -> None:
    a, b, d = chain()
    e = te.compute((16, 64), lambda i, j: d[i, j] - 3.0, name="E")
    s = te.create_schedule(e)
    before = s.func
    _, lanes = s[b].split(b.axis[1], 8)
    s[b].vectorize(lanes)
    s[b].compute_at(s[d], d.axis[0])
    _, more = s[b].split(b.axis[0], 1)
    outer, _ = s[e].split(e.axis[0], 4)
    s[d].compute_at(s[e], outer)
    s[b].compute_at(s[d], s[d].loops[-2])
    with pytest.raises(ScheduleError, match="cannot move 'B' to 'j_1' as it is scheduled"):
        s[b].compute_at(s[d], s[d].loops[-1])  # a lane each for one element
    assert kind(s, lanes.name) == "vectorized" and s.schedule.has(more) and lanes in s[b].loops
    assert a.op is None
    check_schedule(before, s.schedule)


def test_axes_are_located_after_a_move() -> None:
    """The loop of an axis that was not split is the stage's own one, not its consumer's."""
    _, b, d = chain()
    s = te.create_schedule(d)
    s[b].compute_at(s[d], d.axis[0])
    s[b].vectorize(b.axis[1])
    s[b].unroll(b.axis[0])  # runs once
    assert kind(s, "j") == "vectorized" and kind(s, "i") == "unrolled" and kind(s, "i_1") == "serial"
    with pytest.raises(ScheduleError, match="cannot split loop 'j': it is already vectorized"):
        s[b].split(b.axis[1], 4)


def test_without_a_history() -> None:
    """A function that was scheduled before: splits are read off its bindings."""
    _, b, d = chain(5, 37)
    first = te.create_schedule(d)
    _, inner = first[b].split(b.axis[1], 8)
    first[b].vectorize(inner)
    s = Schedule(first.func)
    s.compute_at("B", "i_1")
    assert [s.extent(x) for x in s.loops("B")] == [5, 1, 5, 8]
    check_schedule(first.func, s)


def test_a_join_without_a_history() -> None:
    """A join that the bindings do not tell is refused, not forgotten."""
    _, b, d = chain()
    first = te.create_schedule(d)
    first[b].parallel(first[b].fuse(*b.axis))
    s = Schedule(first.func)
    with pytest.raises(ScheduleError, match="its loops are not parts of its iterators"):
        s.compute_at("B", "i_1")
    assert s.func is first.func


REFUSED: dict[str, tuple[Callable[[StageSchedule, te.Tensor, te.Tensor], Any], str]] = {
    "parallel": (
        lambda s, b, d: (s[b].parallel(b.axis[0]), s[d].parallel(d.axis[0])),
        "cannot move 'B' to 'i_1' as it is scheduled: cannot parallelize loop 'i': it is inside parallel 'i_1'",
    ),
    "bound": (
        lambda s, b, d: (s[b].bind(b.axis[1], "threadIdx.x"), s[d].bind(d.axis[0], "threadIdx.x")),
        "as it is scheduled: cannot bind loop 'j' to 'threadIdx.x': loop 'i_1' has it already",
    ),
    "vectorized": (
        lambda s, b, d: (s[b].vectorize(b.axis[1]), s[d].vectorize(d.axis[0])),
        "cannot vectorize loop 'j': loop 'i_1' is vectorized already",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_hold_is_refused(case: str) -> None:
    _, b, d = chain()
    s = te.create_schedule(d)
    ask, message = REFUSED[case]
    ask(s, b, d)
    before = s.func
    with pytest.raises(ScheduleError) as caught:
        s[b].compute_at(s[d], d.axis[0])
    assert message in str(caught.value) and s.func is before
    check_schedule(s.func, Schedule(s.func))


def test_copies_go_their_own_way() -> None:
    func = _function()
    s = Schedule(func)
    (i,) = s.loops("B")
    other = s.copy()
    s.split(i, factor=4)
    other.vectorize(i)
    with pytest.raises(ScheduleError, match="is gone"):
        s.vectorize(i)
    check_schedule(func, s)
    check_schedule(func, other)
