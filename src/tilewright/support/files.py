"""Files that appear whole or not at all, for readers and other writers at the same time."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

UNFINISHED = ".tmp-"
"""How the names of files begin that are being written."""


def write_whole(path: Path | str, content: bytes, *, durable: bool = False) -> None:
    """Write `content` under a temporary name in the same folder and rename it, in place of what was there.

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
