"""An index of one folder of records: finds the records about a decision, and those about decisions of the same form.

It is a SQLite file in this user's cache, derived from the record files and never authoritative: an index that is
missing, damaged or older than its folder is rebuilt, and users of a record read the record's own file. It is written to
a temporary file, renamed, and opened as immutable, so that SQLite takes no locks: the folder of the records may lie on
a network file system, and any number of processes may build its index at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Mapping
from math import log2, sqrt
from pathlib import Path

from tilewright.records.record import Record
from tilewright.records.store import Store
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.files import UNFINISHED

MEMORY = ":memory:"
FORM = 1
"""Version of the tables."""
STABLE_NS = 2_000_000_000
"""The age in nanoseconds from which a folder's modification time is trusted: file systems count time in steps, so that
two changes in quick succession may leave equal times."""
TABLES = """
CREATE TABLE state (folder TEXT, stamp TEXT);
CREATE TABLE record (
    digest TEXT PRIMARY KEY, decision TEXT, form TEXT, dims TEXT, setting TEXT, compiler TEXT, time INTEGER
) WITHOUT ROWID;
CREATE INDEX by_decision ON record (decision);
CREATE INDEX by_form ON record (form);
"""
Values = tuple[str | int, ...]
"""The values of one row of the table."""
_NUMBER = re.compile(r"(?<![A-Za-z_0-9.])(-?\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """The indexed fields of a record."""

    digest: str
    decision: str
    form: str
    dims: tuple[int, ...]
    setting: str
    compiler: str
    time: int


def form_of(about: str) -> tuple[str, tuple[int, ...]]:
    """(form, sizes) of a decision's text `about`: a digest of the text without numbers, and the numbers. Decisions with
    one form differ in sizes only."""
    parts = _NUMBER.split(about)  # texts and the numbers between them, by turns
    form = blake2b("#".join(parts[::2]).encode("utf-8", "replace"), digest_size=8).hexdigest()
    return form, tuple([int(n[:18]) for n in parts[1::2]])


def distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """The distance between two tuples of sizes: the root of the sum of squared base-2 logarithms of their ratios."""
    return sqrt(sum(log2((abs(x) + 1) / (abs(y) + 1)) ** 2 for x, y in zip(a, b, strict=True)))


class Index:
    """The index of the records of one class of machines in a store, usable from any thread.

    Args:
        folder: where indexes are kept; the user's cache if None.
    """

    def __init__(self, store: Store, target: str, folder: Path | None = None) -> None:
        self.store = store
        self.target = target
        where = os.path.abspath(store.class_folder(target))
        name = blake2b(where.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        self._where = where
        self._folder = flags.CACHE_DIR() / "records-index" if folder is None else folder
        self._path = self._folder / f"{name}.sqlite"
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._process = -1
        self._stamp = ""

    def find(self, decision: str) -> list[Row]:
        """The records about a decision."""
        return self._rows("decision", decision)

    def similar(self, about: str) -> list[tuple[float, Row]]:
        """The records about decisions of the same form as this one, with their distances, the nearest sizes first."""
        form, dims = form_of(about)
        rows = [r for r in self._rows("form", form) if len(r.dims) == len(dims)]
        ranked = [(distance(dims, r.dims), r) for r in rows]
        return sorted(ranked, key=lambda pair: (pair[0], -pair[1].time, pair[1].digest))

    @property
    def stamp(self) -> str:
        """A stamp that changes when the folder changes; empty if the folder has changed too recently to tell."""
        return stamp(self._where)

    def refresh(self) -> None:
        """Rebuild the index if its folder has changed."""
        with self._lock:
            now = stamp(self._where)
            if self._db is not None and self._process == os.getpid() and now and now == self._stamp:
                return
            self._open(now, {})

    def add(self, written: Mapping[str, Values]) -> None:
        """Add records whose files were just written, as their `values` by digest, so that no reader has to read those
        files again."""
        with self._lock:
            self._open("", written)

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
            self._db, self._stamp = None, ""

    def _rows(self, column: str, value: str) -> list[Row]:
        with self._lock:
            for _ in range(2):
                try:
                    if self._db is None or self._process != os.getpid():
                        self.refresh()
                    assert self._db is not None
                    result = self._db.execute(f"SELECT * FROM record WHERE {column} = ?", (value,)).fetchall()
                    return [_row(values) for values in result]
                except (sqlite3.Error, ValueError):  # it is damaged: it is made again
                    self.close()
                    _remove(self._path)
        return []

    def _open(self, now: str, written: Mapping[str, Values]) -> None:
        """Open the index file if its stamp is that of the folder, `now`; else rebuild it. `written` has the rows of
        records that were just written."""
        self.close()
        known: set[str] = set()
        opened = _connect(self._path, self._where)
        if opened is not None:
            db, old = opened
            try:
                if now and old == now:
                    self._adopt(db, now)
                    return
                known = {digest for (digest,) in db.execute("SELECT digest FROM record")}
                if not now and known == self.store.digests(self.target):
                    self._adopt(db, now)
                    return
            except sqlite3.Error:
                opened = None
            db.close()
        self._make(opened is not None, known, now, written)
        opened = _connect(self._path, self._where)
        if opened is None:  # there is no place for the file
            opened = _new(MEMORY, self._where), now
            self._fill(opened[0], set(), now, written)
        self._adopt(opened[0], now)

    def _adopt(self, db: sqlite3.Connection, now: str) -> None:
        self._db, self._process, self._stamp = db, os.getpid(), now

    def _make(self, copy: bool, known: set[str], now: str, written: Mapping[str, Values]) -> None:
        """Write the index file with the stamp `now`: existing rows if `copy` (their digests are `known`), plus the rows
        `written` of new records, without removed ones."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=UNFINISHED, dir=self._folder)
            os.close(handle)
        except OSError:
            return
        try:
            if copy:
                shutil.copyfile(self._path, temporary)
            with contextlib.closing(_changing(temporary) if copy else _new(temporary, self._where)) as db:
                self._fill(db, known, now, written)
            os.replace(temporary, self._path)
        except (OSError, sqlite3.Error):
            _remove(Path(temporary))
            _remove(self._path)

    def _fill(self, db: sqlite3.Connection, known: set[str], now: str, written: Mapping[str, Values]) -> None:
        there = self.store.digests(self.target)
        rows = filter(None, (written.get(d) or self._values(d) for d in sorted(there - known)))
        db.executemany("DELETE FROM record WHERE digest = ?", [(digest,) for digest in known - there])
        db.executemany("INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        db.execute("UPDATE state SET stamp = ?", (now,))
        db.commit()

    def _values(self, digest: str) -> Values | None:
        record = self.store.get(digest, self.target)
        return None if record is None else values(digest, record)


def values(digest: str, record: Record) -> Values:
    """The row of the index for `record`, whose file has the digest `digest`."""
    form, dims = form_of(record.about)
    numbers = " ".join(map(str, dims))
    return digest, record.decision, form, numbers, record.setting, record.provenance.compiler, record.provenance.time


def stamp(folder: str) -> str:
    """The time of a folder's last change as text; empty if the folder does not exist, or changed so recently that a
    further change might go unnoticed."""
    try:
        changed = os.stat(folder).st_mtime_ns
    except OSError:
        return ""
    return str(changed) if time.time_ns() - changed > STABLE_NS else ""


def _row(values: tuple[object, ...]) -> Row:
    digest, decision, form, dims, setting, compiler, created = values
    sizes = tuple(map(int, str(dims).split()))
    return Row(str(digest), str(decision), str(form), sizes, str(setting), str(compiler), int(str(created)))


def _changing(path: str) -> sqlite3.Connection:
    """Open the private file `path` for writing, without journal or locks, and return the connection: if writing fails,
    the whole file is dropped."""
    name = path if path == MEMORY else f"{Path(path).absolute().as_uri()}?nolock=1"
    db = sqlite3.connect(name, uri=True, check_same_thread=False)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA synchronous = OFF")
    return db


def _new(path: str, folder: str) -> sqlite3.Connection:
    db = _changing(path)
    db.executescript(TABLES)
    db.execute("INSERT INTO state VALUES (?, '')", (folder,))
    db.execute(f"PRAGMA user_version = {FORM}")
    db.commit()
    return db


def _connect(path: Path, folder: str) -> tuple[sqlite3.Connection, str] | None:
    """(the database in the index file `path`, the stamp in it); None if the file does not exist, is damaged, has
    another version, or is the index of another folder than `folder`."""
    if not path.exists():
        return None
    db: sqlite3.Connection | None = None
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        states = db.execute("SELECT folder, stamp FROM state").fetchall()
        if version == FORM and len(states) == 1 and states[0][0] == folder:
            return db, str(states[0][1])
    except sqlite3.Error:
        pass
    if db is not None:
        db.close()
    _remove(path)
    return None


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
