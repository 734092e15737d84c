"""Shared memory that clients on this machine register by name (Triton's extension); off by default.

A key names a file of POSIX shared memory, `/NAME`; other paths are refused. Regions are read and written by `pread` and
`pwrite`, never mapped: a client that truncates its file gets an error, where a mapping would end the server.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass

from tilewright.serve.errors import ServeError, Status

_KEY = re.compile(r"/?[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
MAX_REGIONS = 256


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a file of shared memory that a client has registered. `name`: by which requests mention it; `key`: the
    file's name; `offset` and `size`: the part, in bytes; `file`: the open descriptor."""

    name: str
    key: str
    offset: int
    size: int
    file: int


class Regions:
    """The regions of shared memory that clients have registered, by name.

    Args:
        folder: the folder of shared memory files.
    """

    def __init__(self, folder: str = "/dev/shm") -> None:
        self._folder = folder
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Open the region `name`: `size` bytes from `offset` on of the shared memory with the key `key`. Raises
        ServeError for a name in use, an invalid key, or a file that is too small."""
        where = f"region {name[:60]!r}"
        if name in self._regions:
            raise ServeError("is registered already", where=where)
        if not name or len(name) > 200 or len(self._regions) >= MAX_REGIONS:
            raise ServeError("cannot be registered", where=where, expected=f"a name, and at most {MAX_REGIONS}")
        if not _KEY.fullmatch(key):
            raise ServeError("is no key of shared memory", where=where, expected=_KEY.pattern, got=repr(key)[:60])
        try:
            file = os.open(
                os.path.join(self._folder, key.lstrip("/")), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            )
        except OSError as error:
            raise ServeError(f"cannot be opened: {error.strerror}", where=where) from None
        there = os.fstat(file)
        if not stat.S_ISREG(there.st_mode) or offset < 0 or size < 0 or offset + size > there.st_size:
            os.close(file)
            raise ServeError("does not lie in the memory", where=where, got=f"{offset} + {size} of {there.st_size}")
        self._regions[name] = Region(name, key, offset, size, file)

    def unregister(self, name: str = "") -> None:
        """Close the region `name`, or all regions if `name` is empty; a name that is not registered is ignored."""
        if name and name not in self._regions:
            return
        for key in [name] if name else list(self._regions):
            os.close(self._regions.pop(key).file)

    def status(self, name: str = "") -> list[Region]:
        """The registered region `name`, or all of them if `name` is empty. Raises ServeError for a name that is not
        registered."""
        return [self._get(name)] if name else list(self._regions.values())

    def read(self, name: str, offset: int, size: int) -> bytes:
        """The `size` bytes at `offset` of the region `name`. Raises ServeError if it is not registered, they do not lie
        in it, or the file has become shorter."""
        region = self._within(name, offset, size)
        data = os.pread(region.file, size, region.offset + offset)
        if len(data) != size:
            raise ServeError("the memory has been truncated", where=f"region {name[:60]!r}")
        return data

    def write(self, name: str, offset: int, size: int, data: bytes, where: str) -> int:
        """Write `data` to the `size` bytes at `offset` of the region `name`; returns the number of bytes. Raises
        ServeError if they do not fit; `where` names the output there."""
        region = self._within(name, offset, size)
        if len(data) > size:
            raise ServeError("does not fit its shared memory", where=where, expected=f"{len(data)} bytes", got=size)
        os.pwrite(region.file, data, region.offset + offset)
        return len(data)

    def _within(self, name: str, offset: int, size: int) -> Region:
        region = self._get(name)
        if offset < 0 or size < 0 or offset + size > region.size:
            raise ServeError("does not lie in the region", where=f"region {name[:60]!r}", got=f"{offset} + {size}")
        return region

    def _get(self, name: str) -> Region:
        region = self._regions.get(name)
        if region is None:
            raise ServeError(f"no region {name[:60]!r} is registered", Status.NOT_FOUND)
        return region


__all__ = ["Region", "Regions"]
