"""The memory that the ranks of a group share, and how they find each other.

    header      a page: identification, a bell for ranks that sleep, which rank broke the group
    lines       one line for each rank: the number of meetings it has reached, and its calls (`CALL`), two in turn
    windows     two for each rank: the data of an operation that it shows to the others, in turn
    mail        a box for each pair of ranks: one piece of a message

The file is removed once all ranks have opened it, so that nothing remains if they crash. Each rank holds a lock on one
byte of it, which the kernel drops when the process dies, so that the others notice.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tilewright.collective.meeting import HEADER, LINE_SIZE, LINES_AT, PAGE
from tilewright.collective.reductions import Array
from tilewright.live.store.files import is_locked, lock_reader, make_folder, store_folder
from tilewright.runtime.layout import Struct
from tilewright.support.errors import CollectiveError

MAGIC = int.from_bytes(b"TWCOLL01", "little")
ABI = 1
MAX_RANKS = 64
WINDOW = 1 << 19
"""The least bytes that a rank shows at once: two windows for each of two ranks fit into the second or third level of
cache."""
MAX_WINDOW, MAX_WINDOWS = 1 << 21, 1 << 24
"""With three ranks and more, each window costs a barrier, which takes longer than missing the caches: their windows are
larger, up to the first number of bytes each, and the second for all together."""
PIECE = 1 << 16
"""Bytes of a message's piece."""
CALL_AT, CALL_SIZE = 64, 64
"""The offset in a rank's line of the words that encode its call, and their bytes."""
CALL = Struct("operation", "reduction", "dtype", "root", "elements")
BOX = Struct("sent", "nbytes", "tag")
RECEIVED_AT = 128
BOX_HEAD = 256


class Segment:
    """The shared memory of a group's ranks, mapped into this process; the module shows its layout.

    Args:
        file: a descriptor of the group's file.
        ranks: how many ranks the group has.

    Attributes:
        words: the whole memory as i64.
        address: the address of its first byte.
        window: the bytes of a window: the most data that a rank shows to the others at once.
        windows: `windows[turn][rank]`, u8[window]: each rank writes its two windows in turn.
    """

    def __init__(self, file: int, ranks: int) -> None:
        self.file = file
        self.ranks = ranks
        other = os.open(
            f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC
        )  # `mmap` keeps a copy, which would keep locks
        try:
            self.memory = mmap.mmap(other, size_of(ranks))
        finally:
            os.close(other)
        self.words = np.frombuffer(self.memory, np.int64)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.address: int = self.words.ctypes.data
        at = _windows_at(ranks)
        self.window = window_of(ranks)
        windows = self.bytes[at : at + 2 * ranks * self.window].reshape(2, ranks, self.window)
        self.windows = [list(one) for one in windows]
        self._boxes_at = at + 2 * ranks * self.window

    def call_words(self, rank: int, turn: int) -> Array:
        """The words that encode a rank's call, by the fields of `CALL`: a view, i64[5]."""
        at = LINES_AT + rank * LINE_SIZE + CALL_AT + turn * CALL_SIZE
        return self.words[at >> 3 : (at + CALL.size) >> 3]

    def box(self, source: int, target: int) -> int:
        """The byte offset of the mailbox for messages from rank `source` to rank `target`."""
        return self._boxes_at + (source * self.ranks + target) * (BOX_HEAD + PIECE)

    def piece(self, box: int) -> Array:
        """The data of the mailbox at byte offset `box`, u8."""
        return self.bytes[box + BOX_HEAD : box + BOX_HEAD + PIECE]

    def lives(self, rank: int) -> bool:
        """Whether a rank still holds its lock, and so is alive."""
        return is_locked(self.file, rank)

    def close(self) -> None:
        """Release the lock by which other ranks see that this one is alive. The memory stays mapped as long as an array
        refers to it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def window_of(ranks: int) -> int:
    """The bytes that each of `ranks` ranks shows at once, a power of two."""
    if ranks < 3:
        return WINDOW
    return min(MAX_WINDOW, max(WINDOW, 1 << (MAX_WINDOWS // (2 * ranks)).bit_length() - 1))


def size_of(ranks: int) -> int:
    """The bytes of the shared file of a group of `ranks` ranks."""
    return _windows_at(ranks) + 2 * ranks * window_of(ranks) + ranks * ranks * (BOX_HEAD + PIECE)


def _windows_at(ranks: int) -> int:
    return -(-(LINES_AT + ranks * LINE_SIZE) // PAGE) * PAGE


def open_segment(
    name: str, rank: int, ranks: int, deadline: float, directory: str | os.PathLike[str] | None
) -> Segment:
    """The memory of the group `name` of `ranks` ranks, in which this process takes rank `rank`. The rank that comes
    first makes it; `unlink` it when all have come. Waits for a lock until `deadline`, on the monotonic clock.

    Raises CollectiveError if another number of ranks is expected there, the rank is taken, or there is no room, and
    StoreError if the name cannot be one, or the folder is not the user's own.
    """
    path = path_of(name, directory)
    make_folder(path.parent, 0o600)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with _alone(file, path, deadline):
                if os.path.exists(path) and os.path.samestat(os.fstat(file), os.stat(path)):
                    _prepare(file, ranks, path)
                    if not lock_reader(file, rank):
                        raise CollectiveError(
                            "another process has this rank", where=f"group {name!r}", got=f"rank {rank}"
                        )
                    return Segment(file, ranks)
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # it was removed meanwhile: a group of this name has just begun


def path_of(name: str, directory: str | os.PathLike[str] | None) -> Path:
    """The path of the file by which the ranks of the group `name` find each other."""
    folder = store_folder(name, directory)
    return folder.parent / "groups" / folder.name


@contextmanager
def _alone(file: int, path: Path, deadline: float) -> Iterator[None]:
    """A context that holds the exclusive lock of `file`. Raises CollectiveError, about `path`, if another process still
    holds it after `deadline`, on the monotonic clock."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise CollectiveError("another process does not let go of it", where=str(path)) from None
            time.sleep(0.001)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _prepare(file: int, ranks: int, path: Path) -> None:
    """Write the header of the shared file `file` for `ranks` ranks if it is new or all of its ranks have died; else
    check that its header states this version and number of ranks. Raises CollectiveError, which names `path`, if it
    does not."""
    size = size_of(ranks)
    head = os.pread(file, HEADER.size, 0)
    if len(head) == HEADER.size and any(is_locked(file, other) for other in range(MAX_RANKS)):
        magic, abi, stated, count = struct.unpack_from("<4q", head)
        if (magic, abi) != (MAGIC, ABI):
            raise CollectiveError("this is not the memory of a group of this version", where=str(path))
        if (count, stated) != (ranks, size) or os.fstat(file).st_size != size:
            raise CollectiveError("ranks do not agree on their number", where=str(path), expected=count, got=ranks)
        return
    try:
        os.ftruncate(file, 0)
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        what = f"there is no room for what ranks share: {error.strerror}"
        raise CollectiveError(what, where=str(path), expected=f"{size} bytes") from None
    os.pwrite(file, struct.pack("<6q", MAGIC, ABI, size, ranks, window_of(ranks), 0), 0)


__all__ = [
    "BOX",
    "BOX_HEAD",
    "CALL",
    "MAX_RANKS",
    "PIECE",
    "RECEIVED_AT",
    "WINDOW",
    "Segment",
    "open_segment",
    "path_of",
    "window_of",
]
