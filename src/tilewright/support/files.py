"""Writes files atomically, for readers and other writers at the same time."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNFINISHED = ".tmp-"
"""The prefix of names of unfinished files."""


def write_whole(path: Path | str, content: bytes, *, durable: bool = False) -> None:
    """Replace the file `path` by one with `content`, which is written under a temporary name in the same folder and
    renamed.

    It needs no lock and works on network file systems. Raises OSError, and leaves nothing after.

    Args:
        durable: return only when the content is on the disk, so that it outlives a loss of power.
    """
    temporary = os.path.join(os.path.dirname(path), f"{UNFINISHED}{os.urandom(8).hex()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(handle, rest) :]
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[Any]:
    """A context with a file to write to; at its end the file is flushed to disk and replaces `path`, with the
    permissions of a new file. Devices and pipes, and links to open files such as `/dev/stdout`, are written directly.
    Raises OSError, and leaves no temporary file."""
    import tempfile  # here: who only reads starts faster without it

    path = Path(path)
    if _is_special(path):
        with open(path, "wb") as file:
            yield file
        return
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _is_special(path: Path) -> bool:
    """Whether `path` exists and is neither a regular file nor a folder, or is a link to an open file."""
    try:
        mode = path.stat().st_mode
        while path.is_symlink():
            folder = path.parent.resolve()
            if folder.name == "fd" and folder.is_relative_to("/proc"):
                return True
            path = folder / path.readlink()
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
