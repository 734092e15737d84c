"""The service's state: tables in one SQL database, SQLite or Postgres, and the few settings that are kept in it."""

from __future__ import annotations

import time
from collections.abc import Callable

from tilewright.support.sql import Database, Transaction

FORM = 1
"""The version of the tables."""
TABLES = (
    "CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    # What production runs: programs, their decisions, and totals of each process that counted.
    "CREATE TABLE IF NOT EXISTS workload (name TEXT PRIMARY KEY, structure TEXT NOT NULL, target TEXT NOT NULL,"
    " compiler TEXT NOT NULL, label TEXT NOT NULL, seconds DOUBLE PRECISION NOT NULL, compiles BIGINT NOT NULL,"
    " calls BIGINT NOT NULL, seen DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE IF NOT EXISTS site (workload TEXT NOT NULL, decision TEXT NOT NULL, target TEXT NOT NULL,"
    " about TEXT NOT NULL, program TEXT NOT NULL, setting TEXT NOT NULL, why TEXT NOT NULL, space BIGINT NOT NULL,"
    " share DOUBLE PRECISION NOT NULL, headroom DOUBLE PRECISION NOT NULL, PRIMARY KEY (workload, decision))",
    "CREATE INDEX IF NOT EXISTS site_decision ON site (decision, target)",
    "CREATE TABLE IF NOT EXISTS counted (source TEXT NOT NULL, workload TEXT NOT NULL, compiles BIGINT NOT NULL,"
    " calls BIGINT NOT NULL, PRIMARY KEY (source, workload))",
    # Work: a job is text; its name says what it is, so that planning it twice makes one job.
    "CREATE TABLE IF NOT EXISTS job (name TEXT PRIMARY KEY, kind TEXT NOT NULL, target TEXT NOT NULL,"
    " decision TEXT NOT NULL, compiler TEXT NOT NULL, body TEXT NOT NULL, priority DOUBLE PRECISION NOT NULL,"
    " state TEXT NOT NULL,"
    " tries BIGINT NOT NULL, worker TEXT NOT NULL, host TEXT NOT NULL, avoid TEXT NOT NULL,"
    " lease DOUBLE PRECISION NOT NULL, created DOUBLE PRECISION NOT NULL, finished DOUBLE PRECISION NOT NULL,"
    " spent DOUBLE PRECISION NOT NULL, why TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS job_waiting ON job (state, target, priority)",
    "CREATE INDEX IF NOT EXISTS job_decision ON job (decision, target)",
    "CREATE TABLE IF NOT EXISTS worker (name TEXT PRIMARY KEY, host TEXT NOT NULL, target TEXT NOT NULL,"
    " noise DOUBLE PRECISION NOT NULL, neighbours DOUBLE PRECISION NOT NULL, ghz DOUBLE PRECISION NOT NULL,"
    " state TEXT NOT NULL, why TEXT NOT NULL, seen DOUBLE PRECISION NOT NULL, done BIGINT NOT NULL,"
    " spent DOUBLE PRECISION NOT NULL)",
    # Results: records with what is known of them, and where they are released.
    "CREATE TABLE IF NOT EXISTS record (digest TEXT PRIMARY KEY, decision TEXT NOT NULL, target TEXT NOT NULL,"
    " compiler TEXT NOT NULL, setting TEXT NOT NULL, untuned TEXT NOT NULL, median DOUBLE PRECISION NOT NULL,"
    " low DOUBLE PRECISION NOT NULL, high DOUBLE PRECISION NOT NULL, time BIGINT NOT NULL, content BYTEA NOT NULL,"
    " signature TEXT NOT NULL, state TEXT NOT NULL, host TEXT NOT NULL, job TEXT NOT NULL,"
    " entered DOUBLE PRECISION NOT NULL)",
    "CREATE INDEX IF NOT EXISTS record_decision ON record (decision, target)",
    "CREATE INDEX IF NOT EXISTS record_state ON record (state)",
    "CREATE TABLE IF NOT EXISTS channel (channel TEXT NOT NULL, decision TEXT NOT NULL, target TEXT NOT NULL,"
    " digest TEXT NOT NULL, since DOUBLE PRECISION NOT NULL, PRIMARY KEY (channel, decision, target))",
    "CREATE INDEX IF NOT EXISTS channel_digest ON channel (digest)",
    "CREATE INDEX IF NOT EXISTS channel_target ON channel (channel, target)",
    "CREATE TABLE IF NOT EXISTS stamp (channel TEXT NOT NULL, target TEXT NOT NULL, number BIGINT NOT NULL,"
    " PRIMARY KEY (channel, target))",
    "CREATE TABLE IF NOT EXISTS measurement (name TEXT PRIMARY KEY, structure TEXT NOT NULL, target TEXT NOT NULL,"
    " digests TEXT NOT NULL, body TEXT NOT NULL, entered DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE IF NOT EXISTS history (number BIGINT PRIMARY KEY, time DOUBLE PRECISION NOT NULL, who TEXT NOT NULL,"
    " channel TEXT NOT NULL, action TEXT NOT NULL, decision TEXT NOT NULL, target TEXT NOT NULL, digest TEXT NOT NULL,"
    " why TEXT NOT NULL)",
)


class State:
    """The database with its tables.

    Args:
        address: path of a SQLite file, or a Postgres URL.
        clock: seconds since 1970.
    """

    def __init__(self, address: str, clock: Callable[[], float] = time.time) -> None:
        self.database = Database(address)
        self.clock = clock
        self.database.script(TABLES)
        with self.database.transaction() as t:
            t.run("INSERT INTO setting VALUES ('form', ?) ON CONFLICT (name) DO NOTHING", (str(FORM),))

    def setting(self, name: str) -> str | None:
        """The value stored under a name; None if there is none."""
        with self.database.reading() as t:
            row = t.row("SELECT value FROM setting WHERE name = ?", (name,))
        return None if row is None else str(row[0])

    def store(self, name: str, value: str) -> None:
        """Store a value under a name."""
        with self.database.transaction() as t:
            t.run(
                "INSERT INTO setting VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, value),
            )


def note(
    t: Transaction, now: float, who: str, channel: str, action: str, about: tuple[str, str, str], why: str
) -> None:
    """Write a line of the history: at time `now`, `who` did `action` on `channel`, and why.

    Args:
        about: decision, class of machines and digest of a record; empty texts for none.
    """
    t.run("UPDATE setting SET value = value WHERE name = 'form'")  # one after another
    row = t.row("SELECT COALESCE(MAX(number), 0) + 1 FROM history")
    assert row is not None
    t.run("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (row[0], now, who, channel, action, *about, why))


def touch(t: Transaction, channel: str, target: str) -> None:
    """Count a change of a channel for a class of machines, which tells clients that there is something new."""
    t.run(
        "INSERT INTO stamp VALUES (?, ?, 1) ON CONFLICT (channel, target) DO UPDATE SET number = stamp.number + 1",
        (channel, target),
    )


__all__ = ["State", "note", "touch"]
