"""The places where records are looked for: the user's folder, folders and archives of a team, and those in the
package."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Literal

from tilewright.records.store import Store
from tilewright.support import flags
from tilewright.support.errors import RecordError, RecordWarning
from tilewright.support.options import check_option, check_several

Records = Literal["auto"] | str | os.PathLike[str] | Store | Iterable[str | os.PathLike[str] | Store] | None
"""The values of `tw.compile(records=)`: all places, a folder, an https address of an archive, a channel of a tuning
service (`subscription.py`), a store, several of these with the nearest first; None: no records."""

SHIPPED = Path(__file__).parent / "shipped"
"""The records in the package, of common classes of machines."""


def user_store() -> Store:
    """The store in which this user's tuning keeps its records."""
    return Store(flags.CACHE_DIR() / "records")


def stores(records: Records = "auto") -> tuple[Store, ...]:
    """The stores that `records` stands for, the nearest first: the user's, those of TILEWRIGHT_RECORDS, the package's.

    Raises RecordError for a folder that is named by an argument and is not there.
    """
    if records is None:
        return ()
    if isinstance(records, str) and records == "auto":
        named = flags.RECORDS()
        return () if named == ("none",) else (user_store(), *map(_place, named), Store(SHIPPED))
    if isinstance(records, Store):
        return (records,)
    if isinstance(records, str) and ("://" in records or is_channel(records)):
        return (_place(records),)
    if isinstance(records, str | os.PathLike):
        folder = Path(records)
        if not folder.is_dir():
            hint = 'records="auto" looks in all places, records=None (--records none) in none'
            raise RecordError("no such folder of tuning records", where=str(folder), hint=hint)
        return (Store(folder),)
    check_several("records", records, "a folder, several, or None", RecordError)
    records = list(records)
    for each in records:
        check_option("records", each, (str, os.PathLike, Store, list, tuple), "a folder, several, or None", RecordError)
    return tuple(store for each in records for store in stores(each))


def _place(text: str) -> Store:
    """The store of a place named by a text: a folder, an archive on a server, or a channel of a tuning service."""
    if is_channel(text):
        return _channel(text, flags.CACHE_DIR())
    if "://" not in text:
        folder = Path(text).expanduser()
        if not folder.is_dir():
            what = f"{folder}: no such folder of tuning records (environment variable {flags.RECORDS.name})"
            warnings.warn(what, RecordWarning, stacklevel=5)
        return Store(folder)
    from tilewright.records.remote import mirror  # here: who has no server waits for no network library

    return mirror(text)


def is_channel(text: str) -> bool:
    """Whether a place of records is a channel of a tuning service: its address ends with a public key."""
    return "key=" in text.partition("#")[2].split("&", 1)[0] or "&key=" in text.partition("#")[2]


@lru_cache(maxsize=64)
def _channel(text: str, _cache: Path) -> Store:
    from tilewright.records.subscription import Channel  # here, as above

    return Channel(text)


__all__ = ["SHIPPED", "Records", "is_channel", "stores", "user_store"]
