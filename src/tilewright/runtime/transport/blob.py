"""Many bytes that travel in chunks: digested once whoever asks, and received piece by piece across connections."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b

import numpy as np

from tilewright.runtime.interop import Array
from tilewright.runtime.layout import aligned_bytes
from tilewright.runtime.transport.wire import CHUNK, digest

NO_ID = bytes(16)


class Blob:
    """Bytes that are sent, to any number of nodes. They must not change while the blob lives.

    Its `id` is random, so that a node that comes back with a part of it can tell whether it still is the same.
    """

    def __init__(self, data: bytes | Array) -> None:
        self.id = os.urandom(16)
        self.data = data.data.cast("B") if isinstance(data, np.ndarray) else memoryview(data)
        self.nbytes = len(self.data)
        self.chunks = chunk_count(self.nbytes)
        self._digests: list[bytes | None] = [None] * self.chunks

    def chunk(self, index: int) -> memoryview:
        """One chunk's bytes."""
        return self.data[index * CHUNK : (index + 1) * CHUNK]

    def chunk_digest(self, index: int) -> bytes:
        """One chunk's digest; whoever asks first makes it."""
        known = self._digests[index]
        if known is None:
            known = self._digests[index] = digest(self.chunk(index))
        return known

    def root(self) -> bytes:
        """The digest of the whole."""
        return root_of(self.nbytes, [self.chunk_digest(k) for k in range(self.chunks)])


class Partial:
    """A blob that is being received: whole chunks only, in order, each checked on arrival."""

    def __init__(self, blob_id: bytes, nbytes: int, memory: Array | None = None) -> None:
        self.id = blob_id
        self.nbytes = nbytes
        self.memory = aligned_bytes(nbytes)[:nbytes] if memory is None else memory
        self._digests: list[bytes] = []

    @property
    def done(self) -> int:
        """How many chunks are there."""
        return len(self._digests)

    @property
    def missing(self) -> int:
        """How many chunks are not."""
        return chunk_count(self.nbytes) - self.done

    def receive(self, receiver: Callable[[memoryview], bytes]) -> None:
        """Receive the next chunk by a function that fills memory and gives its digest; nothing changes if it fails."""
        start = self.done * CHUNK
        view = self.memory.data[start : min(start + CHUNK, self.nbytes)]
        self._digests.append(receiver(view))

    def root(self) -> bytes:
        """The digest of what is there."""
        return root_of(self.nbytes, self._digests)


def chunk_count(nbytes: int) -> int:
    """How many chunks hold so many bytes."""
    return -(-nbytes // CHUNK)


def root_of(nbytes: int, digests: list[bytes]) -> bytes:
    """The digest of a blob: of its size and its chunks' digests."""
    return blake2b(nbytes.to_bytes(8, "little") + b"".join(digests), digest_size=32).digest()


def reusable(memory: Array | None, nbytes: int) -> Array:
    """Memory of exactly this size: the one given if it is, else new."""
    if memory is not None and memory.nbytes == nbytes:
        return memory
    fresh: Array = aligned_bytes(nbytes)[:nbytes]
    assert fresh.dtype == np.uint8
    return fresh
