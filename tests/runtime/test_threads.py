"""The pool: regions, barriers, several callers, sleep, fork, end."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import numpy as np
import pytest

from tests.runtime.programs import affine, affine_reference, copy16
from tilewright.native.link import Library, compile_text
from tilewright.runtime.layout import function
from tilewright.runtime.model import Model
from tilewright.runtime.threads import check_threads, pool, supported
from tilewright.support.errors import TargetError

pytestmark = pytest.mark.skipif(not supported(), reason="there is no thread pool for this system")

# Each thread adds 1 to its own slot, then, after a barrier, checks that all have done so; `rounds` times.
_JOB = """
declare void @tw_barrier(ptr, i64)
define void @job(ptr %slots, ptr %dims, i64 %tid, i64 %n, ptr %barrier) {
entry:
  %rounds = load i64, ptr %dims
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%k1, %again]
  %mine = getelementptr i64, ptr %slots, i64 %tid
  %v = load atomic i64, ptr %mine monotonic, align 8
  %v1 = add i64 %v, 1
  store atomic i64 %v1, ptr %mine monotonic, align 8
  call void @tw_barrier(ptr %barrier, i64 %n)
  br label %check
check:
  %i = phi i64 [0, %loop], [%i1, %checked]
  %p = getelementptr i64, ptr %slots, i64 %i
  %other = load atomic i64, ptr %p monotonic, align 8
  %same = icmp eq i64 %other, %v1
  br i1 %same, label %checked, label %wrong
wrong:
  %bad = getelementptr i64, ptr %slots, i64 100
  %old = atomicrmw add ptr %bad, i64 1 seq_cst
  br label %checked
checked:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %check, label %again
again:
  call void @tw_barrier(ptr %barrier, i64 %n)
  %k1 = add i64 %k, 1
  %go = icmp slt i64 %k1, %rounds
  br i1 %go, label %loop, label %out
out:
  ret void
}
"""


class Job:
    def __init__(self) -> None:
        self.linked = Library({"job": compile_text(_JOB)}, ["job"], {"tw_barrier": pool().barrier})
        self.call = function(pool().parallel, None, *[ctypes.c_int64] * 4)

    def __call__(self, threads: int, rounds: int) -> list[int]:
        slots = np.zeros(101, np.int64)
        dims = np.array([rounds], np.int64)
        self.call(self.linked["job"], slots.ctypes.data, dims.ctypes.data, threads)
        assert slots[100] == 0, "a barrier let somebody through"
        return slots[:threads].tolist()


@pytest.fixture(scope="module")
def job() -> Job:
    return Job()


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_region(job: Job, threads: int) -> None:
    for _ in range(20):
        assert job(threads, 5) == [5] * threads


def test_no_worker_for_one_thread(job: Job) -> None:
    assert pool().stop()
    job(1, 3)
    model = Model(copy16())
    model(np.zeros(16, np.float32))
    assert pool().workers == 0


def test_one_pool_for_all_models() -> None:
    pool().stop()
    x = np.linspace(0, 1, 1000, dtype=np.float32)
    for threads in (2, 3, 2, 3):
        model = Model(affine(), threads=threads)
        y, _ = model(x)
        np.testing.assert_allclose(y, affine_reference(x, model.weights["w"]), rtol=1e-5)
    assert pool().workers == 2


def test_wakes_after_sleep(job: Job) -> None:
    for _ in range(5):
        time.sleep(0.01)
        assert job(2, 3) == [3, 3]


def test_stop_and_start(job: Job) -> None:
    job(3, 1)
    assert pool().workers >= 2
    assert pool().stop()
    assert pool().workers == 0
    assert job(2, 2) == [2, 2]
    assert pool().workers == 1


def test_concurrent_callers(job: Job) -> None:
    """A caller that finds the pool busy runs alone, as one thread."""
    results: list[list[int]] = []

    def work() -> None:
        for _ in range(50):
            results.append(job(2, 20))

    callers = [threading.Thread(target=work) for _ in range(4)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert len(results) == 200
    assert all(r in ([20, 20], [20, 0]) for r in results)


def test_threads_do_not_change_results() -> None:
    x = np.random.default_rng(0).standard_normal(10_001).astype(np.float32)
    results = [Model(affine(), threads=n)(x)[0] for n in (1, 2, 3)]
    assert all((r == results[0]).all() for r in results)


def test_fork() -> None:
    model = Model(affine(), threads=2)
    x = np.linspace(0, 1, 300, dtype=np.float32)
    expected = model(x)[0]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fresh = pool().workers == 0
            same = all((model(x)[0] == expected).all() for _ in range(10))
            code = 0 if fresh and same and pool().workers == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (model(x)[0] == expected).all()


def test_fork_while_others_call() -> None:
    """Calls that were in flight in other threads leave nothing taken in the child."""
    model = Model(affine())
    x = np.zeros(200_000, np.float32)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            model(x)

    callers = [threading.Thread(target=work) for _ in range(3)]
    for t in callers:
        t.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    model(x)
                    model.update({"w": np.ones((2, 3), np.float32), "scale": np.ones(1, np.float32)})
                    code = 0 if model(x)[1][0] == 1 else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for t in callers:
            t.join()


@pytest.mark.parametrize("threads", [0, -1, 129, 1.0, True, "2", None])
def test_not_a_number_of_threads(threads: object) -> None:
    with pytest.raises(TargetError):
        check_threads(threads)
