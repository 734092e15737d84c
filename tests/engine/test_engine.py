"""The dependency engine: random programs against the same lines one by one, every interleaving of its queues, and what
it says when it is used wrongly."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.engine import interleavings, native_push, programs
from tilewright.engine import Engine, Operation, Random, Variable
from tilewright.engine.native import Native, available
from tilewright.support.errors import EngineError

NATIVE = pytest.mark.skipif(not available(), reason="there is no native engine for this system")
"""# any machine: the tests say what both engines give"""
CORES = [False, pytest.param(True, marks=NATIVE)]
QUEUES = [interleavings.PythonQueues, pytest.param(interleavings.NativeQueues, marks=NATIVE)]


@pytest.mark.daily(3)
@pytest.mark.parametrize("native", CORES)
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_random_programs_are_as_if_serial(workers: int, native: bool) -> None:
    with Engine(workers, native=native) as engine:
        for seed in range(100):
            programs.check(engine, seed)


@pytest.mark.parametrize("queues", QUEUES)
def test_all_interleavings_of_short_programs(queues: type[interleavings.Queues]) -> None:
    counted = sum(interleavings.explore(p, 2, queues) for length in (1, 2) for p in interleavings.programs(length, 2))
    counted += sum(interleavings.explore(p, 1, queues) for n in range(1, 6) for p in interleavings.programs(n, 1))
    assert counted > 1000


@pytest.mark.parametrize("queues", QUEUES)
def test_all_interleavings_of_six_operations(queues: type[interleavings.Queues]) -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        program = []
        for _ in range(6):
            use = rng.choice(3, 3, p=[0.3, 0.35, 0.35])
            reads, writes = (frozenset(np.flatnonzero(use == k).tolist()) for k in (1, 2))
            program.append((reads, writes, bool(rng.random() < 0.15)))
        assert interleavings.explore(program, 3, queues) > 6


def test_the_model_checker_notices_a_wrong_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = (frozenset({0}), frozenset[int](), False), (frozenset[int](), frozenset({0}), False)
    interleavings.explore([read, write], 1)

    def forgetful(operation: Operation) -> bool:
        operation._waiting = 0
        for v in operation.writes:
            v._writing = True
        for v in operation.reads:
            v._readers += 1
        return True

    monkeypatch.setattr(interleavings, "enter", forgetful)
    with pytest.raises(AssertionError, match="runs beside"):
        interleavings.explore([read, write], 1)


def test_readers_run_together_and_writers_alone() -> None:
    meeting = threading.Barrier(2, timeout=20)
    with Engine(2) as engine:
        a = engine.variable("a")
        together = [engine.push(meeting.wait, [a]) for _ in range(2)]
        engine.wait(engine.push(lambda: None, writes=[a]))
        assert all(one.done for one in together)


def test_priority_decides_among_those_that_are_ready() -> None:
    order: list[int] = []
    gate = threading.Event()
    with Engine(1) as engine:
        engine.push(gate.wait)
        for priority in (0, 2, 1, 2):
            engine.push(lambda p=priority: order.append(p), priority=priority)
        gate.set()
        engine.wait()
    assert order == [2, 2, 1, 0]


def test_exceptions_travel_with_variables() -> None:
    with Engine(2) as engine:
        a, b, c = (engine.variable(n) for n in "abc")
        engine.push(lambda: 1 / 0, writes=[a])
        skipped = engine.push(lambda: pytest.fail("it must not run"), [a], [b])
        other = engine.push(lambda: 3, [c])
        assert engine.wait(other) == 3
        for target in (a, b, skipped):
            with pytest.raises(ZeroDivisionError):
                engine.wait(target)
        engine.recover(a)
        assert engine.wait(engine.push(lambda: 4, [a])) == 4
        with pytest.raises(ZeroDivisionError):
            engine.wait(b)


def test_deletion_is_a_write() -> None:
    gate = threading.Event()
    with Engine(2) as engine:
        a = engine.variable("a")
        reader = engine.push(gate.wait, [a])
        deletion = engine.delete(a)
        with pytest.raises(EngineError, match="deleted"):
            engine.push(lambda: None, [a])
        assert not deletion.done
        gate.set()
        engine.wait(deletion)
        assert reader.done


def test_random_state_is_a_variable() -> None:
    with Engine(3) as engine:
        random, drawn = Random(7), np.zeros(50)
        for k in range(50):
            engine.push(lambda k=k: drawn.__setitem__(k, random.generator.random()), writes=[random])
        engine.wait()
    np.testing.assert_array_equal(drawn, np.random.default_rng(7).random(50))


def test_views_are_their_array() -> None:
    with Engine(2) as engine:
        x, y = np.zeros((4, 4)), np.zeros(3)
        assert engine.variable_of(x[1:].T) is engine.variable_of(x) is not engine.variable_of(y)
        for _ in range(300):
            engine.wait(engine.push(lambda: None, writes=[np.zeros(1)]))
        assert len(engine._memory) < 150


@pytest.mark.parametrize("workers", [0, 2])
def test_operations_push_others(workers: int) -> None:
    with Engine(workers) as engine:
        a, order = engine.variable(), list[str]()

        def first() -> None:
            engine.push(lambda: order.append("second"), writes=[a])
            order.append("first")

        engine.push(first, writes=[a])
        engine.wait()
        engine.wait(a)
        assert order == ["first", "second"]


def test_waiting_in_an_operation_is_refused() -> None:
    with Engine(1) as engine:
        a = Variable("a")
        with pytest.raises(EngineError, match="may not wait"):
            engine.wait(engine.push(lambda: engine.wait(a), writes=[a]))


def test_waiting_has_a_timeout() -> None:
    gate = threading.Event()
    with Engine(1) as engine:
        one = engine.push(gate.wait)
        for target in (one, None):
            with pytest.raises(TimeoutError):
                engine.wait(target, timeout=0.01)
        gate.set()


def test_wrong_arguments() -> None:
    with pytest.raises(EngineError, match="workers"):
        Engine(-1)
    engine = Engine(1)
    with pytest.raises(EngineError, match="neither read nor written"):
        engine.push(lambda: None, reads=["a"])  # type: ignore[list-item]
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.push(lambda: None)


def test_a_forked_process_has_an_engine_of_its_own() -> None:
    a = Variable()
    assert tw.engine.wait(tw.engine.push(lambda: 5, writes=[a])) == 5
    mine = tw.engine.default()
    child = os.fork()
    if not child:
        try:
            try:
                mine.push(lambda: None)
            except EngineError:
                os._exit(0 if tw.engine.wait(tw.engine.push(lambda: 6)) == 6 else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0


def test_a_recording_is_a_picture_and_a_file(tmp_path: Path) -> None:
    with Engine(2) as engine:
        a = engine.variable()
        with engine.record() as recording:
            engine.push(lambda: time.sleep(0.01), writes=[a], name="load")
            engine.push(lambda: time.sleep(0.01), [a], name="train")
            engine.wait()
        engine.push(lambda: None)
    assert [r.name for r in recording.ran] == ["load", "train"]
    assert recording.ran[1].begin >= recording.ran[0].end
    recording.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == 2
    assert "l" in str(recording) and "t" in str(recording)


@NATIVE
def test_native_operations_are_ordered_like_others() -> None:
    word = np.zeros(1, np.int64)
    with Engine(3) as engine:
        seen = []
        for k in range(200):
            engine.push_native(native_push.library()["tw_increment"], word.ctypes.data, writes=[word])
            if k % 50 == 49:
                engine.push(lambda: seen.append(int(word[0])), [word])
        engine.wait()
        assert seen == [50, 100, 150, 200]
        times, counted = native_push.nanoseconds(engine, 5000)  # pushed by native code
    assert counted == 5000 and times.min() > 0


@pytest.mark.parametrize("native", CORES)
def test_a_native_function_fails_by_its_status(native: bool) -> None:
    statuses = np.array([7, 0], np.int64)
    status = native_push.library()["tw_status"]
    with Engine(2, native=native) as engine:
        a, b = engine.variable("a"), engine.variable("b")
        failing = engine.push_native(status, statuses.ctypes.data, [], [a])
        skipped = engine.push(lambda: pytest.fail("it must not run"), [a], [b])
        for target in (a, b, failing, skipped):
            with pytest.raises(EngineError, match="status 7"):
                engine.wait(target)
        assert failing.done and failing.failure is skipped.failure is a.failure
        explained = engine.push_native(status, statuses.ctypes.data, [], [], explain=lambda s: KeyError(s))
        with pytest.raises(KeyError, match="7"):
            engine.wait(explained)
        engine.recover(a)
        engine.wait(engine.push_native(status, statuses.ctypes.data + 8, [], [a]))
        assert a.failure is None and a.version == 3 and a.idle


@NATIVE
def test_failures_that_nothing_carries_are_forgotten() -> None:
    with Engine(2, native=True) as engine:
        a, b = engine.variable("a"), engine.variable("b")
        engine.push(lambda: 1 / 0, writes=[b])
        for _ in range(700):
            engine.push(lambda: 1 / 0, writes=[a])
            engine.recover(a)
        engine.wait()
        core = engine._core
        assert isinstance(core, Native) and len(core._failures) <= 256 and not core._live
        assert isinstance(b.failure, ZeroDivisionError) and a.failure is None


@NATIVE
def test_operations_of_forty_variables_and_a_variable_of_two_engines() -> None:
    with Engine(2) as one, Engine(2) as other:
        all_of_them = [one.variable() for _ in range(40)]
        assert one.wait(one.push(lambda: 5, all_of_them[:20], all_of_them[20:])) == 5
        gate = threading.Event()
        one.push(gate.wait, writes=[all_of_them[0]])
        with pytest.raises(EngineError, match="another engine"):
            other.push(int, writes=[all_of_them[0]])
        gate.set()
        one.wait()
        other.wait(other.push(int, writes=[all_of_them[0]]))


def product(rows: int, seed: int) -> tuple[tw.Model, Any]:
    w = np.random.default_rng(seed).standard_normal((rows, rows)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        f"product{seed}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", rows])],
        [numpy_helper.from_array(w, "w")],
    )
    return tw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)), w


@pytest.mark.parametrize("native", CORES)
def test_models_are_operations(native: bool) -> None:
    (left, a), (right, b) = product(16, 0), product(16, 1)
    rng = np.random.default_rng(2)
    x, y, z, both = (np.zeros((5, 16), np.float32) for _ in range(4))
    with Engine(2, native=native) as engine:
        for _ in range(20):
            new = rng.standard_normal((5, 16)).astype(np.float32)
            engine.push(lambda new=new: np.copyto(x, new), writes=[x])
            engine.run(left, [x], [y])
            engine.run(right, [x], [z])
            engine.push(lambda: np.add(y, z, out=both), [y, z], [both])
            engine.run(left, [both], [y], name="again")
            engine.wait(y)
            np.testing.assert_allclose(both, new @ a + new @ b, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(y, both @ a, rtol=1e-4, atol=1e-4)
        backwards = np.zeros((16, 5), np.float32).T  # which a call copies
        engine.push(lambda: backwards.fill(1), writes=[backwards])
        engine.run(left, [backwards], [y])
        engine.wait(y)
        np.testing.assert_allclose(y, backwards @ a, rtol=1e-4, atol=1e-4)
        with pytest.raises(tw.Error):
            engine.wait(engine.run(left, [np.zeros((5, 3), np.float32)], [y]))


def test_batches_are_loaded_in_their_order() -> None:
    begun: list[int] = []

    def batches() -> Iterator[int]:
        for k in range(6):
            begun.append(k)
            yield k
        raise ValueError("the file is cut off")

    seen = []
    with pytest.raises(ValueError, match="cut off"):
        for k in tw.engine.loading(batches(), buffered=2):
            seen.append(k)
            assert len(begun) <= k + 4
    assert seen == list(range(6))
    with Engine(1) as engine:
        assert list(tw.engine.loading(range(5), engine=engine)) == list(range(5))
