"""The native loop of a broker for one ring and one model: its structs, and the threads that run it."""

from __future__ import annotations

import ctypes
import threading

from tilewright.live.broker.native import broker_code
from tilewright.live.broker.ring import Ring, RingSpec
from tilewright.live.broker.structs import CLAIM, COPY, LANE, SERVER
from tilewright.runtime.call import SUPERSEDED
from tilewright.runtime.layout import Memory, aligned_bytes, function
from tilewright.runtime.runner import Runner


class Batcher:
    """Computes the requests in the ring file `ring` by `model`, on a thread for each lane. The event `moved` is set
    when the model's weights have moved to another memory."""

    def __init__(
        self, ring: Ring, model: Runner, max_batch: int, max_wait: float, lanes: int, moved: threading.Event
    ) -> None:
        spec = ring.spec
        self._ring, self._engine, self._moved = ring, model._engine, moved
        self._server = Memory(SERVER.size)
        self._keep: list[object] = []
        table, seen = copy_table(spec), Memory(8 * spec.slots)
        self._keep += [table, seen]
        for field, value in (
            (SERVER.last_requests, 1), (SERVER.last_rows, 1), (SERVER.header, ring.address),
            (SERVER.slots, ring.slot(0)), (SERVER.slot_size, spec.slot_size), (SERVER.slot_count, spec.slots),
            (SERVER.lanes, lanes), (SERVER.max_rows, spec.rows), (SERVER.max_batch, max_batch),
            (SERVER.max_wait_ns, int(max_wait * 1e9)), (SERVER.model, self._engine.address),
            (SERVER.inputs, len(spec.inputs)), (SERVER.outputs, len(spec.outputs)), (SERVER.table, table.address),
            (SERVER.seen, seen.address),
        ):  # fmt: skip
            self._server[field] = value
        self._lanes = [self._lane(spec, max_batch) for _ in range(lanes)]
        self._serve = function(broker_code()["tw_serve"], ctypes.c_int64, ctypes.c_void_p)
        self._stop = function(broker_code()["tw_stop"], None, ctypes.c_void_p)
        self.threads: list[threading.Thread] = []

    def _lane(self, spec: RingSpec, max_batch: int) -> Memory:
        buffers = [aligned_bytes(t.row_bytes * max_batch) for t in spec.tensors]
        for buffer in buffers:
            buffer.fill(0)
        addresses, io = Memory(8 * len(buffers)), Memory(8 * len(buffers) + 8)
        addresses.write(0, [b.ctypes.data for b in buffers])
        claimed, lane = Memory(CLAIM.size * max_batch), Memory(LANE.size)
        lane[LANE.server], lane[LANE.io] = self._server.address, io.address
        lane[LANE.claimed], lane[LANE.buffers] = claimed.address, addresses.address
        self._keep += [buffers, addresses, io, claimed]
        return lane

    def start(self) -> None:
        self.threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"lane {k}", daemon=True)
            for k, lane in enumerate(self._lanes)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, lane: Memory) -> None:
        if self._serve(lane.address) == SUPERSEDED:
            self._moved.set()

    def stop(self) -> None:
        """End the threads of all lanes, and wait until they have computed their current batches. Requests that wait
        stay in the ring for the next batcher."""
        self._stop(self._server.address)
        for thread in self.threads:
            thread.join()
        self.threads = []

    def counts(self) -> list[int]:
        """Sums over all lanes since the batcher was created: [requests, rows, batches, nanoseconds of computing]."""
        fields = (LANE.all_requests, LANE.all_rows, LANE.batches, LANE.busy_ns)
        return [sum(lane[field] for lane in self._lanes) for field in fields]


def copy_table(spec: RingSpec) -> Memory:
    """The native structs COPY, one for each tensor of a ring: its offset in a slot, bytes of a row, and extents around
    and inside of the batch axis."""
    table = Memory(COPY.size * len(spec.tensors))
    for k, (t, offset) in enumerate(zip(spec.tensors, spec.offsets[:-1], strict=True)):
        table.write(k * COPY.size, [offset, t.row_bytes, t.outer, t.inner])
    return table
