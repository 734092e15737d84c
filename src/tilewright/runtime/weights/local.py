"""The weights of one `Model`: slots in its own memory, which later versions reuse."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilewright.runtime.interop import Array
from tilewright.runtime.layout import aligned_bytes
from tilewright.runtime.native import native
from tilewright.runtime.weights.check import check_finite, check_weights
from tilewright.runtime.weights.control import SLOTS, Control
from tilewright.runtime.weights.packed import (
    WeightSet,
    aligned_views,
    free_numbers,
    needed_raw,
    packed_nbytes,
    raw_nbytes,
)
from tilewright.runtime.weights.prepare import Bring
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import WeightError

if TYPE_CHECKING:
    from tilewright.runtime.engine import Engine

_TIMEOUT_SECONDS = 60.0
"""Seconds that an update waits for a slot which no call holds."""


_SMALL = 16 << 10
"""Up to this many bytes BLAKE2b takes at most some 20 microseconds."""


@dataclass(slots=True)
class _Slot:
    """A slot for one version: its memory and contents. `lent`: a caller holds arrays of `raw`, so that this memory must
    not be reused."""

    packed: Array
    raw: Array | None = None
    weights: WeightSet | None = None
    lent: bool = False


@dataclass(frozen=True, slots=True)
class Lent:
    """The raw weights of `version`, in the order of the manifest's parameters. The arrays are never modified."""

    raw: tuple[Array, ...]
    version: int


Reread = Callable[[], Mapping[str, Array]]
"""A function that reads raw weights again, by name, from their source."""


class LocalWeights:
    """Publishes versions to an engine of this process. The caller must serialise publications.

    Args:
        keep: whether all raw weights stay in memory once they are packed, or only those that calls read in place.
    """

    def __init__(self, engine: Engine, keep: bool = True) -> None:
        self._engine = engine
        self._keep = keep
        self._needed = needed_raw(engine.manifest)
        self._reread: tuple[int, Reread, list[bytes | int]] | None = None
        self._manifest = engine.manifest
        self._params = [p for p in engine.manifest.params if not p.fixed]
        self._numbers = free_numbers(engine.manifest)
        self._slots: list[_Slot | None] = [None] * SLOTS
        self._fixed: dict[str, Array] = {}
        self._followers: weakref.WeakSet[Engine] = weakref.WeakSet()
        self.forget()
        _live.add(self)

    def forget(self) -> None:
        """In the child of a fork: forget publications of other threads, which do not exist here."""
        self._publishing = threading.Lock()
        self.updating = threading.Lock()
        """Held while new weights are published: one version at a time."""

    @property
    def control(self) -> Control:
        return self._engine.control

    @property
    def current(self) -> WeightSet:
        """The weights that a call would use at present."""
        slot = self._slots[self.control.current]
        assert slot is not None and slot.weights is not None, "weights are published before they are asked for"
        return slot.weights

    def lend(self) -> Lent:
        """The raw weights that calls use at present, with their version. Arrays that were dropped are read from the
        file again; raises WeightError if that fails or gives other numbers."""
        while True:
            index = self.control.current
            slot = self._slots[index]
            assert slot is not None and slot.weights is not None
            slot.lent, weights = True, slot.weights
            if self.control.current == index and slot.weights is weights:
                return Lent(self._complete(weights), weights.version)

    def _complete(self, weights: WeightSet) -> tuple[Array, ...]:
        there = {k: a for k, a in enumerate(weights.raw) if a is not None}
        params = self._manifest.params
        if len(there) < len(params):
            if self._reread is None or self._reread[0] != weights.version:
                raise WeightError("raw weights were not kept once they were packed", hint=_KEEP)
            _, recomputed, digests = self._reread
            named = recomputed()
            lost = [k for k in range(len(params)) if k not in there]
            arrays = check_weights(
                [params[k] for k in lost], _some(named, [params[k].name for k in lost]), finite=False
            )
            if [_digest(a) for a in arrays] != digests:
                what = "the file that the model was compiled from has other weights now"
                raise WeightError(what, where=f"program {self._manifest.name!r}", hint=_KEEP)
            there |= dict(zip(lost, arrays, strict=True))
        return tuple(there[k] for k in range(len(params)))

    def follow(self, engine: Engine) -> None:
        """Let `engine`, another one of this program with the same control page, use these weights and later versions,
        too."""
        with self._publishing:
            for index, slot in enumerate(self._slots):
                if slot is not None and slot.weights is not None:
                    engine.set_slot(index, slot.weights.packed_addresses)
            self._followers.add(engine)

    def adopt(self, arrays: Sequence[Array], version: int, repeated: Reread | None = None) -> None:
        """Publish raw weights that are never modified again, as `version`, without copying them; the ones that calls
        read in place are copied if they are not aligned.

        Args:
            arrays: the raw weights, in the parameters' order.
            repeated: a function that reads them again, so that they need not stay in memory.
        """
        self._fixed = {p.name: a for p, a in zip(self._manifest.params, arrays, strict=True) if p.fixed}
        index = self._take()
        if repeated is not None:
            lost = [k for k in range(len(arrays)) if k not in self._needed]
            self._reread = version, repeated, [_digest(arrays[k]) for k in lost]
        self._publish(arrays, version, index)
        if repeated is not None:
            self.current.drop(self._needed)

    def publish(self, arrays: Sequence[Array], version: int, *, finite: bool) -> None:
        """Publish copies of the arrays of all parameters that are not fixed, as `version`. Raises WeightError, and
        publishes nothing, if `finite` is set and a number is not finite."""
        index = self._take()
        slot = self._slots[index]
        if slot is None:
            slot = self._slots[index] = _Slot(aligned_bytes(packed_nbytes(self._manifest)))
        retained = [p for p, k in zip(self._params, self._numbers, strict=True) if self._keep or k in self._needed]
        if slot.raw is None or slot.lent:
            slot.raw = aligned_bytes(raw_nbytes(retained))
            slot.lent = False
        views = aligned_views(retained, slot.raw)
        if not self._keep:
            views = self._with_others(views)
        copies = iter(views)
        everything = [self._fixed[p.name] if p.fixed else next(copies) for p in self._manifest.params]

        def bring(some: Sequence[int]) -> None:
            free = [self._numbers[k] for k in some if k in self._numbers]
            if finite:
                check_finite(self._params, arrays, free)
            for k in free:
                np.copyto(views[k], arrays[k])
                views[k].flags.writeable = False

        self._publish(everything, version, index, bring)

    def _with_others(self, retained: Sequence[Array]) -> list[Array]:
        """Arrays for all parameters that are not fixed: `retained` has the arrays that stay in memory after packing,
        and the other parameters get new memory."""
        dropped = [p for p, k in zip(self._params, self._numbers, strict=True) if k not in self._needed]
        stay, go = iter(retained), iter(aligned_views(dropped, aligned_bytes(raw_nbytes(dropped))))
        return [next(stay if k in self._needed else go) for k in self._numbers]

    def _take(self) -> int:
        # Memory that was used before has its pages; a new slot is for when older versions are still being read.
        used = [k for k in range(SLOTS) if self._slots[k] is not None]
        return self.control.take(used + [k for k in range(SLOTS) if k not in used], lambda _: True, _TIMEOUT_SECONDS)

    def _publish(self, raw: Sequence[Array], version: int, index: int, bring: Bring | None = None) -> None:
        slot = self._slots[index] or _Slot(aligned_bytes(packed_nbytes(self._manifest)))
        weights = WeightSet(self._manifest, raw, slot.packed, version)
        try:
            self._engine.prepare(weights.raw_addresses, weights.packed_addresses, keep=bring is not None, bring=bring)
        except BaseException:
            self.control.release(index)
            raise
        with self._publishing:
            if not self._keep:
                weights.drop(self._needed)
            slot.weights = weights
            self._slots[index] = slot
            for engine in (self._engine, *self._followers):
                engine.set_slot(index, weights.packed_addresses)
            self.control.seal(index, version)
            self.control.flip(index)


_live: weakref.WeakSet[LocalWeights] = weakref.WeakSet()


def _after_fork() -> None:
    for weights in list(_live):
        weights.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_KEEP = "compile or load the model with keep_weights=True"


def _some(named: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    return {name: named[name] for name in names if name in named}


def _digest(array: Array) -> bytes | int:
    """The digest of an array's bytes, by native code for a large array; a small one is digested without linking
    that."""
    dense = np.ascontiguousarray(array)
    if dense.nbytes <= _SMALL:
        return blake2b(dense.tobytes(), digest_size=16).digest()
    return native().digest(dense.ctypes.data, dense.nbytes)
