"""`BrokerClient`: an agent whose calls a broker computes."""

from __future__ import annotations

import os
import threading
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tilewright.live.broker.agent import POLL_SECONDS, AgentEngine, Unanswered
from tilewright.live.broker.ring import FILE, Ring, unlock_byte
from tilewright.live.broker.structs import DONE, FAILED, FREE, HEADER, IDLE, READY, SLOT, TIMED_OUT
from tilewright.live.store.actor import attach
from tilewright.live.store.files import check_owner, lock_reader, store_folder
from tilewright.runtime.native import native
from tilewright.runtime.runner import Runner
from tilewright.support.errors import BrokerError, StoreError

_LOOK_SECONDS = 0.1
"""Seconds between two attempts to reach a broker."""
_PAUSE_SECONDS = 0.05
"""The longest pause, in seconds, between two attempts to reach a broker."""
_HINT = "start one: tilewright broker NAME"
_live: weakref.WeakSet[BrokerClient] = weakref.WeakSet()


class BrokerClient(Runner):
    """An agent of a broker, called like an `Actor`.

        agent = tw.BrokerClient("policy")
        action, value = agent(obs)                       # obs: [rows, ...], any number of rows up to `agent.rows`
        outputs, version = agent.versioned(obs)

    An agent has one request in flight, so that calls of several threads are serialised; use one agent for each thread.

    Args:
        name: of the broker.
        timeout: seconds to wait for the broker to appear.
        call_timeout: seconds that a call may take; a broker may restart within that time.
        fallback: while no broker answers, use an `Actor` of the store instead of raising an error.
        directory: of stores, as for `Publisher`.

    Raises BrokerError if there is no broker, it has no place left, or it does not answer.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: float = 0.0,
        call_timeout: float = 10.0,
        fallback: bool = False,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self._broker = name
        self._folder = store_folder(name, directory)
        self._call_timeout = call_timeout
        self._lock = threading.RLock()
        self._agent: AgentEngine | None = None
        self._ring: Ring | None = None
        self._slot = -1
        self._closed = False
        self._fallback = fallback
        self._own: Runner | None = None
        self._next_look = 0.0
        _live.add(self)
        try:
            self._find(time.monotonic() + timeout)
        except BrokerError:
            if not fallback:
                raise
            self._start(self._own_actor()._engine)
            # Every call looks first whether there is a broker now.
            self._go_slow()

    @property
    def _where(self) -> str:
        return f"broker {self._broker!r}"

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _answer(self, inputs: tuple[Any, ...], out: Any) -> tuple[Any, int]:
        deadline = time.monotonic() + self._call_timeout
        while True:
            agent = self._agent
            try:
                if self._ring is not None:
                    return self._checked_call(inputs, out)
            except Unanswered as ended:
                self._end(agent, ended.status)
            if self._closed:
                raise BrokerError("this agent is closed", where=self._where)
            if not self._fallback:
                self._find(deadline)
            elif not self._look():
                return self._own_actor().versioned(*inputs, out=out)

    def _end(self, agent: AgentEngine | None, status: int) -> None:
        """Handle a call without an answer: leave the broker if it has ended, or raise the error that `status` stands
        for."""
        if status == FAILED:
            raise BrokerError("the batch could not be run", where=self._where) from None
        self._leave(agent)
        if status == TIMED_OUT and not self._fallback:
            what = "does not answer, though its process lives"
            expected = f"an answer within {self._call_timeout:g} s"
            raise BrokerError(what, where=self._where, expected=expected) from None

    def _own_actor(self) -> Runner:
        with self._lock:
            if self._own is None:
                self._own = attach(self._folder.name, directory=self._folder.parent)
            return self._own

    # -- coming and going ----------------------------------------------------------------------------------------------

    def _find(self, deadline: float) -> None:
        """Attach to a running broker, trying again until there is one. Raises BrokerError if there is none at
        `deadline`, on the monotonic clock."""
        pause = POLL_SECONDS
        while True:
            try:
                self._enter()
                return
            except BrokerError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(pause)
            pause = min(1.5 * pause, _PAUSE_SECONDS)  # many who look all the time would keep it from starting

    def _look(self) -> bool:
        """Look for a broker, and return whether one was reached; returns False at once if the last attempt was a moment
        ago."""
        with self._lock:
            now = time.monotonic()
            if self._ring is None and now < self._next_look:
                return False
            self._next_look = now + _LOOK_SECONDS
            try:
                self._enter()
            except BrokerError:
                return False
            return True

    def _enter(self) -> None:
        with self._lock:
            if self._ring is not None:
                return
            ring = _open_served(self._folder / FILE)
            try:
                slot = _take_slot(ring)
                agent = self._agent
                if agent is None or agent.spec != ring.spec:
                    agent = AgentEngine(ring.spec, self._call_timeout)
                agent.enter(ring, slot)
            except BaseException:
                ring.close()
                raise
            self._ring, self._slot = ring, slot
            weakref.finalize(self, ring.close)
            if agent is not self._agent:
                self._agent = agent
                self._start(agent)

    def _leave(self, agent: AgentEngine | None) -> None:
        """Give up the agent's slot. If its request could not be withdrawn, the slot stays in use until the broker frees
        it."""
        with self._lock:
            ring = self._ring
            if ring is None or agent is None or agent is not self._agent:
                return
            agent.leave()
            if native().swap(ring.slot(self._slot) + SLOT.state, IDLE, FREE):
                native().add(ring.address + HEADER.attached, -1)
            ring.close()
            self._ring, self._slot = None, -1

    def close(self) -> None:
        """Detach from the broker, which can give this agent's slot to another one. Calls that would use the broker or
        the fallback raise an error afterwards."""
        with self._lock:
            self._closed, self._fallback = True, False
            self._leave(self._agent)

    def forget(self) -> None:
        """In the child of a fork: forget the slot, which belongs to the parent; the child's next call gets another."""
        self._lock = threading.RLock()
        if self._ring is not None:
            self._ring.close()
            self._ring, self._slot = None, -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int | None:
        """The most rows that one call may have; None while this agent is not attached to a broker."""
        return self._ring.spec.rows if self._ring is not None else None

    @property
    def is_attached(self) -> bool:
        """Whether this agent has a slot at a broker. Without one, each call looks for a broker, or falls back."""
        return self._ring is not None

    def __repr__(self) -> str:
        return f"<BrokerClient of {self._where}, {self._described()}>"


def _open_served(path: Path) -> Ring:
    """The ring in the file `path`, if a living broker serves it. Raises BrokerError if it is missing, invalid, not this
    user's, or not served."""
    where = f"broker {path.parent.name!r}"
    try:
        check_owner(path.parent)
        ring = Ring.open(path)
    except (FileNotFoundError, StoreError) as error:
        got = error.headline() if isinstance(error, StoreError) else f"no file {path}"
        raise BrokerError("there is no broker", where=where, got=got, hint=_HINT) from None
    except OSError as error:
        raise BrokerError(f"its ring cannot be opened: {error.strerror}", where=str(path)) from None
    if ring.closed or not ring.is_served:
        ring.close()
        raise BrokerError("the broker has gone", where=where, hint=_HINT)
    return ring


def _take_slot(ring: Ring) -> int:
    """Reserve a free slot of `ring` by locking its byte, and return its number. Raises BrokerError if agents hold all
    of them."""
    for k in ring.indices():
        if not lock_reader(ring.fd, 1 + k):
            continue
        state = ring.slot_word(k, SLOT.state)
        # CLAIMED: the broker still writes to what a dead agent left.
        if state in (FREE, IDLE, READY, DONE) and native().swap(ring.slot(k) + SLOT.state, state, IDLE):
            ring.set_slot_word(k, SLOT.sleeping, 0)
            ring.set_slot_word(k, SLOT.pid, os.getpid())
            native().add(ring.address + HEADER.attached, int(state == FREE))
            return k
        unlock_byte(ring.fd, 1 + k)
    hint = "start the broker with more: Broker(agents=...)"
    raise BrokerError("every place is taken", where=str(ring.path), got=f"{ring.spec.slots} agents", hint=hint)


def _after_fork() -> None:
    for client in list(_live):
        client.forget()


os.register_at_fork(after_in_child=_after_fork)
