"""SQL databases: SQLite files through the standard library, Postgres through psycopg (the extra `farm`).

    db = Database("farm.sqlite")                    or "postgresql://user@host/name"
    with db.reading() as t: ...
    with db.transaction() as t:
        t.run("INSERT INTO job (id, state) VALUES (?, ?)", ("a", "queued"))
        rows = t.rows("SELECT id FROM job WHERE state = ?" + t.locking, ("queued",))

Statements are written once, in the SQL that both understand, with question marks for values. A transaction acquires the
write lock when it begins (SQLite's BEGIN IMMEDIATE), so that no two of them read the same row and both change it; in
Postgres, `locking` after a SELECT locks its rows.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.support.errors import Error, MissingPackageError

PAGE_BYTES = 32 << 10
"""The size of a page of a new SQLite file: records of some KB lie whole on one. A record of 3.8 KB enters in 18 us,
with pages of 4 KiB in 29 us, of 16 KiB in 26 us (processor time of 40,000 records, Zen 3, 2026-11-29)."""
MAPPED_BYTES = 1 << 40
"""The largest number of bytes of its file that SQLite reads through mapped memory, which all processes and threads
share."""
CACHE_KIB = 256 << 10
"""The KiB of memory that a connection to SQLite may use to cache pages: an import of many records writes to pages all
over the file."""
WAIT_SECONDS = 30.0
"""The longest time in seconds that a transaction waits for another one, and a connection for its server."""
Row = tuple[Any, ...]


class DatabaseError(Error):
    """A database that cannot be opened, or that refuses a statement."""


class Transaction:
    """The statements of one transaction. `locking`: text to append to a SELECT whose rows are changed afterwards."""

    def __init__(self, connection: Any, postgres: bool) -> None:
        self._connection = connection
        self._postgres = postgres
        self.locking = " FOR UPDATE SKIP LOCKED" if postgres else ""

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; returns the number of rows that it changed."""
        return int(self._cursor(statement, values).rowcount)

    def run_all(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run a statement once for each row of values; returns the number of rows that it changed."""
        cursor = self._connection.cursor()
        cursor.executemany(_for_postgres(statement) if self._postgres else statement, list(rows))
        return max(0, int(cursor.rowcount))

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """The result rows of a SELECT with `values` in place of its question marks."""
        return [tuple(row) for row in self._cursor(statement, values).fetchall()]

    def row(self, statement: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row of a SELECT with `values` in place of its question marks; None if there is none."""
        row = self._cursor(statement, values).fetchone()
        return None if row is None else tuple(row)

    def _cursor(self, statement: str, values: Sequence[Any]) -> Any:
        text = _for_postgres(statement) if self._postgres else statement
        return self._connection.execute(text, tuple(values))


class Database:
    """A database; every thread has its own connection, which is opened when it is first used.

    A connection closes with `close`, with its thread, or with the last reference to the Database. Drop or close a
    Database before a fork: SQLite keeps its locks by process, so that a child of a process with an open file believes
    that it holds locks that it does not hold, and transactions are lost (https://sqlite.org/howtocorrupt.html, 2.6).

    Args:
        address: path of a SQLite file, on a disk of this machine, or "postgresql://...".

    Raises DatabaseError where it cannot be opened or was opened before a fork, MissingPackageError for Postgres without
    psycopg.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.postgres = is_postgres(address)
        self._own = threading.local()

    def __repr__(self) -> str:
        return f"<Database {shown(self.address)}>"

    def transaction(self) -> contextlib.AbstractContextManager[Transaction]:
        """A context whose statements take effect together, or not at all if it raises an exception."""
        return self._within("BEGIN IMMEDIATE", "")

    def reading(self) -> contextlib.AbstractContextManager[Transaction]:
        """A context for statements that read a consistent state while others write. Statements that write are
        refused."""
        return self._within("BEGIN", "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

    @contextlib.contextmanager
    def _within(self, sqlite: str, postgres: str) -> Iterator[Transaction]:
        connection = self._connection()
        try:
            if not self.postgres:
                connection.execute(f"PRAGMA query_only = {int(sqlite == 'BEGIN')}")
                connection.execute(sqlite)
            elif postgres:
                connection.execute(postgres)
            yield Transaction(connection, self.postgres)
            connection.commit()
        except BaseException as error:
            self._undo(connection)
            if isinstance(error, _errors(self.postgres)):
                raise DatabaseError(f"the database refuses: {_reason(error)}", where=shown(self.address)) from error
            raise

    def script(self, statements: Sequence[str]) -> None:
        """Run statements that create tables, with column types that both databases know."""
        with self.transaction() as t:
            if self.postgres:  # two processes that make the same table at once get an error in one of them
                t.run("SELECT pg_advisory_xact_lock(7465)")
            for statement in statements:
                t.run(statement if self.postgres else statement.replace("BYTEA", "BLOB"))

    def close(self) -> None:
        """Close the calling thread's connection, if it has one; those of other threads stay open. The thread's next
        statement opens another."""
        self._own.open = None

    def _undo(self, connection: Any) -> None:
        try:
            connection.rollback()
        except Exception:  # the connection is gone; the next transaction opens another one
            self._own.open = None

    def _connection(self) -> Any:
        connection = getattr(self._own, "open", None)
        if connection is None or (self.postgres and connection.raw.closed):
            connection = self._own.open = _Connection(self._opened())
        if connection.process != os.getpid():
            raise DatabaseError(
                f"process {os.getpid()} uses a connection that process {connection.process} opened before a fork",
                where=shown(self.address),
                hint="close the Database before the fork, and open one in each process",
            )
        return connection.raw

    def _opened(self) -> Any:
        try:
            return _open_postgres(self.address) if self.postgres else _open_sqlite(self.address)
        except _errors(self.postgres) as error:
            where = shown(self.address)
            raise DatabaseError(f"the database cannot be opened: {_reason(error)}", where=where) from error


class _Connection:
    """A connection that closes with the last reference to it, in the process that opened it. (CPython's own connection
    to SQLite waits for the garbage collector, because its statement cache refers to it.)"""

    __slots__ = ("process", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.process = os.getpid()

    def __del__(self) -> None:
        if self.process == os.getpid():
            with contextlib.suppress(Exception):
                self.raw.close()


def is_postgres(address: str) -> bool:
    """Whether an address is a Postgres server's, not the path of a file."""
    return address.startswith(("postgres://", "postgresql://"))


def shown(address: str) -> str:
    """An address for display, without its password."""
    return re.sub(r"(//[^:/@]*):[^@]*@", r"\1:...@", address)


def _open_sqlite(address: str) -> sqlite3.Connection:
    path = Path(address).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    # It is used by one thread; another one may be the last to refer to it, and closes it.
    connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    # Readers go on while one writes. A process that is killed loses nothing; a loss of power may undo the last commits.
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute(f"PRAGMA mmap_size = {MAPPED_BYTES}")
    return connection


def _open_postgres(address: str) -> Any:
    return _psycopg().connect(address, connect_timeout=int(WAIT_SECONDS), options="-c lock_timeout=30s")


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise MissingPackageError("Postgres needs psycopg", hint="pip install 'tilewright[farm]'") from None
    return psycopg


def _errors(postgres: bool) -> tuple[type[Exception], ...]:
    if not postgres:
        return (sqlite3.Error, OSError)
    return (_psycopg().Error,)


def _reason(error: BaseException) -> str:
    """The message of a database's error on one line, with SQLite's extended error code: there are thirty disk I/O
    errors."""
    code = getattr(error, "sqlite_errorname", None)
    return " ".join(str(error).split()) + (f" ({code})" if code else "")


def _for_postgres(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


__all__ = ["Database", "DatabaseError", "Row", "Transaction", "is_postgres", "shown"]
