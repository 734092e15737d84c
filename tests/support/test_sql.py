"""Connections to databases: when they close, and what a forked process may not do."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.support.sql import Database, DatabaseError

FILES = Path("/proc/self/fd")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage collection while a test runs."""
    gc.disable()
    yield
    gc.enable()


def opened(path: Path) -> int:
    """How many files of a database this process has open."""
    links = [os.readlink(place) for place in FILES.iterdir() if os.path.lexists(place)]
    return sum(link.startswith(str(path)) for link in links)


def used(path: Path) -> Database:
    """A database with a table of one row."""
    database = Database(str(path))
    database.script(["CREATE TABLE IF NOT EXISTS t (x BIGINT)"])
    with database.transaction() as t:
        t.run("INSERT INTO t VALUES (?)", (1,))
    return database


@pytest.mark.skipif(not FILES.exists(), reason="open files are read from /proc")
def test_a_connection_closes_with_the_last_reference_to_its_database(tmp_path: Path, uncollected: None) -> None:
    """CPython's connection waits for a collection (sqlite3 3.11 to 3.13: its cache of statements refers to it); a
    process that was forked meanwhile shared SQLite's locks by belief, and lost transactions or met a disk I/O error."""
    path = tmp_path / "a.sqlite"
    database = used(path)
    assert opened(path) == 3
    del database
    assert opened(path) == 0


@pytest.mark.skipif(not FILES.exists(), reason="open files are read from /proc")
def test_a_connection_closes_with_its_thread(tmp_path: Path, uncollected: None) -> None:
    path = tmp_path / "a.sqlite"
    database = used(path)
    here = opened(path)
    inside: list[int] = []

    def count() -> None:
        with database.reading() as t:
            assert t.row("SELECT COUNT(*) FROM t") == (1,)
        inside.append(opened(path))

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    del thread
    assert inside[0] > here
    database.close()
    assert opened(path) == 0


def test_a_forked_process_may_not_use_its_parents_connection(tmp_path: Path) -> None:
    database = used(tmp_path / "a.sqlite")
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with database.transaction() as t:
                t.run("INSERT INTO t VALUES (?)", (2,))
        except DatabaseError as error:
            os.write(send, str(error).encode())
        finally:
            os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    with os.fdopen(receive) as text:
        assert "opened before a fork" in text.read()
    with database.reading() as t:
        assert t.row("SELECT COUNT(*) FROM t") == (1,)


def test_an_error_has_its_exact_code(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(DatabaseError, match=r"\(SQLITE_NOTADB\)") as caught:
        used(path)
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
