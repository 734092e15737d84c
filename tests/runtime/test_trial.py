"""Trials of numbers of threads: which one is taken, when the next trial comes, and that results do not depend on it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tests.runtime.programs import affine, affine_reference
from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.native.assembler import I64, PTR, VOID, Module
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime.call import LAYOUT
from tilewright.runtime.layout import Memory, function
from tilewright.runtime.model import Model
from tilewright.runtime.native import native
from tilewright.runtime.threads import pool, supported
from tilewright.runtime.trial import (
    CALLS,
    EACH,
    MAX_CALLS,
    MEAN,
    RESTING_CALLS,
    SHARE,
    SLOW,
    TRIAL,
    define_trials,
)


class Trials:
    """The native state machine, driven with durations that the test makes up."""

    def __init__(self, most: int) -> None:
        m = Module(host_triple())
        define_trials(m)
        params = [("trial", PTR), ("most", I64)]
        with m.function("turn", I64, params) as (f, values):
            f.ret(f.call(I64, "tw_turn", *values))
        with m.function("note", VOID, [*params, ("took", I64)]) as (f, values):
            f.call(VOID, "tw_note", *values)
            f.ret()
        with m.function("check", VOID, [("trial", PTR), ("took", I64)]) as (f, values):
            f.call(VOID, "tw_check", *values)
            f.ret()
        self.linked = Library({"trials": compile_text(m.text())}, ["turn", "note", "check"])
        self.state = Memory(TRIAL.size)
        self.most = most
        word = ctypes.c_int64
        self._turn = function(self.linked["turn"], word, ctypes.c_void_p, word)
        self._note = function(self.linked["note"], None, ctypes.c_void_p, word, word)
        self._check = function(self.linked["check"], None, ctypes.c_void_p, word)

    def run(self, took: Callable[[int, int], int]) -> list[int]:
        """One trial: the numbers of threads of its calls. `took(threads, call)` is how long each takes."""
        tried: list[int] = []
        while not tried or self.state[TRIAL.wait] == 0:
            threads = self._turn(self.state.address, self.most)
            tried.append(threads)
            self._note(self.state.address, self.most, took(threads, len(tried) - 1))
            assert len(tried) <= 10 * CALLS, "the trial does not end"
        return tried

    def check(self, took: int) -> bool:
        """Whether a call that took so long leads to another trial."""
        self._check(self.state.address, took)
        return self.state[TRIAL.wait] == 0

    @property
    def threads(self) -> int:
        return self.state[TRIAL.threads]


@pytest.mark.parametrize(
    ("most", "times", "best"),
    [
        (2, {2: 600, 1: 1000}, 2),
        (2, {2: 1400, 1: 1000}, 1),
        (2, {2: 950, 1: 1000}, 1),  # not faster by a sixteenth
        (8, {8: 900, 4: 500, 2: 450, 1: 1000}, 2),
        (8, {8: 300, 4: 500, 2: 600, 1: 1000}, 8),
        (6, {6: 500, 3: 400, 1: 1000}, 3),
    ],
)
def test_the_fastest_number_is_selected(most: int, times: dict[int, int], best: int) -> None:
    trials = Trials(most)
    assert trials.run(lambda n, _: times[n]) == [n for n in times for _ in range(CALLS)]
    assert trials.threads == best


def test_two_long_calls_of_each_number_do_not_count() -> None:
    trials = Trials(2)
    trials.run(lambda n, k: 100_000 if k % CALLS in (0, 3) and n == 2 else {2: 600, 1: 1000}[n])
    assert trials.threads == 2


def test_trials_cost_a_small_share_of_the_time() -> None:
    trials = Trials(2)
    trials.run(lambda n, _: {2: 3000, 1: 1000}[n])
    lost = (3000 - 1000) * (CALLS - 2)
    wait = trials.state[TRIAL.wait]
    assert SHARE * lost <= wait * 1000 <= 1.1 * SHARE * (lost + 1000)
    trials.state[TRIAL.wait] = 0
    trials.run(lambda n, _: {2: 600, 1: 1000}[n])
    assert trials.threads == 2, "a later trial finds that the caller has other habits now"


def test_the_next_trial_comes_some_day() -> None:
    trials = Trials(2)
    trials.run(lambda n, _: {2: 50_000, 1: 10}[n])
    assert trials.state[TRIAL.wait] == MAX_CALLS


def test_long_calls_are_tried_once_with_one_thread() -> None:
    trials = Trials(4)
    assert trials.run(lambda n, _: {4: 5_000_000, 1: 15_000_000}[n]) == [4] * CALLS + [1]
    assert trials.threads == 4
    assert trials.state[TRIAL.wait] >= SHARE


def test_one_thread_is_located_where_others_use_the_cores() -> None:
    """Calls of microseconds take milliseconds with two threads if each must wait for a core that others have."""
    trials = Trials(2)
    assert trials.run(lambda n, _: {2: 12_000_000, 1: 25_000}[n]) == [2] * CALLS + [1]
    assert trials.threads == 1
    assert trials.state[TRIAL.wait] == MAX_CALLS


def test_calls_that_become_slow_lead_to_a_trial() -> None:
    trials = Trials(2)
    trials.run(lambda n, _: {2: 600, 1: 1000}[n])
    assert not any(trials.check(took) for took in [2000] * (SLOW - 1) + [700] + [2000] * (SLOW - 1))
    assert trials.check(2000)
    trials.run(lambda n, _: {2: 40_000, 1: 1000}[n])
    assert trials.threads == 1


def test_rare_but_long_waits_lead_to_one_thread() -> None:
    """Another process has a core in turns: most calls are fast, some wait until it is this one's turn again."""
    trials = Trials(2)
    trials.run(lambda n, _: {2: 600, 1: 1000}[n])
    assert not any(trials.check(12_000 if k % MEAN == 7 else 600) for k in range(MEAN))
    assert trials.threads == 2, "on average 956, less than with one"
    assert not any(trials.check(20_000 if k % MEAN == 7 else 600) for k in range(MEAN))
    assert trials.threads == 1
    assert trials.state[TRIAL.wait] == RESTING_CALLS


@pytest.mark.skipif(not supported(), reason="there is no thread pool for this system")
def test_results_are_the_same_during_a_trial_and_after_it() -> None:
    model = Model(affine(), threads=3)
    x = np.random.default_rng(0).standard_normal(10_001).astype(np.float32)
    first, _ = model(x)
    np.testing.assert_allclose(first, affine_reference(x, model.weights["w"]), rtol=1e-5)
    assert all((model(x)[0] == first).all() for _ in range(5 * CALLS))


def _layer(rows: int, columns: int) -> tuple[Graph, dict[str, np.ndarray]]:
    b = GraphBuilder("layer")
    x = b.input("x", TensorType(f32, (const(rows), const(columns))))
    w = b.param("w", TensorType(f32, (const(columns), const(columns))))
    graph = b.finish((ops.emit1(b, "tanh", ops.emit1(b, "matmul", x, w)),))
    return graph, {"w": np.random.default_rng(1).standard_normal((columns, columns)).astype(np.float32)}


@pytest.mark.skipif(not supported(), reason="there is no thread pool for this system")
def test_a_small_program_is_its_callers_alone() -> None:
    """A small program is the very one that is compiled for one thread, and no worker starts for it."""
    graph, weights = _layer(1, 8)
    one, two = (tw.compile((graph, weights), threads=n).program for n in (1, 2))
    assert two.manifest.alone
    assert dict(two.objects) == dict(one.objects)
    assert pool().stop()
    model = tw.compile((graph, weights), threads=2)
    for _ in range(3 * CALLS):
        model(np.ones((1, 8), np.float32))
    assert pool().workers == 0


def test_what_number_of_threads_calls_use_at_present() -> None:
    x = np.ones(10_001, np.float32)
    for threads in (1, 3):
        model = Model(affine(), threads=threads)
        assert model.threads_of(x) == threads
        layout = model._engine._layout((len(x),))
        model._engine._layouts[layout + LAYOUT.threads] = 1
        native().add(model._engine._layouts.address + layout + LAYOUT.users, -1)
        assert model.threads_of(x) == 1
        assert model.threads_of(x[1:]) == threads, "other sizes have trials of their own"


@pytest.mark.skipif(not supported(), reason="there is no thread pool for this system")
def test_one_of_eight_calls_after_a_trial_is_looked_at() -> None:
    x = np.ones(10_001, np.float32)
    model = Model(affine(), threads=2)
    engine, words = model._engine, model._engine._layouts
    layout = engine._layout((len(x),))
    native().add(words.address + layout + LAYOUT.users, -1)
    for threads, looks in ((2, 5), (1, 0)):
        for field, value in ((LAYOUT.wait, 80), (LAYOUT.threads, threads), (LAYOUT.timed, 0), (LAYOUT.best, 1 << 50)):
            words[layout + field] = value
        for _ in range(5 * EACH):
            model(x)
        assert words[layout + LAYOUT.timed] == looks
        assert words[layout + LAYOUT.wait] == 80 - 5 * EACH


def test_a_large_program_is_not() -> None:
    graph, weights = _layer(256, 256)
    assert not tw.compile((graph, weights), threads=1).program.manifest.alone
