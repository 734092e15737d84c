"""Jobs shared with forked copies of the process: each is done once, whatever becomes of a copy."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tilewright.support import copies
from tilewright.support.copies import share


def shared(count: int, copied: object, processes: int = 3, pause: float = 0.01) -> tuple[list[int], dict[int, bytes]]:
    """The work of this process, which takes its time, and the results of copies."""
    done: list[int] = []

    def own(k: int) -> None:
        time.sleep(pause)
        done.append(k)

    return done, share(count, own, copied, processes)  # type: ignore[arg-type]


def test_each_job_is_done_by_one_process() -> None:
    here = os.getpid()
    done, created = shared(200, lambda k: f"{k} {os.getpid() != here}".encode())
    assert sorted([*done, *created]) == list(range(200))
    assert created and all(data == f"{k} True".encode() for k, data in created.items())


def test_large_results_arrive_whole() -> None:
    done, created = shared(8, lambda k: bytes([k]) * (1 << 20), processes=2, pause=0.2)
    assert sorted([*done, *created]) == list(range(8)) and created
    assert all(data == bytes([k]) * (1 << 20) for k, data in created.items())


def test_a_copy_that_fails_costs_its_job() -> None:
    def fails(k: int) -> bytes:
        raise ValueError(k)

    done, created = shared(40, fails, processes=2)
    assert not created and len(done) >= 39


def test_a_copy_that_is_killed_costs_its_job() -> None:
    def dies(k: int) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    done, created = shared(40, dies, processes=3)
    assert not created and len(done) >= 38


def test_a_copy_that_hangs_is_passed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MAX_SILENCE", 0.3)

    def hangs(k: int) -> bytes:
        time.sleep(60)
        return b""

    done, created = shared(20, hangs, processes=2)
    assert not created and len(done) == 19


def test_no_copy_is_left_when_a_job_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    pids: list[int] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: ((pid := fork()) and pids.append(pid)) or pid)

    def own(k: int) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        share(50, own, lambda k: time.sleep(60) or b"", 3)  # type: ignore[func-returns-value]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    deadline = time.monotonic() + 10
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < deadline:
        time.sleep(0.01)  # the threads that read from them end when their copies have
    assert len(os.listdir("/proc/self/fd")) <= before


def test_excess_jobs_are_not_shared() -> None:
    assert share(copies.MAX_JOBS + 1, lambda k: None, lambda k: b"", 2) == {}
    assert share(0, lambda k: None, lambda k: b"", 2) == {}
