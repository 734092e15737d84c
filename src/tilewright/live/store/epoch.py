"""An open epoch: its program, its control page and its slots, for the publisher or for one reader."""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.live.store.files import is_locked, lock_reader, read_file
from tilewright.live.store.segment import Segments, is_full, no_room, open_control
from tilewright.native.link import keep_support, look_for_support
from tilewright.runtime import artifact
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.program import Program
from tilewright.runtime.weights.control import MAX_READERS, Control
from tilewright.runtime.weights.packed import slot_nbytes, slot_offsets
from tilewright.support.digest import blake2b
from tilewright.support.errors import ArtifactError, StoreError


class Epoch:
    """An open epoch of a weight store: a program, its control page and its slots of packed weights.

    Args:
        path: its folder.
        program: the contents of `program.tw`.
        digest: 16 bytes of that file's digest.
    """

    def __init__(self, path: Path, program: Program, digest: bytes, control: Control, segments: Segments) -> None:
        self.path = path
        self.program = program
        self.digest = digest
        self.control = control
        self.segments = segments
        self._offsets = slot_offsets(program.manifest)
        self._addresses: dict[int, list[int]] = {}
        # A file of its own: closing any other one would not drop the locks that are asked for and held through it.
        try:
            self._locks = os.open(path / "control", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            segments.close_file()
            raise
        self._reader: int | None = None

    @property
    def manifest(self) -> Manifest:
        return self.program.manifest

    @classmethod
    def create(cls, path: Path, program: Program, mode: int) -> Epoch:
        """Create a new epoch for `program`, without a version yet, in the empty folder `path`, with files of the
        permissions `mode`. Raises StoreError if there is no memory."""
        nbytes = slot_nbytes(program.manifest)
        try:
            artifact.write(path / "program.tw", program, 0, code_only=True)
            os.chmod(path / "program.tw", mode & 0o444 | 0o400)
            keep_support(path / "support")
            control = open_control(path / "control", create=True, mode=mode)
            segments = Segments(path / "segments", nbytes, create=True, writable=True, mode=mode)
            file = os.open(path / "control", os.O_RDWR | os.O_CLOEXEC)
            try:
                os.posix_fallocate(file, 0, os.fstat(file).st_size)
            finally:
                os.close(file)
        except ArtifactError as error:
            raise StoreError(f"cannot be written: {error.what}", where=str(path)) from None
        except OSError as error:
            if is_full(error):
                raise no_room(path / "control", nbytes) from None
            raise StoreError(f"cannot be made: {error.strerror}", where=str(path)) from None
        digest = _file_digest(path)
        control.initialize(nbytes, digest)
        return cls(path, program, digest, control, segments)

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> Epoch:
        """The installed epoch in the folder `path`, whose memory may be written if `writable`. Raises FileNotFoundError
        if it has been removed, StoreError if it is damaged."""
        look_for_support(path / "support")
        digest = _file_digest(path)
        try:
            program, _ = artifact.read(path / "program.tw", code_only=True)
        except ArtifactError as error:
            if not path.exists():
                raise FileNotFoundError(path) from None
            raise StoreError(f"its program cannot be used: {error}", where=str(path)) from None
        nbytes = slot_nbytes(program.manifest)
        control = open_control(path / "control")
        control.check(nbytes, digest, str(path / "control"))
        segments = Segments(path / "segments", nbytes, writable=writable)
        return cls(path, program, digest, control, segments)

    def moved(self, path: Path) -> None:
        """Use `path` as the path of the epoch's folder from now on: for a caller that has moved the folder."""
        self.path, self.segments.path = path, path / "segments"

    def addresses(self, slot: int) -> list[int]:
        """The addresses in this process of the parameters that are packed in the slot number `slot`, in the order of
        the manifest's parameters."""
        entry = self._addresses.get(slot)
        if entry is None:
            base = self.segments.slot_address(slot)
            entry = self._addresses[slot] = [base + offset for offset in self._offsets]
        return entry

    # -- readers -------------------------------------------------------------------------------------------------------

    def enter(self) -> int:
        """Register this process as a reader, with a lock that it holds until it closes the epoch; returns the reader's
        number. Raises StoreError if there are as many readers as the epoch can have."""
        for index in range(MAX_READERS):
            if lock_reader(self._locks, index):
                self.control.enter(index, os.getpid())
                self._reader = index
                return index
        raise StoreError(f"{MAX_READERS} readers are attached already", where=str(self.path))

    def reenter(self) -> int:
        """In the child of a fork: register as a reader of its own; the parent's entry and lock stay the parent's."""
        mine = os.open(f"/proc/self/fd/{self._locks}", os.O_RDWR | os.O_CLOEXEC)
        os.close(self._locks)
        self._locks = mine
        return self.enter()

    def is_alive(self, index: int) -> bool:
        """Whether the process of reader `index` is alive."""
        return index == self._reader or is_locked(self._locks, index)

    def close(self) -> None:
        """Stop being a reader or the publisher. Memory is unmapped when no object refers to it any more."""
        if self._locks >= 0:
            os.close(self._locks)
            self._locks = -1
        self.segments.close_file()

    @property
    def deleted(self) -> bool:
        """Whether the epoch's files were deleted, without a notice to its readers in the control page."""
        return self._locks >= 0 and os.fstat(self._locks).st_nlink == 0


def digest_of(program: Program) -> bytes:
    """A 16-byte digest of a program without its weights."""
    h = blake2b(digest_size=16)
    for part in artifact.encode(program, 0, code_only=True):
        h.update(memoryview(part))  # type: ignore[arg-type]
    return h.digest()


def _file_digest(path: Path) -> bytes:
    """The digest of the file `path`, a program of an epoch."""
    return blake2b(read_file(path / "program.tw"), digest_size=16).digest()
