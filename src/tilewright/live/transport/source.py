"""The one interface of all transports: a source hands a node the newest update newer than the one it has."""

from __future__ import annotations

from typing import Protocol

from tilewright.live.transport.messages import Mark
from tilewright.live.transport.structure import Structure
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Update:
    """Weights that have arrived whole, and have been checked against what was sent.

    Args:
        mark: what to ask with for the next one.
        version: what the learner calls them.
        structure: the program that they are for.
        image: the weights as `structure.weights` reads them; it may change with the next call of the source.
        finite: the learner refused NaN and infinity in them.
    """

    mark: Mark
    version: int
    structure: Structure
    image: memoryview
    finite: bool


class Source(Protocol):
    """Where a node's weights come from. It is used by one thread; `close` may come from any."""

    def newer(self, after: Mark | None, structure: Structure | None, wait: float) -> Update | None:
        """The newest update newer than `after`; None if none came within `wait` seconds.

        Args:
            after: the mark of the update that the node has.
            structure: the program that it has; another one is fetched only where it is needed.

        Raises TransportError if it cannot be got now (what has arrived so far is kept for the next call), and
        ArtifactError if the program that it needs cannot run here.
        """
        ...

    def close(self) -> None:
        """End; a call that waits fails with a TransportError."""
        ...

    def stats(self) -> dict[str, int]:
        """Counts since the start."""
        ...
