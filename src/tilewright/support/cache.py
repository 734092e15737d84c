"""The on-disk object cache: key -> bytes, for many processes at once, bounded, and never trusted blindly.

An entry is one file, written under a temporary name and renamed, so that a reader sees all of it or nothing. Its header
holds a digest of key and content: an entry that is cut, flipped or foreign reads as absent and is removed, and the next
writer replaces it. Reading touches the file, and what was read longest ago goes first when the bound is passed.

A cache is a convenience: a folder that cannot be used makes every `get` a miss and every `put` a no-op.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import CacheError
from tilewright.support.files import UNFINISHED, write_whole

_MAGIC = b"TWCACHE1"
_DIGEST = 16
"""The length in bytes of the digest that guards an entry."""
_HEADER = len(_MAGIC) + 8 + _DIGEST
"""The number of bytes before an entry's content: magic, length, digest."""
_KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{2,199}")
_PUTS_BETWEEN_SWEEPS = 512
"""The number of entries that a process writes between two sweeps, which limit the cache's size."""
_puts = itertools.count(os.getpid())
"""Counts the entries that this process writes. It starts with a number that differs between processes, so that
processes with few entries also sweep now and then."""
_STALE_SECONDS = 3600.0
"""The age in seconds at which an unfinished entry is considered abandoned by a dead process."""


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """The size of a cache: the number of its entries, and their bytes on disk."""

    entries: int
    bytes: int


class ObjectCache:
    """A cache on disk, in a folder with one file for each entry.

    Args:
        folder: where; `TILEWRIGHT_CACHE_DIR`/objects if None.
        limit: bound in bytes; `TILEWRIGHT_CACHE_SIZE` if None.

    Keys are letters, digits, `_`, `.` and `-`, 3 to 200 of them: use a hexadecimal digest of everything that the
    content depends on.
    """

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self.folder = flags.CACHE_DIR() / "objects" if folder is None else folder
        self.limit = flags.CACHE_SIZE() if limit is None else limit

    def get(self, key: str) -> bytes | None:
        """The bytes stored under `key`. None if there are none, if they are damaged, if caching is turned off, or if
        other users could write to the folder. Raises CacheError for an invalid key."""
        path = self._path(key)
        if not flags.CACHE():
            return None
        try:
            if not _is_private(self.folder):
                return None
            data = _unpack(key, path.read_bytes())
        except OSError:
            return None
        with contextlib.suppress(OSError):
            if data is None:
                path.unlink()
            else:
                os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store `data` under `key`, replacing an existing entry. Does nothing if caching is turned off, if `data`
        exceeds the cache's bound, or if the folder cannot be used. Raises CacheError for an invalid key."""
        path = self._path(key)
        if not flags.CACHE() or len(data) + _HEADER > self.limit:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self.folder):
                return
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, _pack(key, data))
        except OSError:
            return
        # A sweep reads the whole folder, so processes do it seldom; the bound may be passed by what lies between.
        if next(_puts) % _PUTS_BETWEEN_SWEEPS == 0:
            self.sweep()

    def usage(self) -> CacheUsage:
        """The number of entries in the folder and the sum of their bytes at present."""
        sizes = [size for _, size, _ in self._entries()]
        return CacheUsage(len(sizes), sum(sizes))

    def sweep(self) -> None:
        """Remove remains of dead writers, and, if the cache exceeds its bound, the least recently used entries down to
        9/10 of it."""
        total = self.usage().bytes
        if total > self.limit:
            for _, size, path in sorted(self._entries()):
                if total <= self.limit * 9 // 10:
                    break
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    total -= size
        for unfinished in self.folder.glob(f"*/{UNFINISHED}*"):
            with contextlib.suppress(OSError):
                if time.time() - unfinished.stat().st_mtime > _STALE_SECONDS:
                    unfinished.unlink()

    def clear(self) -> CacheUsage:
        """Delete all entries in the folder, which other processes may share; returns their number and bytes."""
        before = self.usage()
        for _, _, path in self._entries():
            with contextlib.suppress(OSError):
                os.unlink(path)
        return before

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise CacheError("not a key", expected="3 to 200 letters, digits, '_', '.' or '-'", got=repr(key))
        return self.folder / key[:2] / key

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """(time of last use, size, path) of each entry. A large cache has several 100,000, so each costs little."""
        for folder in _inside(self.folder):
            for entry in _inside(folder):
                if not entry.name.startswith("."):
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    yield info.st_mtime, info.st_size, entry.path


def _inside(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """The entries of a folder; none if it is no folder or has gone."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_private(folder: Path) -> bool:
    """Whether only this user can write to a folder: entries are code that will run, so that no other folder is used."""
    info = folder.stat()
    return info.st_uid in (0, os.getuid()) and not info.st_mode & stat.S_IWOTH


def _digest(key: str, data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST, key=blake2b(key.encode()).digest()).digest()


def _pack(key: str, data: bytes) -> bytes:
    return _MAGIC + len(data).to_bytes(8, "little") + _digest(key, data) + data


def _unpack(key: str, raw: bytes) -> bytes | None:
    if len(raw) < _HEADER or raw[: len(_MAGIC)] != _MAGIC:
        return None
    length = int.from_bytes(raw[len(_MAGIC) : len(_MAGIC) + 8], "little")
    digest, data = raw[_HEADER - _DIGEST : _HEADER], raw[_HEADER:]
    return data if len(data) == length and _digest(key, data) == digest else None
