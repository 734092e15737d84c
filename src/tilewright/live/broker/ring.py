"""The file that a broker and its agents share: a description, a page of counters, and a slot for every agent.

    0             HEADER and what agents and server signal each other (`native.py`)
    4096          the description: JSON of a `RingSpec`, padded to whole pages
    slots_at      slot 0, slot 1, ...: state, then each input and each output for the most rows of a request

It lies in the weight store's folder, `<root>/<name>/broker`, for its owner alone (0600), and its memory is allocated
before use, so that a full file system is an error and not a signal. Each process holds a lock on one byte of the file,
which the system drops when the process ends: byte 0 is the server's, byte 1 + k that of the agent in slot k.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.live.broker.structs import GROUP_SLOTS, HEADER, MAX_SLOTS, SLOT_DATA
from tilewright.live.store.files import BROKER, FLOCK, NEW, is_locked, lock_reader
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.schema import SchemaError, decode, encode
from tilewright.runtime.specs import Dim, InputSpec, OutputSpec, SymbolSpec, TargetSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import BrokerError, Problems

ABI_VERSION = 1
"""Version of a ring's layout in memory: client and server must agree."""
FILE, LOCK_FILE = BROKER
MAX_ROWS = 4096
"""The most rows of a batch, and of one request."""
_MAGIC = int.from_bytes(b"TWRING\x1a\x01", "little")
_PAGE = 4096
"""Bytes of a page."""
_MAX_TEXT = 1 << 20
"""The most bytes of a ring's description of its inputs and outputs."""
_MAX_BYTES = 1 << 36
"""The most bytes of a ring, and of one array in it."""


@dataclass(frozen=True, slots=True)
class RingTensor:
    """An input or output of the model; the one dimension of `shape` that is a name is the batch."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    @property
    def axis(self) -> int:
        """The position of the batch dimension."""
        return next(k for k, d in enumerate(self.shape) if isinstance(d, str))

    @property
    def outer(self) -> int:
        """The number of elements before the batch axis."""
        return prod(d for d in self.shape[: self.axis] if isinstance(d, int))

    @property
    def inner(self) -> int:
        """The bytes of one row at one index of the dimensions before the batch."""
        return prod(d for d in self.shape[self.axis + 1 :] if isinstance(d, int)) * BY_NAME[self.dtype].itemsize

    @property
    def row_bytes(self) -> int:
        """The bytes of one row of the batch."""
        return self.outer * self.inner


@dataclass(frozen=True, slots=True)
class RingSpec:
    """The description of a ring that agents read: the tensors, the number of agents, and the most rows of a request."""

    name: str
    structure_key: str
    inputs: tuple[RingTensor, ...]
    outputs: tuple[RingTensor, ...]
    slots: int
    rows: int

    @property
    def tensors(self) -> tuple[RingTensor, ...]:
        return (*self.inputs, *self.outputs)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offset of each tensor in a slot."""
        at, result = SLOT_DATA, []
        for t in self.tensors:
            result.append(at)
            at += _round(t.row_bytes * self.rows, 64)
        return (*result, at)

    @property
    def slot_size(self) -> int:
        """The bytes of a slot: an odd number of cache lines, since with a power of two the first words of all slots
        would fall into one set of the cache."""
        return (self.offsets[-1] // 64 | 1) * 64

    @property
    def text(self) -> bytes:
        return json.dumps(encode(self), separators=(",", ":")).encode()

    @property
    def slots_at(self) -> int:
        return _PAGE + _round(len(self.text), _PAGE)

    @property
    def size(self) -> int:
        """The bytes of the ring's file."""
        return _round(self.slots_at + self.slots * self.slot_size, _PAGE)

    @property
    def symbol(self) -> str:
        return str(self.inputs[0].shape[self.inputs[0].axis])

    def manifest(self, target: TargetSpec) -> Manifest:
        """The manifest of an agent's call: the model's inputs and outputs, with as many rows as a request may have."""
        return Manifest(
            name=self.name,
            target=target,
            symbols=(SymbolSpec(self.symbol, 1, self.rows),),
            inputs=tuple(InputSpec(t.name, t.dtype, t.shape) for t in self.inputs),
            outputs=tuple(OutputSpec(t.name, t.dtype, t.shape) for t in self.outputs),
            structure_key=self.structure_key,
        )

    def check(self, where: str) -> None:
        """Raise BrokerError unless sizes are valid and within bounds; the manifest's check does the rest."""
        problems = Problems()
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            for t in tensors:
                names = [d for d in t.shape if isinstance(d, str)]
                sizes = [d for d in t.shape if isinstance(d, int)]
                good = t.dtype in BY_NAME and len(t.shape) <= 32 and all(0 <= d < _MAX_BYTES for d in sizes)
                if not good or len(names) != 1 or prod(sizes) > _MAX_BYTES:
                    problems.add(BrokerError("cannot lie in a ring", where=f"{where}: {kind} {t.name[:80]!r}"))
        if not self.inputs or not self.outputs:
            problems.add(BrokerError("there are no inputs or no outputs", where=where))
        if not 1 <= self.slots <= MAX_SLOTS or not 1 <= self.rows <= MAX_ROWS:
            what = "impossible numbers of agents or rows"
            expected = f"up to {MAX_SLOTS} agents and {MAX_ROWS} rows"
            problems.add(BrokerError(what, where=where, expected=expected, got=f"{self.slots} and {self.rows}"))
        problems.raise_if_any("the ring cannot be laid out", kind=BrokerError)
        if self.size > _MAX_BYTES:
            raise BrokerError("the ring would be too large", where=where, got=f"{self.size} bytes")


class Ring:
    """An open ring file, mapped. `fd` holds this process's locks on it; the mapping lives as long as this object."""

    def __init__(self, path: Path, fd: int, spec: RingSpec) -> None:
        self.path = path
        self.fd = fd
        self.spec = spec
        self._slots_at, self._slot_size = spec.slots_at, spec.slot_size
        # Mapped through a descriptor of its own: `mmap` keeps a copy of it, and a copy would keep locks.
        other = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(other, spec.size)
        finally:
            os.close(other)
        self.words = np.frombuffer(self._map, np.int64)
        self.address: int = self.words.ctypes.data

    @classmethod
    def create(cls, path: Path, spec: RingSpec) -> Ring:
        """Create a new ring under a temporary name, with the server's byte locked; `publish` moves it to its path."""
        temporary = path.with_name(f"{NEW}{path.name}")
        with suppress(FileNotFoundError):
            temporary.unlink()
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                os.posix_fallocate(fd, 0, spec.size)
            except OSError as error:
                what = f"no room for the ring: {error.strerror}"
                raise BrokerError(what, where=str(path), expected=f"{spec.size} bytes") from None
            ring = cls(temporary, fd, spec)
            text = spec.text
            ring._map[_PAGE : _PAGE + len(text)] = text
            ring.words[: HEADER.closed >> 3] = [_MAGIC, ABI_VERSION, spec.size, len(text)]
            if not lock_reader(fd, 0):
                raise BrokerError("another process uses the new ring's name", where=str(temporary))
            return ring
        except BaseException:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise

    def publish(self, path: Path) -> None:
        """Move this ring's file to `path`, where agents find it; a file that is there is replaced."""
        os.rename(self.path, path)
        self.path = path

    @classmethod
    def open(cls, path: Path) -> Ring:
        """The ring at a path; Raises FileNotFoundError if there is none, BrokerError if it is invalid."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return cls(path, fd, _read_spec(fd, str(path)))
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Close the ring's file, which releases the locks held through it. The memory is unmapped when the last
        reference to it goes. May be called several times."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def slot(self, index: int) -> int:
        """The address of slot number `index`."""
        return self.address + self._slots_at + index * self._slot_size

    def word(self, offset: int) -> int:
        """The value of the ring's word at byte `offset`."""
        return int(self.words[offset >> 3])

    def slot_word(self, index: int, field: int) -> int:
        return self.word(self._slots_at + index * self._slot_size + field)

    def set_slot_word(self, index: int, field: int, value: int) -> None:
        self.words[(self._slots_at + index * self._slot_size + field) >> 3] = value

    def states(self) -> list[int]:
        """The first word of each slot, which is its state."""
        first, step = self._slots_at >> 3, self._slot_size >> 3
        states: list[int] = self.words[first : first + self.spec.slots * step : step].tolist()
        return states

    @property
    def closed(self) -> bool:
        """Whether a broker has declared that another ring has taken the place of this one, so that agents must leave
        it."""
        return self.word(HEADER.closed) != 0

    @property
    def is_in_place(self) -> bool:
        """Whether the ring's path still leads to this file, so that new agents open it."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    @property
    def is_served(self) -> bool:
        """Whether a broker holds the server's lock of the ring."""
        return self.fd >= 0 and is_locked(self.fd, 0)

    def signal_places(self, index: int) -> tuple[int, int, int, int]:
        """(word of ready bits, bit in it, word of answers, mask in it) by which the slot `index` signals, words by
        their positions."""
        return index >> 6, 1 << (index & 63), index // GROUP_SLOTS, 1 << (index % GROUP_SLOTS)

    def indices(self) -> Iterator[int]:
        return iter(range(self.spec.slots))


def _read_spec(fd: int, where: str) -> RingSpec:
    size = os.fstat(fd).st_size
    head = os.pread(fd, HEADER.size, 0)
    if size < _PAGE or len(head) < HEADER.size:
        raise BrokerError("not a broker's ring", where=where)
    magic, abi, stated, text_size = struct.unpack_from("<4q", head)
    if magic != _MAGIC or stated != size or not 0 < text_size <= min(_MAX_TEXT, size - _PAGE):
        raise BrokerError("damaged, or not a broker's ring", where=where)
    if abi != ABI_VERSION:
        hint = "broker and agents must use the same version of tilewright"
        raise BrokerError("made by another version", where=where, expected=f"ABI {ABI_VERSION}", got=abi, hint=hint)
    try:
        spec = decode(RingSpec, json.loads(os.pread(fd, text_size, _PAGE)), "ring")
    except (SchemaError, ValueError, RecursionError) as error:
        raise BrokerError(f"its description is damaged: {error}", where=where) from None
    spec.check(where)
    if spec.size != size:
        raise BrokerError("its size is not that of its description", where=where, expected=spec.size, got=size)
    return spec


def shape_of(tensor: RingTensor, rows: int) -> tuple[int, ...]:
    """The shape of `tensor` for a batch of `rows` rows."""
    return tuple(rows if isinstance(d, str) else d for d in tensor.shape)


def unlock_byte(file: int, byte: int) -> None:
    """Release the lock that `lock_reader` took on byte number `byte` of `file`."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))


def _round(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
