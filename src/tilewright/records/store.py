"""A folder of tuning records: one immutable file each, named by its digest, in one folder for each class of machines.

    <folder>/x86_64_znver4_512x32_32768+1048576_5e8f21c0_threads=1/0123456789abcdef0123456789abcdef.json

A file is written under a temporary name and renamed, so that readers see all of it or nothing and no lock is needed:
any number of processes on any number of machines may share a folder, over a network too. Two writers of one record
write the same bytes under the same name. So two folders are merged by taking the union of their files, in any order. A
damaged file is left out, with one warning.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import warnings
from collections.abc import Container, Iterator
from functools import lru_cache
from pathlib import Path

from tilewright.records.record import MAX_BYTES, Record, content_digest, from_bytes
from tilewright.support.errors import RecordError, RecordWarning
from tilewright.support.files import UNFINISHED, write_whole

_FILE = re.compile(r"([0-9a-f]{32})\.json")


@lru_cache(maxsize=64)
def folder_name(target: str) -> str:
    """The name of the folder for a class of machines (named as by `target_class`): different classes have different
    folders."""
    return target.replace("_", "__").replace(" ", "_")


def class_name(folder: str) -> str:
    """The class of machines to which a folder's name belongs."""
    return folder.replace("__", "\0").replace("_", " ").replace("\0", "_")


class Store:
    """A folder of tuning records. Reading needs no write permission, and a folder that does not exist has no
    records."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._told: set[Path] = set()

    def __repr__(self) -> str:
        return f"<Store {self.folder}>"

    def prepare(self, target: str) -> Store:
        """The store on this machine with the records of a class of machines; a store whose records come from elsewhere
        fetches them first."""
        return self

    def put(self, record: Record, *, durable: bool = True) -> str:
        """Store a record and return its digest. Raises RecordError if the folder cannot be written.

        Args:
            durable: return only when it is on the disk; without, many are written faster.
        """
        return self.keep(record.to_bytes(), record.target, durable=durable)[0]

    def keep(
        self, content: bytes, target: str, *, durable: bool = False, there: Container[str] | None = None
    ) -> tuple[str, bool]:
        """Store the content of a record's file, which the caller has checked; return its digest, and whether the record
        is new.

        Args:
            there: the class's `digests` if the caller has listed them: the file system is then not asked for each file.
                Another process that writes the record meanwhile writes equal bytes.
        """
        digest = content_digest(content)
        path = os.path.join(self.folder, folder_name(target), f"{digest}.json")
        try:
            new = (there is not None and digest not in there) or not _holds(path, content)
            if new:
                _write(path, content, durable)
        except OSError as error:
            raise RecordError(f"cannot keep a record: {error.strerror}", where=str(self.folder)) from None
        return digest, new

    def path(self, digest: str, target: str) -> Path:
        """The path of a record's file."""
        return self.class_folder(target) / f"{digest}.json"

    def class_folder(self, target: str) -> Path:
        """The folder of the records of a class of machines."""
        return self.folder / folder_name(target)

    def classes(self) -> tuple[str, ...]:
        """The classes of machines that have records."""
        return tuple(sorted(class_name(name) for name in _names(self.folder) if " threads=" in class_name(name)))

    def digests(self, target: str) -> set[str]:
        """The digests of all records of a class of machines, which are the names of their files."""
        matches = map(_FILE.fullmatch, _names(self.class_folder(target)))
        return {candidate[1] for candidate in matches if candidate is not None}

    def get(self, digest: str, target: str) -> Record | None:
        """One record; None if it has no file or, with a warning, if its file is damaged."""
        path = self.path(digest, target)
        try:
            record = read(path)
            if record.target == target:
                return record
            raise RecordError("lies in the folder of another class of machines", got=record.target)
        except FileNotFoundError:
            return None
        except (RecordError, OSError) as error:
            self._tell(path, error)
            return None

    def records(self, target: str | None = None) -> Iterator[Record]:
        """All records, or those of one class, in the order of their digests."""
        for each in self.classes() if target is None else (target,):
            for digest in sorted(self.digests(each)):
                record = self.get(digest, each)
                if record is not None:
                    yield record

    def find(self, decision: str, target: str) -> tuple[Record, ...]:
        """The records about a decision for a class of machines, the newest first."""
        results = [r for r in self.records(target) if r.decision == decision]
        return tuple(sorted(results, key=lambda r: (r.provenance.time, r.digest), reverse=True))

    def remove(self, digest: str, target: str) -> bool:
        """Remove a record, and return whether there was one."""
        try:
            self.path(digest, target).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise RecordError(f"cannot remove a record: {error.strerror}", where=str(self.folder)) from None
        return True

    def leftovers(self, age: float = 0.0) -> list[Path]:
        """Unfinished files that are at least `age` seconds old, left by writers that died."""
        results = []
        for path in sorted(self.folder.glob(f"*/{UNFINISHED}*")):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime >= age:
                    results.append(path)
        return results

    def _tell(self, path: Path, error: Exception) -> None:
        """Warn that the damaged file `path` is ignored, once for each file."""
        if path not in self._told:
            self._told.add(path)
            what = str(error).replace("\n", " ")
            warnings.warn(f"{path}: the tuning record is left out: {what}", RecordWarning, stacklevel=4)


def read(path: Path) -> Record:
    """The record in a file. Raises RecordError if it is damaged, OSError if it cannot be read."""
    with open(path, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    record = from_bytes(content)
    if content_digest(content) != path.stem:
        raise RecordError("the content is not that of its name", expected=path.stem, got=content_digest(content))
    return record


def _write(path: str, content: bytes, durable: bool) -> None:
    try:
        write_whole(path, content, durable=durable)
    except FileNotFoundError:  # the first record of its class
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_whole(path, content, durable=durable)


def _holds(path: str, content: bytes) -> bool:
    """Whether the file at `path` holds exactly `content`."""
    try:
        with open(path, "rb") as file:
            return file.read(len(content) + 1) == content
    except FileNotFoundError:
        return False


def _names(folder: Path) -> list[str]:
    """The names in a folder; none if it is not there."""
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []
