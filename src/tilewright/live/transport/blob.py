"""Large byte strings that travel in chunks: digested once for all receivers, and resumed across connections."""

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
"""Up to this many bytes, computing a digest takes less time than passing it to another thread."""


class Blob:
    """Bytes to be sent to any number of nodes, which must not change while the blob lives.

    Its `id` is random, so that a node that resumes a transfer can tell whether it is the same blob.
    """

    def __init__(self, data: bytes | Array) -> None:
        self.id = os.urandom(16)
        self.data = data.data.cast("B") if isinstance(data, np.ndarray) else memoryview(data)
        self.nbytes = len(self.data)
        self.chunks = chunk_count(self.nbytes)
        self._digests: list[Future[bytes]] = []
        self._lock = threading.Lock()

    def begin(self, workers: Executor) -> None:
        """Start digesting all chunks in order, ahead of sending; later calls do nothing."""
        with self._lock:
            if not self._digests:
                self._digests = [digested(workers, self.chunk(k)) for k in range(self.chunks)]

    def chunk(self, index: int) -> memoryview:
        """The bytes of chunk number `index`, without a copy; the last chunk may be shorter than others."""
        return self.data[index * CHUNK : (index + 1) * CHUNK]

    def chunk_digest(self, index: int) -> bytes:
        """The digest of chunk number `index`, after waiting until it is computed; `begin` must have been called."""
        return self._digests[index].result()

    def root(self) -> bytes:
        """The digest of the whole blob, after waiting for those of all chunks; `begin` must have been called."""
        return root_of(self.nbytes, [self.chunk_digest(k) for k in range(self.chunks)])


class Partial:
    """A blob that is being received, chunk after chunk; each is checked when it arrives."""

    def __init__(self, blob_id: bytes, nbytes: int, memory: Array | None = None) -> None:
        self.id = blob_id
        self.nbytes = nbytes
        self.memory = aligned_bytes(nbytes)[:nbytes] if memory is None else memory
        self._digests: list[bytes] = []

    @property
    def done(self) -> int:
        """The number of chunks that have arrived."""
        return len(self._digests)

    @property
    def chunks(self) -> int:
        """The number of chunks that the whole blob has."""
        return chunk_count(self.nbytes)

    def view(self, index: int) -> memoryview:
        """The memory into which chunk number `index` is to be received."""
        return self.memory.data[index * CHUNK : min((index + 1) * CHUNK, self.nbytes)]

    def add(self, chunk_digest: bytes) -> None:
        """Record that the next chunk has been received into its memory and has the digest `chunk_digest`."""
        self._digests.append(chunk_digest)

    def root(self) -> bytes:
        """The digest of the chunks that have arrived; of the whole blob, once all have."""
        return root_of(self.nbytes, self._digests)


def digested(workers: Executor, data: memoryview) -> Future[bytes]:
    """A future of a chunk's digest, computed by a worker; computed at once if that is less work."""
    if len(data) > _SMALL:
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and its workers have
            return workers.submit(digest, data)
    done: Future[bytes] = Future()
    done.set_result(digest(data))
    return done


def chunk_count(nbytes: int) -> int:
    """The number of chunks in which a blob of `nbytes` bytes is sent."""
    return -(-nbytes // CHUNK)


def root_of(nbytes: int, digests: list[bytes]) -> bytes:
    """The digest of a blob of `nbytes` bytes: of its size and its chunks' digests."""
    return blake2b(nbytes.to_bytes(8, "little") + b"".join(digests), digest_size=32).digest()


def reusable(memory: Array | None, nbytes: int) -> Array:
    """Memory of exactly `nbytes` bytes: `memory` if it has this size, else new."""
    if memory is not None and memory.nbytes == nbytes:
        return memory
    fresh: Array = aligned_bytes(nbytes)[:nbytes]
    assert fresh.dtype == np.uint8
    return fresh
