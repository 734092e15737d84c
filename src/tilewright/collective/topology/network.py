"""A simulated network: how long rounds of messages take on links that are token buckets.

Each rank has one link out and one in. A link transmits bytes at a rate, and after a pause a burst of some bytes at
once. A message costs its sender `overhead`, arrives `latency` later, and additions take time at its target. Times of
all ranks are one vector, so that a thousand ranks are simulated in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tilewright.collective.topology.algorithms import Round, rounds_of
from tilewright.support.classes import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Network:
    """Links between ranks, all of one kind.

    Attributes:
        latency: seconds from the end of sending to the end of receiving.
        overhead: seconds of the sender for each message.
        bandwidth: bytes a second of each link, each way.
        burst: bytes that an idle link lets through at once.
        reducing: bytes a second that a rank adds.
    """

    latency: float = 20e-6
    overhead: float = 2e-6
    bandwidth: float = 1.25e9
    burst: float = 0.0
    reducing: float = 5e9

    def seconds(self, rounds: Iterable[Round], ranks: int, itemsize: int = 1) -> float:
        """The simulated seconds until all ranks have finished `rounds`, with elements of `itemsize` bytes."""
        now = np.zeros(ranks)
        out, into = np.full(ranks, -np.inf), np.full(ranks, -np.inf)  # until when links are busy
        for one in rounds:
            gone, come = now.copy(), now.copy()
            ready = now.copy()
            for m in one:
                if not m.source.size:
                    continue
                nbytes = (m.end - m.begin) * itemsize
                ready[m.source] += self.overhead
                begin = ready[m.source]
                left = self._through(out, m.source, begin, nbytes)
                gone[m.source] = np.maximum(gone[m.source], left)
                arrived = np.maximum(left, self._through(into, m.target, begin, nbytes)) + self.latency
                if m.reduces:
                    arrived = np.maximum(arrived, come[m.target]) + nbytes / self.reducing
                come[m.target] = np.maximum(come[m.target], arrived)
            now = np.maximum(gone, come)
        return float(now.max())

    def _through(self, busy: Array, link: Array, begin: Array, nbytes: Array) -> Array:
        """The times at which messages of `nbytes`, sent at times `begin`, have passed their links, which are token
        buckets. `busy` has the time at which each link will have its whole burst again, and is updated."""
        busy[link] = np.maximum(busy[link], begin - self.burst / self.bandwidth) + nbytes / self.bandwidth
        return np.maximum(begin, busy[link])

    def all_reduce(self, algorithm: str, ranks: int, nbytes: int, chunks: int = 1) -> float:
        """The simulated seconds of an all-reduction of `nbytes` bytes on each of `ranks` ranks by `algorithm`."""
        return self.seconds(rounds_of(algorithm, ranks, nbytes, chunks), ranks)

    def ping(self, nbytes: int) -> float:
        """The simulated seconds of one message of `nbytes` bytes from one rank to another, which does not add it."""
        first = next(rounds_of("tree", 2, nbytes))
        return self.seconds([(type(first[0])(*_ends(first), reduces=False),)], 2)


def _ends(one: Round) -> tuple[Array, Array, Array, Array]:
    return one[0].source, one[0].target, one[0].begin, one[0].end
