"""Runs a program's `tw_prepare`, from raw weights to packed weights."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Callable, Sequence

from tilewright.native.link import Library
from tilewright.runtime.arena import plan, temp_intervals
from tilewright.runtime.compilers import raise_noted
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import aligned_bytes, function
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.threads import pool
from tilewright.support.classes import dataclass

Bring = Callable[[Sequence[int]], None]
GROUP = 2 << 20
"""Bytes of raw weights that are loaded and then packed while they are still in the last-level cache."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A run of the packing steps `first` up to `last`, and the parameters that they are the first to read."""

    params: tuple[int, ...]
    first: int
    last: int


class Prepare:
    """The part of a program that packs its weights. One run at a time; with `keep`, temporaries stay allocated for the
    next run."""

    def __init__(self, manifest: Manifest, library: Library, threads: int) -> None:
        self.manifest = manifest
        self.threads = threads
        self._library = library  # whose code lives as long as it does
        self._entry = library["tw_prepare"]
        self._run = function(pool().parallel, None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
        self._lock = threading.Lock()
        self._arena: Array | None = None
        self._offsets: tuple[int, ...] = ()
        self._groups = _groups(manifest)

    def __call__(
        self,
        raw: Sequence[int],
        packed: Sequence[int],
        *,
        keep: bool = False,
        bring: Bring | None = None,
    ) -> None:
        """Pack weights: `raw` and `packed` are the addresses of raw parameters and of memory for packed ones, in the
        manifest's order.

        Args:
            bring: called once for each parameter, with the numbers of some, right before they are first read; it copies
                or checks them, which leaves them in the cache. If it raises, packing ends.
        """
        with self._lock:
            arena, slots = self.slots(raw, packed)
            for group in self._groups if bring is not None else [_Group((), 0, len(self.manifest.prepare_steps))]:
                if bring is not None:
                    bring(group.params)
                if group.last > group.first:
                    self._steps(slots, group.first, group.last)
            self._arena = arena if keep else None

    def _steps(self, slots: array[int], first: int, last: int) -> None:
        steps = array("q", [first, last])
        self._run(self._entry, slots.buffer_info()[0], steps.buffer_info()[0], self.threads)
        if self.manifest.compilers:
            raise_noted()

    def slots(self, raw: Sequence[int], packed: Sequence[int]) -> tuple[Array, array[int]]:
        """(the arena for temporaries, the table of slots for the packing steps), from the addresses of raw and packed
        weights."""
        arena = self._arena
        if arena is None:
            sizes = [t.nbytes or 0 for t in self.manifest.prepare_temps]
            placed = plan(temp_intervals(self.manifest.prepare_temps, sizes, self.threads))
            arena, self._offsets = aligned_bytes(placed.arena), placed.offsets
        base = arena.ctypes.data
        return arena, array("q", [*raw, *packed, *[base + offset for offset in self._offsets], 0])

    def forget(self) -> None:
        """In the child of a fork: replace the lock, which another thread may have held."""
        self._lock = threading.Lock()


def _groups(manifest: Manifest) -> list[_Group]:
    """All steps of `prepare` divided into groups that read about `GROUP` bytes of new parameters each; parameters that
    no step reads are in the last group."""
    steps = manifest.prepare_steps
    number = {p.name: k for k, p in enumerate(manifest.params)}
    slots = [*range(len(number)), *(number.get(p.alias or "", -1) for p in manifest.packed)]
    fresh = set(number.values())
    groups: list[_Group] = []
    params: list[int] = []
    first = nbytes = 0
    for k, step in enumerate(steps):
        read = sorted(fresh.intersection(slots[slot] for slot in step.slots if slot < len(slots)))
        if params and nbytes + sum(manifest.params[p].nbytes for p in read) > GROUP:
            groups.append(_Group(tuple(params), first, k))
            params, first, nbytes = [], k, 0
        params += read
        fresh.difference_update(read)
        nbytes += sum(manifest.params[p].nbytes for p in read)
    return [*groups, _Group((*params, *sorted(fresh)), first, len(steps))]
