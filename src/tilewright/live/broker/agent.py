"""An agent's engine: the inputs of a call go to its slot of a ring, and the outputs come from there."""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tilewright.live.broker.batcher import copy_table
from tilewright.live.broker.native import broker_code
from tilewright.live.broker.ring import Ring, RingSpec, shape_of
from tilewright.live.broker.structs import ANSWER_SIZE, ANSWERS_AT, BUSY, CLIENT, INTERRUPTED, TIMED_OUT
from tilewright.live.store.files import FLOCK
from tilewright.native.link import Library, host_triple
from tilewright.runtime.call import MODEL, NO_LAYOUT, OK
from tilewright.runtime.engine import Engine
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import Memory
from tilewright.runtime.specs import TargetSpec

POLL_SECONDS = 0.002
"""Seconds between two attempts of a call while its agent, or the broker, is busy."""


class Unanswered(Exception):
    """Raised if the broker gave no answer; `status` is the status with which waiting ended."""

    def __init__(self, status: int) -> None:
        self.status = status


class AgentEngine(Engine):
    """An engine whose calls a broker computes: it has a program's inputs, outputs and their shapes, but no code or
    weights."""

    def __init__(self, spec: RingSpec, timeout: float) -> None:
        self.spec = spec
        self._timeout = timeout
        self._client = Memory(CLIENT.size)
        self._table = copy_table(spec)
        self._shapes_callback = _shapes_callback(spec)
        self._question = ctypes.create_string_buffer(FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0), FLOCK.size)
        shapes = ctypes.cast(self._shapes_callback, ctypes.c_void_p).value or 0
        addresses = {"tw_run": self._client.address, "tw_shapes": shapes, "tw_prepare": 0}
        manifest = spec.manifest(TargetSpec(host_triple(), ""))
        super().__init__(manifest, cast(Library, addresses), 1)
        self._model[MODEL.execute] = broker_code()["tw_exchange"]
        client = self._client
        client[CLIENT.rows], client[CLIENT.timeout_ns] = spec.rows, int(timeout * 1e9)
        client[CLIENT.inputs], client[CLIENT.outputs] = len(spec.inputs), len(spec.outputs)
        client[CLIENT.table], client[CLIENT.lock] = self._table.address, ctypes.addressof(self._question)

    def enter(self, ring: Ring, index: int) -> None:
        """Send later requests through the slot `index` of the broker's `ring`, after waiting for the call that is in
        progress. The caller has reserved the slot."""
        word, bit, group, mask = ring.signal_places(index)
        client = self._client
        self._take()
        client[CLIENT.header], client[CLIENT.ring] = ring.address, ring.fd
        client[CLIENT.word], client[CLIENT.mask] = word, mask
        client[CLIENT.bit] = bit - (1 << 64) if bit >> 63 else bit
        client[CLIENT.answer] = ring.address + ANSWERS_AT + group * ANSWER_SIZE
        client[CLIENT.slot] = ring.slot(index)
        self._give()

    def leave(self) -> None:
        """Stop using the slot of the ring, after waiting for the call that another thread has in progress. The slot
        itself is freed by the caller."""
        self._take()
        self._client[CLIENT.slot] = 0
        self._give()

    def forget_calls(self) -> None:
        super().forget_calls()
        self._client[CLIENT.slot] = self._client[CLIENT.busy] = 0

    def _take(self) -> None:
        while not self._native.swap(self._client.address + CLIENT.busy, 0, 1):
            time.sleep(POLL_SECONDS)

    def _give(self) -> None:
        self._native.set(self._client.address + CLIENT.busy, 0)

    def call(self, arrays: Sequence[Array], dims: tuple[int, ...]) -> int:
        """Send a request with checked arrays, inputs then outputs, and the sizes `dims` of the symbols; returns the
        version of the weights. Raises Unanswered if the broker does not answer."""
        addresses = np.array([a.ctypes.data for a in arrays] + [0], np.int64)
        values = np.array([*dims, 0], np.int64)
        deadline = time.monotonic() + self._timeout
        while True:
            status = self._native.call(self.address, addresses.ctypes.data, values.ctypes.data)
            if status == OK:
                return int(addresses[-1])
            if status == NO_LAYOUT:
                self.ensure(dims)
            elif status == BUSY:
                time.sleep(POLL_SECONDS)
            elif status != INTERRUPTED:
                raise Unanswered(status)
            elif time.monotonic() > deadline:  # after an interruption Python runs its signal handlers first
                raise Unanswered(TIMED_OUT)


def _shapes_callback(spec: RingSpec) -> Any:
    """A native function in place of `tw_shapes`: it computes the outputs' dimensions from the number of rows."""

    def shapes(dims: int, out: int) -> None:
        rows = ctypes.c_int64.from_address(dims).value
        flat = np.array([d for t in spec.outputs for d in shape_of(t, rows)], np.int64)
        ctypes.memmove(out, flat.ctypes.data, flat.nbytes)

    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(shapes)
