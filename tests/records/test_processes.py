"""Many processes on one folder: nothing is lost, no process waits for a lock, and who is killed leaves no half record.

`make test` runs a small part, `make tune-stress` all of it.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.records.samples import PROVENANCE, ZEN4, record, target_class
from tilewright.records.index import Index
from tilewright.records.record import Record
from tilewright.records.store import Store

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
PROCESSES = 32
EACH = 1000 if LONG else 12
KILLS = 200 if LONG else 10
ZEN = target_class(ZEN4)
FORK = multiprocessing.get_context("fork")


def numbered(number: int) -> Record:
    """One of any number of records about ten decisions."""
    return replace(record(1 + number % 10), provenance=replace(PROVENANCE, time=number))


def _write(folder: Path, process: int, start: float) -> None:
    """This process's own records, some that all write, and now and then a look."""
    time.sleep(max(0.0, start - time.time()))
    store, index = Store(folder / "s"), Index(Store(folder / "s"), ZEN, folder / "i")
    for number in range(EACH):
        store.put(numbered(1000 + process * EACH + number), durable=False)
        store.put(numbered(number % 7), durable=False)
        if number % (EACH // 3) == 0:
            index.refresh()
            assert index.find(record(1).decision) is not None


def test_processes_lose_nothing(tmp_path: Path) -> None:
    start = time.time() + 0.3
    running = [FORK.Process(target=_write, args=(tmp_path, k, start)) for k in range(PROCESSES)]
    for process in running:
        process.start()
    for process in running:
        process.join(600)
    assert [p.exitcode for p in running] == [0] * PROCESSES
    store = Store(tmp_path / "s")
    expected = {numbered(n).digest for n in [*range(7), *range(1000, 1000 + PROCESSES * EACH)]}
    assert store.digests(ZEN) == expected
    assert store.leftovers() == []
    index = Index(store, ZEN, tmp_path / "i")
    index.refresh()
    assert {row.digest for k in range(10) for row in index.find(record(1 + k).decision)} == expected


def _hold(path: Path, ready: object, done: object) -> None:
    with open(path, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        ready.set()  # type: ignore[attr-defined]
        done.wait()  # type: ignore[attr-defined]


def test_no_lock_is_selected(tmp_path: Path) -> None:
    """Where a mount has no locks, or a process holds them for ever, records are found and the index is made anew."""
    store = Store(tmp_path / "s")
    store.put(record(1))
    index = Index(store, ZEN, tmp_path / "i")
    index.refresh()
    (path,) = (tmp_path / "i").iterdir()
    ready, done = FORK.Event(), FORK.Event()
    holder = FORK.Process(target=_hold, args=(path, ready, done))
    holder.start()
    assert ready.wait(30)
    try:
        reloaded = Index(store, ZEN, tmp_path / "i")
        assert len(reloaded.find(record(1).decision)) == 1
        store.put(record(2))
        reloaded.refresh()
        assert len(reloaded.find(record(2).decision)) == 1
    finally:
        done.set()
        holder.join()


def _write_until_killed(folder: Path, begin: int, pipe: int) -> None:
    store = Store(folder)
    number = begin
    while True:
        os.write(pipe, f"{store.put(numbered(number))}\n".encode())
        number += 1


@pytest.mark.parametrize("seed", [0])
def test_who_is_killed_leaves_whole_records(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store, told = Store(tmp_path), set[str]()
    for kill in range(KILLS):
        reader, writer = os.pipe()
        process = FORK.Process(target=_write_until_killed, args=(tmp_path, kill << 20, writer))
        process.start()
        os.close(writer)
        time.sleep(rng.uniform(0.005, 0.06))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with open(reader, "rb") as pipe:
            told |= {line.decode().strip() for line in pipe.read().splitlines() if len(line) == 32}
    assert told and told <= store.digests(ZEN)
    for digest in store.digests(ZEN):
        entry = store.get(digest, ZEN)
        assert entry is not None and entry.digest == digest
    assert len(store.digests(ZEN)) <= len(told) + KILLS  # written, not yet told
