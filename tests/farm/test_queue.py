"""The queue and what is killed, on SQLite, and on a Postgres server that the test starts (`make farm`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from tests.farm import hostile, kills, postgres
from tilewright.farm.queue import Queue, Wanted
from tilewright.farm.state import State
from tilewright.support.sql import Database, DatabaseError, shown

CLASS = "x86_64 znver4 512x32 32768+1048576 5e8f21c0 threads=1"
POSTGRES = "TILEWRIGHT_POSTGRES" in os.environ


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if not POSTGRES:
        pytest.skip("make farm runs it, with Debian's postgresql")
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "farm.sqlite")
    return postgres.emptied(request.getfixturevalue("server"))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def add(queue: Queue, name: str, priority: float = 1.0, avoid: str = "") -> bool:
    with queue.state.database.transaction() as t:
        return queue.add(t, Wanted(name, "simulate", CLASS, "plan x", "", "{}", priority, avoid))


def test_the_most_urgent_goes_first_and_none_twice(address: str) -> None:
    queue = Queue(State(address))
    assert add(queue, "a", 1.0) and add(queue, "b", 2.0) and not add(queue, "a", 3.0)
    first, second = queue.claim("w", "h", CLASS), queue.claim("w", "h", CLASS)
    assert first is not None and second is not None and (first.name, second.name) == ("b", "a")
    assert queue.claim("w", "h", CLASS) is None and queue.claim("w", "h", "another class threads=1") is None


def test_a_lease_runs_out_and_a_result_counts_once(address: str) -> None:
    clock = Clock()
    queue = Queue(State(address, clock), lease=10.0)
    add(queue, "a")
    first = queue.claim("one", "h", CLASS)
    assert first is not None and queue.claim("two", "h", CLASS) is None
    clock.now += 9.0
    assert queue.renew(first, "one")
    clock.now += 9.0
    assert queue.claim("two", "h", CLASS) is None
    clock.now += 2.0
    second = queue.claim("two", "h", CLASS)
    assert second is not None and second.tries == 2 and not queue.renew(first, "one")
    effects: list[str] = []
    assert queue.finish(first, "one", 5.0, lambda t: effects.append("one") or "")  # late, and the first one
    assert not queue.finish(second, "two", 7.0, lambda t: effects.append("two") or "")
    assert effects == ["one"] and queue.counts() == {"done": 1}
    with queue.state.database.transaction() as t:
        assert t.rows("SELECT worker, spent FROM job") == [("one", 5.0)]


def test_a_job_that_ends_its_workers_fails(address: str) -> None:
    clock = Clock()
    queue = Queue(State(address, clock), lease=10.0, tries=3)
    add(queue, "a")
    for _ in range(3):
        assert queue.claim("w", "h", CLASS) is not None
        clock.now += 11.0
    assert queue.claim("w", "h", CLASS) is None and queue.counts() == {"failed": 1}


def test_an_error_is_tried_elsewhere(address: str) -> None:
    queue = Queue(State(address), tries=2)
    add(queue, "a")
    for state in ("queued", "failed"):
        job = queue.claim("w", "h", CLASS)
        assert job is not None
        queue.fail(job, "w", "no such setting")
        assert queue.counts() == {state: 1}


def test_an_effect_that_fails_undoes_all(address: str) -> None:
    queue = Queue(State(address))
    add(queue, "a")
    job = queue.claim("w", "h", CLASS)
    assert job is not None
    with pytest.raises(ZeroDivisionError):
        queue.finish(job, "w", 1.0, lambda t: str(t.run("DELETE FROM job") // 0))
    assert queue.counts() == {"leased": 1}


def test_another_host_is_wanted(address: str) -> None:
    queue = Queue(State(address))
    add(queue, "a", avoid="first")
    assert queue.claim("w", "first", CLASS) is None and queue.claim("w", "second", CLASS) is not None
    add(queue, "b")  # one whose host is not known yet, on a cluster, takes what anyone may
    assert queue.claim("w", "", CLASS) is not None


def test_a_refused_statement_names_the_database(address: str) -> None:
    with pytest.raises(DatabaseError, match="the database refuses"):
        with Database(address).transaction() as t:
            t.run("INSERT INTO nothing VALUES (?)", (1,))
    assert shown("postgresql://me:secret@host/farm") == "postgresql://me:...@host/farm"


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no database at all, but a text of some length" * 50)
    with pytest.raises(DatabaseError):
        State(str(tmp_path / "x"))


def test_kills(address: str) -> None:
    assert kills.trial(address, decisions=10, points=10, seed=3) == []


def test_hostile_inputs(tmp_path: Path) -> None:
    said = hostile.run(tmp_path, 400, seed=5)
    assert said["records refused"] and not any(name.endswith("followed") for name in said)


def test_reading_changes_nothing_and_waits_for_no_writer(address: str) -> None:
    state, other = State(address), Database(address)
    state.store("a", "1")
    with state.database.transaction() as t:
        t.run("UPDATE setting SET value = '2' WHERE name = 'a'")
        with other.reading() as reader:  # a transaction that writes would wait here
            assert reader.row("SELECT value FROM setting WHERE name = 'a'") == ("1",)
    assert state.setting("a") == "2"
    with pytest.raises(DatabaseError, match="read"), other.reading() as reader:
        reader.run("DELETE FROM setting")
    with other.transaction() as t:
        assert t.run("DELETE FROM setting WHERE name = 'a'") == 1
    other.close()
