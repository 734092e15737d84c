"""Traces: text and back, replay on other programs, decisions, and text that is not a trace."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule.checks import check_schedule, copy, matmul
from tilewright.ir.dtype import boolean
from tilewright.ir.expr import Var, const
from tilewright.ir.notes import BufferName, Prefetch
from tilewright.schedule import Instruction, Schedule, Trace, parse_trace
from tilewright.schedule.index_map import IndexMap
from tilewright.schedule.state import conjuncts
from tilewright.schedule.trace import Ref
from tilewright.support.errors import ParseError, ScheduleError


def tiled(seed: int = 3) -> Schedule:
    s = Schedule(matmul(16, 16, 8), seed)
    c = s.block("C")
    i, j, k = s.loops(c)
    i_0, i_1 = s.split(i, factors=s.sample_perfect_tile(i, 2, 8))
    j_0, j_1 = s.split(j, factor=s.sample_categorical([2, 4, 8]))
    s.reorder(i_0, j_0, k, i_1, j_1)
    s.transform_layout(c, lambda x, y: (y // 4, x, y % 4))
    s.annotate(j_1, Prefetch((BufferName('a "quoted" name'),), 64))
    return s


def test_text(golden):
    s = tiled()
    check_schedule(matmul(16, 16, 8), s)
    golden(str(s.trace))


def test_replays_on_another_program():
    trace = parse_trace(str(tiled().trace))
    other = matmul(16, 32, 4)
    check_schedule(other, trace.replay(other))


def test_replay_that_does_not_fit_says_where():
    with pytest.raises(ScheduleError, match="no perfect tile of loop 'i'"):
        tiled().trace.replay(matmul(15, 16, 8))


def test_decisions_can_be_chosen():
    trace = tiled().trace
    positions = list(trace.decisions)
    changed = trace.with_decisions({positions[0]: [4, 4], positions[1]: 2})
    s = changed.replay(matmul(16, 16, 8))
    assert s.extent("i_0") == 4 and s.extent("j_1_1") == 8
    assert s.trace == changed
    check_schedule(matmul(16, 16, 8), s)
    with pytest.raises(ScheduleError, match="takes no decision"):
        trace.with_decisions({0: 1})


def test_a_refused_primitive_leaves_no_instruction():
    s = tiled()
    before = s.trace, s.func
    with pytest.raises(ScheduleError):
        s.parallel("k")
    # Looking the loop up is on record; the primitive is not.
    assert s.func == before[1]
    assert all(i.primitive != "parallel" for i in s.trace.instructions)


def test_simplified_drops_unused_look_ups():
    s = tiled()
    s.loops("D")
    s.block("D")
    trace = s.trace.simplified()
    assert len(trace) == len(s.trace) - 3
    assert trace == trace.simplified()
    assert trace.replay(matmul(16, 16, 8)).func == s.func


def test_copies_are_independent():
    s = tiled()
    other = s.copy()
    other.unroll("i_1")
    assert len(other.trace) > len(s.trace)
    assert s.trace.replay(matmul(16, 16, 8)).func == s.func


@pytest.mark.parametrize(
    "text",
    [
        "b0 = s.block(",
        "b0 = s.block('C')",
        'b0 = t.block("C")',
        's.block("C")(1)',
        "x0 = s.loop(l1)",
        "s.split(l0, factor=8, 4)",
        "s.split(l0, factor=8, factor=4)",
        "s.split(l0, factor=__import__)",
        "s.transform_layout(b0, lambda i: (i + j))",
        "s.transform_layout(b0, lambda i: (i",
        "s.split(" + "[" * 40,
        's.block("C") ; s.block("D")',
        "s.split(l0, factor=1 2)",
        "\x00",
        "s.split(l0, factor=" + "9" * 5000 + ")",
        's.block("\\q")',
        "s.3(l0)",
        "s.split(l0, 3=4)",
    ],
)
def test_rejects(text, golden):
    with pytest.raises(ParseError) as caught:
        parse_trace(text, source="t")
    golden(str(caught.value))


@pytest.mark.parametrize(
    "text",
    [
        's.__init__("x")',
        "s.execute(1)",
        "s.vectorize(l7)",
        's.block("C")',
        's.loops("C", 1, 2)',
        's.split("i", factor="8")',
        's.split("i", factors=8)',
        's.annotate("i", 3, "x")',
        's.annotate("i", "unrol", times=4)',
        's.annotate("i", "unroll", times="4")',
        's.annotate("i", "unroll", times=4, extra=1)',
        's.annotate("i", "single_thread")',
        "s.sample_categorical(3)",
        's.pad("C", 3)',
        "s.reorder(1, 2)",
    ],
)
def test_text_that_parses_but_does_not_fit_is_refused(text):
    with pytest.raises(ScheduleError):
        parse_trace(text).replay(matmul())


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.builds(Ref, st.sampled_from("blv"), st.integers(0, 99))
    | st.just(IndexMap((Var("i"), Var("over")), (Var("over") // 4 + Var("i") * 3, Var("over") % 4))),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
names = st.sampled_from(["split", "factor", "x_1"])
instructions = st.builds(
    Instruction,
    names,
    st.lists(values, max_size=3).map(tuple),
    st.dictionaries(names, values, max_size=2).map(lambda d: tuple(d.items())),
    st.lists(st.builds(Ref, st.sampled_from("blv"), st.integers(0, 99)), max_size=3).map(tuple),
    values,
)


@given(st.lists(instructions, max_size=4))
def test_round_trip(result):
    trace = Trace(tuple(result))
    assert parse_trace(str(trace)) == trace


@given(st.text(alphabet='sbl0123=.,()[]"\\ \nambd:-', max_size=40))
def test_no_text_crashes_the_parser(text):
    with contextlib.suppress(ParseError):
        parse_trace(text)


def test_sampled_tiles_are_whole_and_the_innermost_is_small():
    """Every division of 24 into three whose last part is at most 3 comes up, and no other."""
    seen = set()
    for seed in range(200):
        s = Schedule(copy(24), seed=seed)
        seen.add(tuple(int(f) for f in s.sample_perfect_tile("i", 3, 3)))
    assert seen == {(24 // (b * c), b, c) for c in (1, 2, 3) for b in range(1, 25) if 24 % (b * c) == 0}


def test_conditions_come_separate():
    p, q, r = (Var(n, boolean) for n in "pqr")
    assert conjuncts((p & q) & r) == conjuncts(p & (q & r)) == (p, q, r)
    assert conjuncts(const(True)) == () and conjuncts(const(False)) == (const(False),) and conjuncts(p | q) == (p | q,)


@pytest.mark.parametrize("text", ["(x // (2 + 2), y, x % (2 * (1 + 1)))", "(x // max(4, 2), y + min(0, 1), x % 4)"])
def test_maps_with_parentheses_and_commas_inside(text: str):
    """The text of a map ends at its own parenthesis, its parts at its own commas."""
    trace = parse_trace(f'b0 = s.block("C")\ns.transform_layout(b0, lambda x, y: {text})')
    s = Schedule(matmul(16, 16, 8))
    s.transform_layout("C", lambda x, y: (x // 4, y, x % 4))
    assert trace.replay(matmul(16, 16, 8)).func == s.func
