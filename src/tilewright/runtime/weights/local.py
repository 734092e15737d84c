"""The weights of one `Model`: slots in its own memory, which later versions use again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilewright.runtime.interop import Array
from tilewright.runtime.layout import aligned_bytes
from tilewright.runtime.weights.check import check_finite
from tilewright.runtime.weights.control import SLOTS, Control
from tilewright.runtime.weights.packed import WeightSet, aligned_views, free_numbers, packed_nbytes, raw_nbytes
from tilewright.runtime.weights.prepare import Bring
from tilewright.support.classes import dataclass

if TYPE_CHECKING:
    from tilewright.runtime.engine import Engine

_PATIENCE_SECONDS = 60.0
"""Seconds that an update waits for a slot which no call holds."""


@dataclass(slots=True)
class _Slot:
    """A slot's memory and what is in it. `lent`: somebody holds arrays of `raw`, which must stay as they are then."""

    packed: Array
    raw: Array | None = None
    weights: WeightSet | None = None
    lent: bool = False


class LocalWeights:
    """Publishes versions to an engine of this process. The caller sees to it that one does at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._manifest = engine.manifest
        self._params = [p for p in engine.manifest.params if not p.fixed]
        self._numbers = free_numbers(engine.manifest)
        self._slots: list[_Slot | None] = [None] * SLOTS
        self._fixed: dict[str, Array] = {}
        self._followers: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._publishing = threading.Lock()

    @property
    def control(self) -> Control:
        return self._engine.control

    @property
    def current(self) -> WeightSet:
        """The weights that a call now would use."""
        slot = self._slots[self.control.current]
        assert slot is not None and slot.weights is not None, "weights are published before they are asked for"
        return slot.weights

    def lend(self) -> WeightSet:
        """The current weights, whose raw arrays will never change."""
        while True:
            index = self.control.current
            slot = self._slots[index]
            assert slot is not None and slot.weights is not None
            slot.lent, weights = True, slot.weights
            if self.control.current == index and slot.weights is weights:
                return weights

    def follow(self, engine: Engine) -> None:
        """Let another engine of the same program, made for the same control page, read these weights from now on."""
        with self._publishing:
            for index, slot in enumerate(self._slots):
                if slot is not None and slot.weights is not None:
                    engine.set_slot(index, slot.weights.packed_addresses)
            self._followers.add(engine)

    def adopt(self, arrays: Sequence[Array], version: int) -> None:
        """Publish raw weights that are aligned and never written again, without a copy."""
        self._fixed = {p.name: a for p, a in zip(self._manifest.params, arrays, strict=True) if p.fixed}
        self._publish(arrays, version, self._take())

    def publish(self, arrays: Sequence[Array], version: int, *, finite: bool) -> None:
        """Publish copies of arrays, those of the parameters that are not fixed. WeightError, and nothing changes, if
        they shall be finite and are not."""
        index = self._take()
        slot = self._slots[index]
        if slot is None:
            slot = self._slots[index] = _Slot(aligned_bytes(packed_nbytes(self._manifest)))
        if slot.raw is None or slot.lent:
            slot.raw = aligned_bytes(raw_nbytes(self._params))
            slot.lent = False
        views = aligned_views(self._params, slot.raw)
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

    def _take(self) -> int:
        # Memory that was used before has its pages; a new slot is for when older versions are still being read.
        used = [k for k in range(SLOTS) if self._slots[k] is not None]
        return self.control.take(used + [k for k in range(SLOTS) if k not in used], lambda _: True, _PATIENCE_SECONDS)

    def _publish(self, raw: Sequence[Array], version: int, index: int, bring: Bring | None = None) -> None:
        slot = self._slots[index] or _Slot(aligned_bytes(packed_nbytes(self._manifest)))
        weights = WeightSet(self._manifest, raw, slot.packed, version)
        try:
            self._engine.prepare(weights.raw_addresses, weights.packed_addresses, keep=bring is not None, bring=bring)
        except BaseException:
            self.control.release(index)
            raise
        with self._publishing:
            slot.weights = weights
            self._slots[index] = slot
            for engine in (self._engine, *self._followers):
                engine.set_slot(index, weights.packed_addresses)
            self.control.seal(index, version)
            self.control.flip(index)
