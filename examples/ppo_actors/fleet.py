"""The actors as the learner sees them: started, fed with slots, replaced when they die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from examples.ppo_actors import actor
from examples.ppo_actors.trajectories import SLOTS, Shared


@dataclass(frozen=True)
class Full:
    """A slot that an actor filled and the learner holds until it is released; `data` is a record of `slot_type`."""

    actor: int
    slot: int
    data: Any


class Fleet:
    """Actor processes. They are spawned, not forked: they share nothing with the learner but what they are given.

    Args:
        address: where they find the policy.
        context: the multiprocessing context ("spawn") that made `shared`.
    """

    def __init__(self, shared: Shared, address: Any, context: Any) -> None:
        config = shared.config
        self.shared, self._address, self._context = shared, address, context
        self._pipes: list[Connection | None] = [None] * config.actors
        self._processes: list[Any] = [None] * config.actors
        self.lives = [0] * config.actors
        self._held: set[tuple[int, int]] = set()
        self._rng = np.random.default_rng(config.seed)
        self._next_kill = time.monotonic() + config.chaos
        for index in range(config.actors):
            self._start(index)

    @property
    def deaths(self) -> int:
        """How many actors had to be replaced."""
        return sum(self.lives) - len(self.lives)

    def _start(self, index: int) -> None:
        ours, theirs = self._context.Pipe()
        args = (index, self.lives[index], self._address, self.shared, theirs)
        process = self._context.Process(target=actor.main, args=args, daemon=True, name=f"actor-{index}")
        with interrupts_blocked():
            process.start()
        theirs.close()
        self._pipes[index], self._processes[index] = ours, process
        self.lives[index] += 1
        for slot in range(SLOTS):
            if (index, slot) not in self._held:
                self._give(index, slot)

    def _give(self, index: int, slot: int) -> None:
        pipe = self._pipes[index]
        try:
            if pipe is not None:
                pipe.send_bytes(bytes([slot]))
        except (BrokenPipeError, ConnectionResetError):
            pass  # it died; `collect` finds its end of the pipe closed, and its successor gets the slot

    def collect(self, count: int) -> list[Full]:
        """The next `count` full segments, from whichever actors are first. Replaces actors that died meanwhile."""
        results: list[Full] = []
        while len(results) < count:
            for pipe in wait([p for p in self._pipes if p is not None]):
                index = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    slot = pipe.recv_bytes(1)[0]  # type: ignore[union-attr]
                except (EOFError, ConnectionResetError):
                    self._replace(index)
                    continue
                self._held.add((index, slot))
                results.append(Full(index, slot, self.shared.slots(index)[slot]))
        return results

    def release(self, segments: list[Full]) -> None:
        """Give slots back to be filled again: what they hold is no longer needed."""
        for full in segments:
            self._held.discard((full.actor, full.slot))
            self._give(full.actor, full.slot)

    def _replace(self, index: int) -> None:
        process, pipe = self._processes[index], self._pipes[index]
        pipe.close()  # type: ignore[union-attr]
        process.join()
        if process.exitcode >= 0:  # not by a signal: it would fail again
            raise RuntimeError(f"actor {index} ended with exit code {process.exitcode}; it says why above")
        self._start(index)

    def chaos(self) -> int | None:
        """Kill a random actor with SIGKILL if it is time to; gives which. `collect` replaces it."""
        config = self.shared.config
        if not config.chaos or time.monotonic() < self._next_kill:
            return None
        self._next_kill = time.monotonic() + config.chaos
        index = int(self._rng.integers(config.actors))
        self.kill(index)
        return index

    def kill(self, index: int) -> None:
        """Kill an actor, wherever it stands."""
        os.kill(self._processes[index].pid, signal.SIGKILL)

    def close(self) -> None:
        """End all actors: they go when the pipe is closed; one that does not within some seconds is killed."""
        for pipe in self._pipes:
            if pipe is not None:
                pipe.close()
        deadline = time.monotonic() + 5
        for process in self._processes:
            if process is not None:
                process.join(max(0.0, deadline - time.monotonic()))
                process.kill()
                process.join()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Ctrl-C waits until the end of the block. A process started in it never sees one, not even before it runs its
    first line."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
