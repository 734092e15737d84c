"""The import of records from an archive, a folder or a file into the service's state, many at once.

Half of a record's bytes are its candidates' times, which no column of the table holds: they are not read here, which
halves the time. A record is checked in full before it is signed (`results.sign`), with the columns that stand here, and
nothing that has no signature comes into a channel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tilewright.farm.state import State
from tilewright.records.archive import contents_of
from tilewright.records.record import MAX_BYTES, content_digest
from tilewright.support.classes import dataclass
from tilewright.support.sql import Row

BLOCK = 5000
"""The number of records in one transaction."""
_FIRST, _DECISION = b'{"about":', b',"decision":"'
HOST = "imported"
"""The host name given to imported records, whose own host this service does not know."""


@dataclass(frozen=True, slots=True)
class Imported:
    """Numbers of records: new ones, those already present, and invalid ones."""

    new: int
    known: int
    damaged: int


def import_records(state: State, source: Path, say: Callable[[str], None] = lambda _: None) -> Imported:
    """Insert the records of `source` (a folder, an archive or a file) into the database, and call `say` with the number
    of records so far, as text. Records that claim a gain count as measured on one host. Raises RecordError if the
    source has no records."""
    new = known = damaged = 0
    contents = contents_of(source)
    while block := list(islice(contents, BLOCK)):
        rows = list(_rows(block, state.clock()))
        with state.database.transaction() as t:
            entered = t.run_all(
                f"INSERT INTO record VALUES ({', '.join('?' * 16)}) ON CONFLICT (digest) DO NOTHING", rows
            )
        new, known, damaged = new + entered, known + len(rows) - entered, damaged + len(block) - len(rows)
        say(f"{new + known} records")
    return Imported(new, known, damaged)


def _rows(contents: Iterable[bytes], now: float) -> Iterator[Row]:
    for content in contents:
        try:
            yield _row(content, now)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue


def _row(content: bytes, now: float) -> Row:
    """The row of the database for a record whose file has the bytes `content`, taken in at time `now` in seconds.
    Raises ValueError, KeyError or TypeError if the file is malformed."""
    if len(content) > MAX_BYTES:
        raise ValueError
    said = _after_candidates(content)
    gain, source = said["gain"], said["made"]
    texts = said["decision"], said["target"], source["compiler"], said["setting"], said["untuned"]
    numbers = float(gain["median"]), float(gain["low"]), float(gain["high"])
    if not all(isinstance(t, str) and len(t) <= MAX_BYTES for t in texts):
        raise ValueError
    state = "tie" if said["setting"] == said["untuned"] else "single-host"
    return (content_digest(content), *texts, *numbers, int(source["time"]), content, "", state, HOST, "", now)


def _after_candidates(content: bytes) -> Any:
    """The fields of a record from its decision on, which in the canonical form are all but `about` and `candidates`.

    They are found by a search for the text of the key: a string contains no quotation mark without a backslash, so that
    what is found is a key. Where it is a key of a nested object, the result is no record that could be signed.
    """
    start = content.rfind(_DECISION)
    if not content.startswith(_FIRST) or start < 0:
        raise ValueError
    return json.loads("{" + content[start + 1 :].decode("ascii"))


__all__ = ["Imported", "import_records"]
