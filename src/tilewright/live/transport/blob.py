"""Many bytes that travel in chunks: digested once for all callers, and received piece by piece across connections."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Executor, Future
from hashlib import blake2b

import numpy as np

from tilewright.live.transport.wire import CHUNK, digest
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import aligned_bytes

NO_ID = bytes(16)
_SMALL = 64 << 10
"""Bytes up to which digesting takes less than telling another thread."""


class Blob:
    """Bytes that are sent, to any number of nodes. They must not change while the blob lives.

    Its `id` is random, so that a node that comes back with a part of it can tell whether it still is the same.
    """

    def __init__(self, data: bytes | Array) -> None:
        self.id = os.urandom(16)
        self.data = data.data.cast("B") if isinstance(data, np.ndarray) else memoryview(data)
        self.nbytes = len(self.data)
        self.chunks = chunk_count(self.nbytes)
        self._digests: list[Future[bytes]] = []
        self._lock = threading.Lock()

    def begin(self, workers: Executor) -> None:
        """Let all chunks be digested, in order and ahead of who sends them; only the first call does anything."""
        with self._lock:
            if not self._digests:
                self._digests = [digested(workers, self.chunk(k)) for k in range(self.chunks)]

    def chunk(self, index: int) -> memoryview:
        """One chunk's bytes."""
        return self.data[index * CHUNK : (index + 1) * CHUNK]

    def chunk_digest(self, index: int) -> bytes:
        """One chunk's digest; waits for it."""
        return self._digests[index].result()

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
        """How many chunks have arrived."""
        return len(self._digests)

    @property
    def chunks(self) -> int:
        """How many chunks it has when it is whole."""
        return chunk_count(self.nbytes)

    def view(self, index: int) -> memoryview:
        """Where a chunk's bytes go."""
        return self.memory.data[index * CHUNK : min((index + 1) * CHUNK, self.nbytes)]

    def add(self, chunk_digest: bytes) -> None:
        """Note that the next chunk has arrived, with its digest."""
        self._digests.append(chunk_digest)

    def root(self) -> bytes:
        """The digest of the chunks so far, and of the blob once it is whole."""
        return root_of(self.nbytes, self._digests)


def digested(workers: Executor, data: memoryview) -> Future[bytes]:
    """The digest of a chunk, made by a worker; at once where that is less work than telling one."""
    if len(data) > _SMALL:
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and its workers have
            return workers.submit(digest, data)
    done: Future[bytes] = Future()
    done.set_result(digest(data))
    return done


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
