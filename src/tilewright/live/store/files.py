"""A store's files: their paths, their permissions, and the locks that show which processes are alive.

    <root>/<name>/              0700
        lock                    held (flock) by the publisher; its process number is the text
        current -> 00000003     a link to the epoch that is in use, exchanged atomically
        broker, broker.lock     what a broker and its agents share, if there is one (`live/broker/`)
        00000003/               an epoch: all versions of one structure
            program.tw          code and constants, without weights
            support/            what else an actor needs compiled, where its own object cache has not got it
            control             the control page; each reader holds a lock on one byte of it
            segments            the slots, one after another

The root is a folder in `tmpfs` that only the user can write to: a process that writes there can make actors run code.
Locks belong to open files (`F_OFD_SETLK`, `flock`): the kernel drops them when their holder dies in any way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tilewright.support import flags
from tilewright.support.errors import StoreError

EPOCH = re.compile(r"[0-9]{8}")
NEW = ".new-"
BROKER = ("broker", "broker.lock")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=:-]{0,127}")


def store_root(directory: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all stores: `directory`, or TILEWRIGHT_STORE_DIR, or /dev/shm/tilewright-<user number>."""
    return Path(directory) if directory is not None else flags.STORE_DIR()


def store_folder(name: str, directory: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a store, which may not exist. Raises StoreError for an invalid name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        expected = "up to 128 letters, digits and _.@+=:-, a letter, digit or _ first"
        raise StoreError("not a name for a store", where=f"store {str(name)[:60]!r}", expected=expected)
    return store_root(directory) / name


def check_owner(path: Path) -> None:
    """Raise StoreError unless a path is a folder, belongs to this user, and no other user (outside of an allowed group)
    may write to it."""
    try:
        result = os.lstat(path)
    except OSError as error:
        raise StoreError(f"cannot be opened: {error.strerror}", where=str(path)) from None
    if not stat.S_ISDIR(result.st_mode):
        raise StoreError("is not a folder", where=str(path), hint="a link is not followed here")
    if result.st_uid not in (os.geteuid(), 0):
        hint = "code that stands in a folder of someone else is not run"
        raise StoreError(
            "belongs to another user", where=str(path), expected=os.geteuid(), got=result.st_uid, hint=hint
        )
    if result.st_mode & stat.S_IWOTH:
        raise StoreError("everybody may write to it", where=str(path), got=oct(stat.S_IMODE(result.st_mode)))


def make_folder(path: Path, mode: int) -> None:
    """Create the folder `path`, and its parent, with the permissions that files of `mode` require. Raises StoreError if
    that fails, or if another user owns or may write one of the two."""
    try:
        for folder in (path.parent, path):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, folder_mode(mode))
                os.chmod(folder, folder_mode(mode))
    except OSError as error:
        raise StoreError(f"cannot be made: {error.strerror}", where=str(path)) from None
    check_owner(path.parent)
    check_owner(path)


def folder_mode(mode: int) -> int:
    """The permissions of a folder whose files have `mode`: search permission wherever there is read permission."""
    return mode | (mode & 0o444) >> 2


# -- the publisher's lock ----------------------------------------------------------------------------------------------


def lock_publisher(folder: Path, mode: int, wait: float) -> int:
    """Become the publisher of the store in `folder`; returns the descriptor of its open, locked file, which has the
    permissions `mode`. Waits up to `wait` seconds for another publisher to end."""
    path = folder / "lock"
    deadline = time.monotonic() + wait
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        except FileNotFoundError:
            make_folder(folder, mode)  # it was swept away meanwhile
            continue
        except OSError as error:
            raise StoreError(f"cannot be locked: {error.strerror}", where=str(path)) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that removed the store removed the file that we have just locked with it.
            if _is_file(file, path):
                os.fchmod(file, mode)
                os.ftruncate(file, 0)
                os.pwrite(file, str(os.getpid()).encode(), 0)
                return file
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(file, 20, 0).decode("ascii", "replace")
                os.close(file)
                hint = "pass wait=seconds to take over when it ends"
                raise StoreError(
                    "another publisher has it", where=f"store {folder.name!r}", got=f"process {holder}", hint=hint
                ) from None
        except OSError as error:  # no room for so much as our number
            os.close(file)
            raise StoreError(f"cannot be locked: {error.strerror}", where=str(path)) from None
        os.close(file)
        time.sleep(0.005)


def _is_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def if_unowned(folder: Path, lock: str = "lock") -> Iterator[bool]:
    """Try to hold the lock of the publisher of the store in `folder` (or another `lock`) during the context; yields
    whether it was free. While it is held, no publisher can start."""
    try:
        file = os.open(folder / lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(file)


def publisher_process(folder: Path) -> int | None:
    """The process number of the current publisher of the store in `folder`; 0 if the lock file does not say; None if no
    process holds the lock."""
    with if_unowned(folder) as unowned:
        if unowned:
            return None
        text = (folder / "lock").read_text("ascii", "replace")
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0


# -- readers' locks ----------------------------------------------------------------------------------------------------

FLOCK = struct.Struct("hhqqi4x")


def lock_reader(file: int, index: int) -> bool:
    """Lock byte `index` for this open file; returns whether no other process holds it."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def is_locked(file: int, index: int) -> bool:
    """Whether another opening of the file, in this or another process, holds a lock on the byte number `index` of
    `file`."""
    answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0))
    return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


# -- epochs ------------------------------------------------------------------------------------------------------------


def current_epoch(folder: Path) -> Path | None:
    """The folder of the current epoch; None if there is no store, or no version in it yet."""
    try:
        target = os.readlink(folder / "current")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", where=f"store {folder.name!r}") from None
    if not EPOCH.fullmatch(target):
        raise StoreError("its link `current` does not name an epoch", where=f"store {folder.name!r}", got=target[:80])
    return folder / target


def new_epoch(folder: Path, mode: int) -> Path:
    """Create a folder, for files of the permissions `mode`, in which an epoch is built, which `install_epoch` then
    installs; returns its path."""
    import tempfile  # here, as `shutil` below: actors start faster without them

    path = Path(tempfile.mkdtemp(prefix=NEW, dir=folder))
    os.chmod(path, folder_mode(mode))
    return path


def install_epoch(folder: Path, built: Path) -> Path:
    """Move the complete epoch `built` to the next number in the store `folder`, make it current, and return its new
    path. After an error, the old one is still current."""
    name = f"{max((int(p.name) for p in epochs(folder)), default=0) + 1:08d}"
    link = folder / f"{NEW}link"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    os.symlink(name, link)
    try:
        os.rename(built, folder / name)
        os.replace(link, folder / "current")
    except BaseException:
        os.unlink(link)
        if not built.exists():
            os.rename(folder / name, built)
        raise
    return folder / name


def is_store(folder: Path) -> bool:
    """Whether a folder is a store, or a broker's folder, of this user."""
    try:
        names = os.listdir(folder)
        lock = os.lstat(folder / next(n for n in ("lock", BROKER[1]) if n in names))
    except (OSError, StopIteration):
        return False
    ours = all(n in ("lock", "current", *BROKER) or n.startswith(NEW) or EPOCH.fullmatch(n) for n in names)
    return ours and stat.S_ISREG(lock.st_mode) and not folder.is_symlink()


def epochs(folder: Path) -> list[Path]:
    """All installed epochs, the current one and superseded ones."""
    return sorted(p for p in folder.iterdir() if EPOCH.fullmatch(p.name))


def leftovers(folder: Path) -> list[Path]:
    """Remains of dead publishers: unfinished epochs, and superseded ones."""
    current = current_epoch(folder)
    begun = [p for p in folder.iterdir() if p.name.startswith(NEW)]
    return sorted(p for p in [*begun, *epochs(folder)] if p != current)


def read_file(path: Path) -> bytes:
    """All bytes of a file. Raises StoreError if it is not a regular file, such as a link to an endless device."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        result = os.fstat(file)
        if not stat.S_ISREG(result.st_mode):
            raise StoreError("is not a file", where=str(path))
        with open(file, "rb", closefd=False) as reader:
            return reader.read(result.st_size)
    finally:
        os.close(file)


def nbytes_of(path: Path) -> int:
    """The bytes of memory that the file `path`, or the folder with all files in it, uses; files that disappear
    meanwhile count 0."""
    total = 0
    for candidate in [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]:
        with contextlib.suppress(OSError):
            total += os.lstat(candidate).st_blocks * 512
    return total


def remove(path: Path) -> None:
    """Delete the file or folder `path` with all that is in it; it is no error if there is none, or if parts of a folder
    cannot be deleted."""
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
