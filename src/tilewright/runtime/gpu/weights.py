"""The weights of a program on a GPU: slots of device memory; a control page says which one is current.

A version is copied to the device, packed there by the program's own preparation, and becomes current by one store.
Each slot keeps its memory, so that graphs which hold its addresses serve later versions, too.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from tilewright.runtime.arena import plan, temp_intervals
from tilewright.runtime.gpu.device import Block, Device
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import Memory, function
from tilewright.runtime.weights.check import check_finite
from tilewright.runtime.weights.control import SLOTS, Control
from tilewright.runtime.weights.local import Lent
from tilewright.runtime.weights.packed import copy_aligned
from tilewright.support.classes import dataclass

if TYPE_CHECKING:
    from tilewright.runtime.engine import Engine

ALIGN = 256
"""Bytes to a multiple of which weights are placed on the device."""
_WAIT_SECONDS = 60.0
"""Seconds that an update waits for a slot which no call holds."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the weights: the raw arrays on the host, and the device addresses of the packed ones."""

    raw: tuple[Array, ...]
    packed_addresses: tuple[int, ...]
    version: int


class DeviceWeights:
    """Publishes versions to an engine whose calls run on a GPU, with the methods of `LocalWeights`."""

    def __init__(self, engine: Engine, device: Device) -> None:
        m = engine.manifest
        self._engine, self._device, self._manifest = engine, device, m
        self._blocks: list[Block | None] = [None] * SLOTS
        self._versions: list[Version | None] = [None] * SLOTS
        self._fixed: dict[str, Array] = {}
        self._prepare = function(engine.linked["tw_prepare"], None, *[ctypes.c_void_p] * 5)
        sizes = [p.nbytes for p in m.params] + [0 if p.alias else p.nbytes for p in m.packed]
        starts = [0, *accumulate(-(-n // ALIGN) * ALIGN for n in sizes)]
        self._raw_at, self._packed_at, self._total = starts[: len(m.params)], starts[len(m.params) : -1], starts[-1]
        self._followers: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._publishing = threading.Lock()
        self.updating = threading.Lock()
        """Held while new weights are published: one version at a time."""

    @property
    def control(self) -> Control:
        return self._engine.control

    @property
    def current(self) -> Version:
        """The weights that a call would use now."""
        version = self._versions[self.control.current]
        assert version is not None, "weights are published before they are asked for"
        return version

    def lend(self) -> Lent:
        """The raw weights that calls use at present, with their version."""
        now = self.current
        return Lent(now.raw, now.version)

    def follow(self, engine: Engine) -> None:
        """Let `engine`, another one of this program with the same control page, use these weights and later versions,
        too."""
        with self._publishing:
            for index, version in enumerate(self._versions):
                if version is not None:
                    engine.set_slot(index, version.packed_addresses)
            self._followers.add(engine)

    def adopt(self, arrays: Sequence[Array], version: int) -> None:
        """Publish the raw weights `arrays`, which are never modified afterwards, as `version`, without copying them."""
        self._fixed = {p.name: a for p, a in zip(self._manifest.params, arrays, strict=True) if p.fixed}
        self._publish(tuple(arrays), version)

    def publish(self, arrays: Sequence[Array], version: int, *, finite: bool) -> None:
        """Publish copies of the arrays of all parameters that are not fixed, in order, as `version`. Raises
        WeightError, and publishes nothing, if `finite` is set and a number is NaN or infinite."""
        free = [p for p in self._manifest.params if not p.fixed]
        if finite:
            check_finite(free, arrays, range(len(arrays)))
        copies = iter(copy_aligned(free, arrays))
        everything = [self._fixed[p.name] if p.fixed else next(copies) for p in self._manifest.params]
        self._publish(tuple(everything), version)

    def _publish(self, raw: tuple[Array, ...], version: int) -> None:
        used = [k for k in range(SLOTS) if self._blocks[k] is not None]
        order = used + [k for k in range(SLOTS) if k not in used]
        index = self.control.take(order, lambda _: True, _WAIT_SECONDS)
        try:
            block = self._blocks[index]
            if block is None:
                block = self._blocks[index] = self._device.allocate(self._total)
            packed = self._pack(raw, block.address)
        except BaseException:
            self.control.release(index)
            raise
        with self._publishing:
            self._versions[index] = Version(raw, packed, version)
            for engine in (self._engine, *self._followers):
                engine.set_slot(index, packed)
            self.control.seal(index, version)
            self.control.flip(index)

    def _pack(self, raw: Sequence[Array], base: int) -> tuple[int, ...]:
        """Copy raw weights to the device, into the slot at `base`, and run the program's `prepare` on them. Returns the
        addresses of the packed ones."""
        m, device = self._manifest, self._device
        raw_at = [base + at for at in self._raw_at]
        by_name = dict(zip((p.name for p in m.params), raw_at, strict=True))
        packed = [
            base + at if p.alias is None else by_name[p.alias] for p, at in zip(m.packed, self._packed_at, strict=True)
        ]
        placed = plan(temp_intervals(m.prepare_temps, [t.nbytes or 0 for t in m.prepare_temps], 1))
        arena = device.allocate(placed.arena)
        try:
            with device.current():
                try:
                    for array, at in zip(raw, raw_at, strict=True):
                        device.copy(at, array.ctypes.data, array.nbytes)
                    slots = Memory(8 * (len(raw_at) + len(packed) + len(placed.offsets) + 1))
                    slots.write(0, [*raw_at, *packed, *(arena.address + at for at in placed.offsets)])
                    steps = Memory(16)
                    steps[8] = len(m.prepare_steps)
                    self._prepare(slots.address, steps.address, 0, 1, device.own.address)
                    device.raise_failed()
                finally:
                    device.wait()
        finally:
            arena.free()
        return tuple(packed)


__all__ = ["DeviceWeights"]
