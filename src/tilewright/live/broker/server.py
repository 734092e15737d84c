"""`Broker`: the process of a node that computes its agents' requests in batches."""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tilewright.live.broker.batcher import Batcher
from tilewright.live.broker.fit import MAX_LANES, check_options, check_rows, ring_spec
from tilewright.live.broker.ring import FILE, LOCK_FILE, Ring
from tilewright.live.broker.structs import BELL, CLAIMED, FREE, HEADER, READY, READY_AT, SLOT
from tilewright.live.store.actor import Actor, attach
from tilewright.live.store.files import is_locked, lock_reader, make_folder, store_folder
from tilewright.runtime.native import native
from tilewright.runtime.runner import Runner
from tilewright.support.classes import dataclass
from tilewright.support.errors import BrokerError, Error

_KEEPER_SECONDS = 0.05
"""Seconds between two checks for agents that have died."""
_live: weakref.WeakSet[Broker] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """A broker's counts since its start. `busy`: seconds of computing of all lanes together, within `elapsed`
    seconds."""

    agents: int
    requests: int
    rows: int
    batches: int
    busy: float
    elapsed: float

    @property
    def rows_per_batch(self) -> float:
        return self.rows / self.batches if self.batches else 0.0


class Broker:
    """Runs a model on batches of requests from the agents of this machine.

        with tw.Broker("policy", max_batch=32, max_wait=200e-6) as broker:
            broker.serve()                      # until it is interrupted; `start()` returns at once

    An agent is a `BrokerClient`. A batch starts when every active agent has sent a request (or each lane's share of
    them), when there are `max_batch` rows, or when the first request has waited `max_wait`. All rows of an answer are
    computed with one version of the weights, which agents can read.

    Args:
        name: the weight store whose weights are served, and where agents find the broker.
        model: serve this model instead of a store's.
        max_batch: most rows of a batch.
        max_wait: seconds that a request waits for others.
        agents: most agents at once.
        rows: most rows of a request.
        lanes: batches in flight at once, each on a thread of its own; None: one for every four cores, two at least.
        threads: for a store's model; a `model` argument has its own.
        directory: of stores, as for `Publisher`.
        wait: seconds to wait for another broker of this name to end.
        timeout: seconds to wait for the store to exist.

    Raises BrokerError if another broker has the name, the model cannot be batched, or there is no memory for the ring.
    """

    def __init__(
        self,
        name: str,
        model: Runner | None = None,
        *,
        max_batch: int = 32,
        max_wait: float = 200e-6,
        agents: int = 64,
        rows: int = 8,
        lanes: int | None = None,
        threads: int = 1,
        directory: str | os.PathLike[str] | None = None,
        wait: float = 0.0,
        timeout: float = 0.0,
    ) -> None:
        self.name = name
        lanes = _usual_lanes() if lanes is None else lanes
        check_options(max_batch, max_wait, agents, rows, lanes)
        self.max_batch, self.max_wait, self.lanes = max_batch, max_wait, lanes
        self._agents, self._rows = agents, rows
        self._folder = store_folder(name, directory)
        self._owned: Actor | None = None
        if model is None:
            model = self._owned = attach(name, threads, directory=directory, timeout=timeout)
        self._model = model
        make_folder(self._folder, 0o600)
        self._lock_fd = _elect(self._folder, wait)
        self._state = threading.Lock()
        self._stopping = threading.Event()
        self._moved = threading.Event()
        self._keeper: threading.Thread | None = None
        self._failure: Error | None = None
        self._past = [0, 0, 0, 0]
        self._started = time.monotonic()
        try:
            self._open()
        except BaseException:
            os.close(self._lock_fd)
            raise
        _live.add(self)

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin to serve, in threads of its own, and return this broker at once; does nothing if it serves already.
        Raises BrokerError if it was closed."""
        with self._state:
            if self._stopping.is_set():
                raise BrokerError("is closed", where=f"broker {self.name!r}")
            if self._keeper is None:
                self._batcher.start()
                self._keeper = threading.Thread(target=self._keep, name=f"broker {self.name}", daemon=True)
                self._keeper.start()
        return self

    def serve(self) -> None:
        """Serve until `close` is called in another thread, or the process is interrupted.

        Raises BrokerError if the store gets a structure that cannot be batched.
        """
        self.start()
        try:
            while not self.join(0.5):
                pass
        finally:
            self.close()
        self.check()

    def join(self, timeout: float) -> bool:
        """Wait until the broker ends, for at most `timeout` seconds; returns whether it has ended."""
        return self._stopping.wait(timeout)

    @property
    def is_serving(self) -> bool:
        """Whether requests are being computed: `start` was called, and the broker has not ended."""
        return self._keeper is not None and not self._stopping.is_set()

    def check(self) -> None:
        """Raise the exception that has ended the broker; return if it still serves, or was ended by `close`."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Finish the current batches, end the broker's threads, and release its name for another broker. Requests that
        are not in a batch are left; agents notice within some milliseconds."""
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.join()
        self._go()

    def _go(self) -> None:
        with self._state:
            if self._lock_fd < 0:
                return
            self._batcher.stop()
            self._ring.close()
            os.close(self._lock_fd)
            self._lock_fd = -1
            if self._owned is not None:
                self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stats(self) -> BrokerStats:
        """The number of attached agents, and the requests, rows, batches and seconds of computing since this broker was
        created."""
        done = [a + b for a, b in zip(self._past, self._batcher.counts(), strict=True)]
        agents = self._ring.word(HEADER.attached)
        return BrokerStats(agents, done[0], done[1], done[2], done[3] * 1e-9, time.monotonic() - self._started)

    # -- the ring ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Take over the ring of an earlier broker if it has the same description, else replace it by a new one, and
        start the batcher."""
        model = self._model
        spec = ring_spec(model.manifest, self._agents, self._rows, self.max_batch)
        check_rows(model, spec, self.max_batch)
        path = self._folder / FILE
        old: Ring | None = None
        with suppress(FileNotFoundError, BrokerError):
            old = Ring.open(path)
        if old is not None and old.spec == spec and not old.closed and lock_reader(old.fd, 0):
            _resume(old)
            self._ring = old
        else:
            ring = Ring.create(path, spec)
            ring.publish(path)
            if old is not None:
                retire(old)
            self._ring = ring
        self._ring.words[HEADER.pid >> 3] = os.getpid()
        self._batcher = Batcher(self._ring, model, self.max_batch, self.max_wait, self.lanes, self._moved)
        self._recount()

    def _keep(self) -> None:
        """Until the broker stops: free the slots of dead agents, follow moved weights, and stop if the ring was
        removed."""
        while not self._stopping.wait(_KEEPER_SECONDS):
            self._recount()
            try:
                if not self._ring.is_in_place:
                    raise BrokerError("its ring was removed, or another took its place", where=str(self._ring.path))
                if self._moved.is_set():
                    self._follow()
            except Error as error:
                self._failure = error
                self._stopping.set()
                self._go()

    def _follow(self) -> None:
        with self._state:
            self._batcher.stop()
            try:
                self._model._follow()
            except Error:
                return  # there is no version to go to yet; agents wait
            self._past = [a + b for a, b in zip(self._past, self._batcher.counts(), strict=True)]
            self._moved.clear()
            old = self._ring
            self._open_after(old)
            self._batcher.start()

    def _open_after(self, old: Ring) -> None:
        spec = ring_spec(self._model.manifest, self._agents, self._rows, self.max_batch)
        if spec == old.spec:
            self._batcher = Batcher(old, self._model, self.max_batch, self.max_wait, self.lanes, self._moved)
            return
        old.close()
        self._open()
        retire(old)

    def _recount(self) -> None:
        ring, attached = self._ring, 0
        for k, state in enumerate(ring.states()):
            if state == FREE:
                continue
            if is_locked(ring.fd, 1 + k):
                attached += 1
            elif state != CLAIMED:
                # A word that is not what it was belongs to an agent that has just come.
                native().swap(ring.slot(k) + SLOT.state, state, FREE)
        ring.words[HEADER.attached >> 3] = attached

    def forget(self) -> None:
        """In the child of a fork: close what was inherited, and serve no more; the broker of the parent process goes
        on."""
        self._stopping.set()
        self._keeper, self._state = None, threading.Lock()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
            self._ring.close()
            self._batcher.threads = []


def retire(ring: Ring) -> None:
    """Mark `ring` as replaced by another one, so that its agents leave it, and close it in this process."""
    ring.words[HEADER.closed >> 3] = 1
    ring.close()


def _resume(ring: Ring) -> None:
    """Take over a ring from its last server: requests that were being computed become ready again."""
    ring.words[BELL.asleep >> 3] = 0
    for k in ring.indices():
        native().swap(ring.slot(k) + SLOT.state, CLAIMED, READY)
        if ring.slot_word(k, SLOT.state) == READY:
            word, bit, _, _ = ring.signal_places(k)
            _set_bit(ring.address + READY_AT + 8 * word, bit)


def _set_bit(address: int, bit: int) -> None:
    signed = bit - (1 << 64) if bit >> 63 else bit
    while True:
        old = ctypes.c_int64.from_address(address).value
        if native().swap(address, old, old | signed):
            return


def _usual_lanes() -> int:
    cores = len(os.sched_getaffinity(0))
    return min(cores, max(2, cores // 4), MAX_LANES)


def _elect(path: Path, wait: float) -> int:
    """Become the only broker in the folder `path`; returns the descriptor that holds the lock. Raises BrokerError if
    another one holds it for `wait` seconds."""
    fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                hint = "wait=seconds stands by until it goes"
                raise BrokerError("there is a broker of this name already", where=str(path), hint=hint) from None
            time.sleep(0.02)


def _after_fork() -> None:
    for broker in list(_live):
        broker.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
