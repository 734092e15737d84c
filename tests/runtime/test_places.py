"""Places of temporaries for any sizes: nothing that lives together overlaps, memory is little more than the plan's."""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tests.runtime.programs import ENTRY, affine, compile_text
from tests.runtime.test_arena import check, problems
from tilewright.runtime import engine
from tilewright.runtime.arena import Interval, Plan, least_bytes, plan, temp_intervals
from tilewright.runtime.layout import Memory, function
from tilewright.runtime.model import Model
from tilewright.runtime.native import native
from tilewright.runtime.places import places_table, usual_dims
from tilewright.runtime.specs import SymbolSpec, TempSpec


def placed(temps: list[TempSpec], threads: int, plans: list[Plan], sizes: list[int]) -> Plan:
    """The plan that native code makes of sizes."""
    words = places_table(temps, threads, plans)
    table, passed_, offsets = (Memory(8 * len(words)), Memory(8 * len(sizes)), Memory(8 * len(sizes)))
    table.write(0, words)
    passed_.write(0, sizes)
    place = function(
        native().linked["tw_place"], ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 2
    )
    arena = place(table.address, len(sizes), passed_.address, offsets.address)
    results = tuple(int(v) for v in offsets.words[: len(sizes)])
    return Plan(results, arena, least_bytes(temp_intervals(temps, sizes, threads)))


def temps_of(intervals: list[Interval], threads: list[bool]) -> list[TempSpec]:
    return [TempSpec(x.first, x.last, None, x.alias, own) for x, own in zip(intervals, threads, strict=True)]


@settings(max_examples=150, deadline=None)
@given(problems(), st.data())
def test_right_for_all_sizes(intervals: list[Interval], data: st.DataObject) -> None:
    """Whatever sizes the plans were made for."""
    n = len(intervals)
    each = st.lists(st.integers(0, 3000), min_size=n, max_size=n)
    temps = temps_of(intervals, data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    known = [data.draw(each) for _ in range(2)]
    plans = [plan(temp_intervals(temps, sizes, 2)) for sizes in known]
    for sizes in (*known, data.draw(each)):
        check(temp_intervals(temps, sizes, 2), placed(temps, 2, plans, sizes))
    for own, sizes in zip(plans, known, strict=True):
        assert placed(temps, 2, plans, sizes).arena <= own.arena


def test_what_another_version_needs_stands_where_this_one_has_its_own() -> None:
    """A block lives while two kernels run; the second has workspaces of two versions, of which one is empty."""
    temps = [TempSpec(0, 0), TempSpec(0, 1), *(TempSpec(1, 1) for _ in range(4))]
    one, other = [6400, 640, 3200, 3200, 0, 0], [6400, 640, 0, 0, 3200, 3200]
    known = plan(temp_intervals(temps, one, 1))
    assert known.arena == 7040
    for sizes in (one, other):
        result = placed(temps, 1, [known], sizes)
        check(temp_intervals(temps, sizes, 1), result)
        assert result.arena == 7040, "the second version's stand on top of all"


def test_sizes_to_plan_for() -> None:
    symbols = SymbolSpec("n", 1, 300), SymbolSpec("h", 32, 640, 32), SymbolSpec("t", 1, 9, likely=(3, 5, 7))
    assert usual_dims(symbols) == [(64, 64, 5), (64, 64, 3), (64, 64, 7), (1, 32, 1), (300, 512, 9)]
    assert usual_dims(symbols[:2]) == [(64, 64), (1, 32), (300, 512)]
    assert usual_dims(()) == [()]


def mixer(hidden: int = 64) -> object:
    """Two products of rows and a product of all pairs of rows."""
    rng = np.random.default_rng(0)
    weights = {k: rng.standard_normal((hidden, hidden)).astype(np.float32) / 8 for k in ("a", "b", "c")}
    nodes = [
        node("MatMul", ["x", "a"], ["q"]),
        node("MatMul", ["x", "b"], ["k"]),
        node("Transpose", ["k"], ["kt"], perm=[1, 0]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "x"], ["o"]),
        node("MatMul", ["o", "c"], ["y"]),
    ]
    return model(nodes, [info("x", ["n", hidden])], ["y"], weights)


def test_memory_after_a_trace_is_bounded() -> None:
    """The arena of the largest sizes where these are stated, and a quarter more than the largest call's elsewhere."""
    bounded = tw.compile(mixer(), dims={"n": tw.dim(1, 300)})
    largest = bounded.memory(n=300).arena
    free = tw.compile(mixer())
    for n in range(1, 301):
        for compiled in (bounded, free):
            compiled(np.ones((n, 64), np.float32))
    assert bounded.memory().arenas_held <= largest + 64
    assert free.memory().arenas_held <= 1.25 * free.memory(n=300).arena + 4096


def test_the_largest_arena_is_reserved_unless_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = Model(affine(hi=5000)).memory(n=5000).arena
    for most, whole in ((largest, True), (largest - 1, False)):
        monkeypatch.setattr(engine, "MAX_RESERVED", most)
        model = Model(affine(hi=5000))
        model(np.ones(1, np.float32))
        assert (model.memory().arenas_held >= largest) == whole


def test_middling_sizes_that_need_more_are_reserved_for() -> None:
    """Another version of a kernel may need more memory for usual sizes than the largest sizes need."""
    program = affine(hi=5000)
    fewer = "%few = icmp sle i64 %n, 512\n  %each = select i1 %few, i64 64, i64 4\n  %bytes = mul i64 %n, %each"
    text = ENTRY.replace("%bytes = mul i64 %n, 4", fewer)
    assert text != ENTRY
    model = Model(replace(program, objects={**program.objects, "entry": compile_text(text)}))
    model(np.ones(1, np.float32))
    assert model.memory(n=512).arena > model.memory(n=5000).arena
    assert model.memory().arenas_held >= model.memory(n=512).arena


def test_lengths_that_grow_plan_and_allocate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls never come to Python once there is an arena of their size: not even for new sizes."""
    compiled = tw.compile(mixer(), dims={"n": tw.dim(1, 512)})
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((n, 64)).astype(np.float32) for n in range(1, 513)]
    monkeypatch.setattr(type(compiled._engine), "ensure", None)
    monkeypatch.setattr(type(compiled), "_checked_call", None)
    for x in inputs:
        assert compiled(x).shape == x.shape


def test_arenas_are_as_small_as_those_of_one_size() -> None:
    compiled = tw.compile(mixer())
    for n in (1, 2, 17, 40, 64, 100, 333, 512, 2000):
        result = compiled.memory(n=n)
        best = plan(compiled._engine.intervals((n,)))
        assert result.arena <= 1.05 * best.arena, n


def test_places_of_several_blocks_take_microseconds() -> None:
    """A plan of as many blocks as a large transformer has takes microseconds."""
    temps = [TempSpec(k, k + 3, None) for k in range(400)]
    sizes = [64 * (1 + k * 37 % 50) for k in range(400)]
    plans = [plan(temp_intervals(temps, sizes, 1))] * 3
    start = time.perf_counter()
    result = placed(temps, 1, plans, sizes)
    assert time.perf_counter() - start < 1.0
    check(temp_intervals(temps, sizes, 1), result)
