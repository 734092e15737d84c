"""Archives: many records in one file, to be sent, kept or put on a web server.

A gzip file of lines: the first names the format, each other is the content of a record's file. Equal sets of records
give equal archives. Each line is checked like a record's own file; damaged lines are left out.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import IO

from tilewright.records.lookup import index_of
from tilewright.records.record import MAX_BYTES, Record, from_bytes
from tilewright.records.store import Store
from tilewright.support.classes import dataclass
from tilewright.support.collection import uncollected
from tilewright.support.errors import RecordError
from tilewright.support.files import UNFINISHED

GZIP = b"\x1f\x8b"
HEADER = b"tilewright records 1\n"
SUFFIX = ".twr"
READ_BYTES = 1 << 18
BATCH = 500
"""The number of records between two progress messages."""


@dataclass(slots=True)
class Absorbed:
    """The result of an import or a merge: how many records are new, already present, or damaged and why."""

    new: int = 0
    known: int = 0
    damaged: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        damaged = f", {len(self.damaged)} damaged and left out" if self.damaged else ""
        return f"{self.new} new, {self.known} known{damaged}"


def export(records: Iterable[tuple[str, Record]], path: Path) -> int:
    """Write `records`, (digest, record) each, to the archive `path`, which appears whole or not at all; returns their
    number. Raises RecordError if it cannot be written."""
    contents = {digest: record.to_bytes() for digest, record in records}
    temporary = path.parent / f"{UNFINISHED}{os.getpid()}-{path.name}"
    try:
        with open(temporary, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
            file.write(HEADER)
            file.writelines(contents[digest] for digest in sorted(contents))
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RecordError(f"cannot write the archive: {error.strerror}", where=str(path)) from None
    return len(contents)


def take_in(source: Path, store: Store, announce: Callable[[str], None] = lambda _: None) -> Absorbed:
    """Import the records of an archive, a record's file or a store's folder into a store. Raises RecordError if the
    source is none of these."""
    return _absorbed(contents_of(source), store, announce)


def contents_of(source: Path) -> Iterator[bytes]:
    """The unchecked contents of the records in an archive, a record's file or a store's folder. Raises RecordError for
    a source that is none of them or cannot be read."""
    if source.is_dir():
        yield from _contents(Store(source))
        return
    try:
        with open(source, "rb") as file:
            magic = file.read(2)
            file.seek(0)
            if magic != GZIP:
                yield file.read(MAX_BYTES + 1)
            else:
                yield from lines(file, str(source))
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", where=str(source)) from None


def lines(raw: IO[bytes], where: str) -> Iterator[bytes]:
    """The contents of the records in the archive `raw`, one after another. Raises RecordError, about `where`, if it is
    not an archive or is truncated."""
    try:
        with io.BufferedReader(gzip.GzipFile(fileobj=raw, mode="rb"), READ_BYTES) as file:
            header = file.readline(len(HEADER) + 1)
            if header != HEADER:
                hint = "written by a newer version" if header.startswith(HEADER[:-3]) else None
                raise RecordError("no archive of tuning records", where=where, got=repr(header[:40]), hint=hint)
            while line := file.readline(MAX_BYTES + 1):
                yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RecordError(f"the archive is damaged: {error}", where=where) from None


def _contents(store: Store) -> Iterator[bytes]:
    for target in store.classes():
        for digest in sorted(store.digests(target)):
            try:
                with open(store.path(digest, target), "rb") as file:
                    yield file.read(MAX_BYTES + 1)
            except OSError as error:
                raise RecordError(f"cannot be read: {error.strerror}", where=str(store.folder)) from None


@uncollected
def _absorbed(contents: Iterator[bytes], store: Store, announce: Callable[[str], None]) -> Absorbed:
    """Check `contents`, files of records, and write the valid ones to `store`; `announce` is called with a text about
    the progress."""
    from tilewright.records.index import Values, values

    result, rows, there = Absorbed(), dict[str, dict[str, Values]](), dict[str, set[str]]()
    try:
        for content in contents:
            try:
                record = from_bytes(content)
            except RecordError as error:
                result.damaged.append(str(error))
                continue
            if record.target not in there:
                there[record.target], rows[record.target] = store.digests(record.target), {}
            digest, new = store.keep(content, record.target, there=there[record.target])
            there[record.target].add(digest)
            result.new, result.known = result.new + new, result.known + (not new)
            rows[record.target][digest] = values(digest, record)
            if (result.new + result.known) % BATCH == 0:
                announce(f"{result.new + result.known} records")
    finally:
        for target, candidate in rows.items():
            index_of(store, target).add(candidate)
    return result


__all__ = ["SUFFIX", "Absorbed", "contents_of", "export", "take_in"]
