"""Inspects stores from outside, and removes unused ones."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from tilewright.live.store import files
from tilewright.live.store.epoch import Epoch
from tilewright.live.store.publisher import remove_store, retire
from tilewright.live.store.sums import is_whole
from tilewright.runtime.weights.control import MAX_READERS, SEALED, SLOTS, WRITING, ReaderState, SlotState
from tilewright.support.classes import dataclass
from tilewright.support.errors import StoreError

_STATES = {SEALED: "sealed", WRITING: "being written"}


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The state of a store.

    Attributes:
        publisher: the process that publishes to it; None if there is none.
        problem: why it cannot be used; None if it can.
        version: the newest; -1 if there is none.
        age: seconds since that version was published.
        nbytes: memory that it takes.
        leftovers: folders in it that remain from dead publishers.
        details: as of `Publisher.stats`.
    """

    name: str
    path: Path
    publisher: int | None
    problem: str | None
    version: int
    age: float
    nbytes: int
    readers: tuple[ReaderState, ...]
    leftovers: tuple[str, ...]
    details: dict[str, Any]


def stores(directory: str | os.PathLike[str] | None = None) -> list[StoreInfo]:
    """The state of each store in `directory` (None: the default one), sorted by name; those of other users, and those
    that disappear meanwhile, are left out."""
    root = files.store_root(directory)
    if not root.is_dir():
        return []
    return [candidate for p in sorted(root.iterdir()) if files.is_store(p) for candidate in _look(p.name, directory)]


def _look(name: str, directory: str | os.PathLike[str] | None) -> list[StoreInfo]:
    try:
        return [info(name, directory)]
    except (StoreError, OSError):
        return []  # it went away while we looked, or belongs to another user


def info(name: str, directory: str | os.PathLike[str] | None = None, *, verify: bool = False) -> StoreInfo:
    """The state of the store `name`, in `directory` or the default one. Raises StoreError if there is none.

    Args:
        verify: compare the newest version with its checksum.
    """
    folder = files.store_folder(name, directory)
    if not (folder / "lock").exists():
        raise StoreError("there is no such store", where=f"store {name!r}", got=str(folder))
    files.check_owner(folder)
    problem, readers, details, version, age = None, [], {}, -1, 0.0
    path = files.current_epoch(folder)
    if path is None:
        problem = "no version was published yet"
    else:
        try:
            epoch = Epoch.open(path)
            with contextlib.closing(epoch):
                newest = epoch.control.newest()
                readers = attached(epoch)
                details = describe_epoch(epoch)
                if newest is not None:
                    version, age = newest.version, time.monotonic() - newest.published
                if verify and newest is not None:
                    problem = _mistrust(epoch, newest)
        except (StoreError, OSError) as error:
            problem = str(error)
    left = tuple(p.name for p in files.leftovers(folder))
    publisher = files.publisher_process(folder)
    return StoreInfo(
        name, folder, publisher, problem, version, age, files.nbytes_of(folder), tuple(readers), left, details
    )


def attached(epoch: Epoch) -> list[ReaderState]:
    """The entries of the readers of `epoch` whose processes are alive."""
    return [epoch.control.reader(k) for k in range(MAX_READERS) if epoch.control.reader(k).since and epoch.is_alive(k)]


def _mistrust(epoch: Epoch, newest: SlotState) -> str | None:
    """Why the newest version of an epoch should not be used, as text: its checksum is missing or wrong; None if it is
    right."""
    whole = is_whole(epoch, newest.index)
    if whole is None:
        return f"version {newest.version} has no checksum: its publisher died within milliseconds of publishing it"
    return None if whole else f"version {newest.version} does not match its checksum"


def describe_epoch(epoch: Epoch) -> dict[str, Any]:
    """The state of an open epoch as data for JSON: its program, its newest version's age, the versions in its slots,
    and its readers with the versions that they use."""
    control = epoch.control
    newest = control.newest()
    now = time.monotonic()
    version = newest.version if newest is not None else -1
    slots = [control.slot(k) for k in range(SLOTS)]
    return {
        "epoch": epoch.path.name,
        "program": epoch.manifest.name,
        "structure": epoch.manifest.structure_key,
        "target": epoch.manifest.target.cpu,
        "nbytes": epoch.segments.nbytes,
        "age": now - newest.published if newest is not None else None,
        "wall": newest.wall if newest is not None else None,
        "seconds": newest.spent if newest is not None else None,
        "slots": [
            {
                "state": "current" if newest is not None and s.index == newest.index else _STATES.get(s.state, "free"),
                "version": s.version if s.state == SEALED else None,
            }
            for s in slots
        ],
        "readers": [
            {
                "process": r.process,
                "attached": now - r.since,
                "calls": r.calls,
                "version": r.version if r.calls else None,
                "behind": version - r.version if r.calls else None,
                "pins": list(r.pins),
            }
            for r in attached(epoch)
        ],
    }


@dataclass(frozen=True, slots=True)
class Swept:
    """A file or folder, `path`, that a sweep removed or would remove, and the bytes of memory that it took."""

    path: Path
    nbytes: int


def sweep(
    directory: str | os.PathLike[str] | None = None, name: str | None = None, *, dry: bool = False
) -> list[Swept]:
    """Remove stores that have no publisher, no readers and no broker, and remains of dead publishers in the others.

    Args:
        name: only check this store.
        dry: only list what would be removed.
    """
    root = files.store_root(directory)
    if not root.is_dir():
        return []
    files.check_owner(root)
    folders = [files.store_folder(name, directory)] if name is not None else sorted(root.iterdir())
    results: list[Swept] = []
    for folder in folders:
        if files.is_store(folder):
            with files.if_unowned(folder) as unowned:
                if unowned:
                    results += _sweep(folder, dry)
    return results


def _sweep(folder: Path, dry: bool) -> list[Swept]:
    """Remove what is left over in the store `folder`, which has no publisher, or the whole store if nothing uses it;
    returns what was removed. With `dry` nothing is removed."""
    with files.if_unowned(folder, files.BROKER[1]) as without_broker:
        used = not without_broker or any(_has_readers(path) for path in files.epochs(folder))
    if used:
        left = [Swept(path, files.nbytes_of(path)) for path in files.leftovers(folder)]
        if not dry:
            for swept in left:
                retire(swept.path)
        return left
    whole = Swept(folder, files.nbytes_of(folder))
    if not dry:
        remove_store(folder)
    return [whole]


def _has_readers(path: Path) -> bool:
    try:
        epoch = Epoch.open(path)
    except (StoreError, OSError):
        return False
    with contextlib.closing(epoch):
        return bool(attached(epoch))
