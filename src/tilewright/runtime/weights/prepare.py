"""Running a program's `tw_prepare`: raw weights in, packed weights out."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Sequence

from tilewright.runtime.arena import plan, temp_intervals
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import aligned_bytes, function
from tilewright.runtime.link import Library
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.threads import pool


class Prepare:
    """The prepare program of a library. One run at a time; `keep` makes it keep its temporaries for the next."""

    def __init__(self, manifest: Manifest, library: Library, threads: int) -> None:
        self.manifest = manifest
        self.threads = threads
        self._library = library  # whose code lives as long as it does
        self._entry = library["tw_prepare"]
        self._run = function(pool().parallel, None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
        self._lock = threading.Lock()
        self._arena: Array | None = None
        self._offsets: tuple[int, ...] = ()
        self._dims = array("q", [0])

    def __call__(self, raw: Sequence[int], packed: Sequence[int], *, keep: bool = False) -> None:
        """Pack: addresses of raw parameters, and of the memory for packed ones, both in the manifest's order."""
        if not self.manifest.prepare_steps:
            return
        with self._lock:
            arena, slots = self.slots(raw, packed)
            self._run(self._entry, slots.buffer_info()[0], self._dims.buffer_info()[0], self.threads)
            self._arena = arena if keep else None

    def slots(self, raw: Sequence[int], packed: Sequence[int]) -> tuple[Array, array[int]]:
        """Memory for temporaries, and the slot table."""
        arena = self._arena
        if arena is None:
            sizes = [t.nbytes or 0 for t in self.manifest.prepare_temps]
            placed = plan(temp_intervals(self.manifest.prepare_temps, sizes, self.threads))
            arena, self._offsets = aligned_bytes(placed.arena), placed.offsets
        base = arena.ctypes.data
        return arena, array("q", [*raw, *packed, *[base + offset for offset in self._offsets], 0])

    def forget(self) -> None:
        """In the child of a fork."""
        self._lock = threading.Lock()
